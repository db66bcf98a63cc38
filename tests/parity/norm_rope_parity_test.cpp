#include <gtest/gtest.h>

#include <iostream>
#include <set>

#include "parity/norm_rope_cases.h"

namespace smla {
namespace {

using namespace norm_rope_cases;

template <class Op>
std::vector<std::string> accepted(const typename Op::Problem& problem) {
  static std::set<std::string> told;
  std::vector<std::string> names;
  for (const Candidate& candidate : explain<Op>(problem)) {
    if (candidate.refusal.empty()) {
      names.push_back(candidate.name);
    } else if (told.insert(candidate.name).second) {
      std::cout << Op::kName << ": " << candidate.name << " does not run here: " << candidate.refusal << "\n";
    }
  }
  return names;
}

float element(const HostTensor& tensor, std::int64_t i) {
  return tensor.dtype() == DType::kF32 ? tensor.as<float>()[i] : to_float(tensor.as<BF16>()[i]);
}

int ordered(std::uint32_t bits, std::uint32_t sign) { return (bits & sign) != 0U ? -static_cast<int>(bits & (sign - 1U)) : static_cast<int>(bits); }

/// Rows behind a norm: F32 l2 1e-6, BF16 1 ulp or 1e-5 of the row's largest, E4M3 one step; and of the rounded ones nearly all equal, or the rounding
/// itself would be another.
void expect_close_rows(const HostTensor& want, const HostTensor& got, std::int64_t width) {
  std::int64_t differ = 0;
  for (std::int64_t row = 0; width > 0 && row < want.numel() / width; ++row) {
    double error = 0;
    double norm = 0;
    double largest = 0;
    for (std::int64_t i = row * width; want.dtype() != DType::kE4M3 && i < (row + 1) * width; ++i) {
      const double w = element(want, i);
      error += (element(got, i) - w) * (element(got, i) - w);
      norm += w * w;
      largest = std::max(largest, std::fabs(w));
    }
    if (want.dtype() == DType::kF32) {
      ASSERT_LE(std::sqrt(error), 1e-6 * std::sqrt(norm)) << "row " << row;
      continue;
    }
    for (std::int64_t i = row * width; i < (row + 1) * width; ++i) {
      if (want.dtype() == DType::kE4M3) {
        differ += want.as<E4M3>()[i] == got.as<E4M3>()[i] ? 0 : 1;
        ASSERT_LE(std::abs(ordered(want.as<E4M3>()[i].bits, 0x80) - ordered(got.as<E4M3>()[i].bits, 0x80)), 1) << "row " << row << " element " << i;
        continue;
      }
      differ += want.as<BF16>()[i] == got.as<BF16>()[i] ? 0 : 1;
      if (std::abs(ordered(want.as<BF16>()[i].bits, 0x8000) - ordered(got.as<BF16>()[i].bits, 0x8000)) > 1) {
        ASSERT_LE(std::fabs(element(want, i) - element(got, i)), 1e-5 * largest) << "row " << row << " element " << i;
      }
    }
  }
  ASSERT_LE(differ, want.numel() / 500 + 1) << "of " << want.numel();
}

void expect_equal_bytes(const HostTensor& want, const HostTensor& got) {
  ASSERT_EQ(want.bytes(), got.bytes());
  const auto* w = static_cast<const std::uint8_t*>(want.data());
  const auto* g = static_cast<const std::uint8_t*>(got.data());
  const auto* at = std::mismatch(w, w + want.bytes(), g).first;
  ASSERT_EQ(at, w + want.bytes()) << "byte " << at - w;
}

TEST(NormRopeParity, RmsNorm) {
  for (const RmsNormCase& c : rms_norm_cases()) {
    const RmsNormInputs want = make_inputs(c);
    Plan<RmsNorm>(c.problem, {.implementation = "ref"}).run(want.args);
    for (const std::string& name : accepted<RmsNorm>(c.problem)) {
      SCOPED_TRACE(testing::Message() << c << " on " << name);
      const RmsNormInputs got = make_inputs(c);
      Plan<RmsNorm>(c.problem, {.implementation = name, .threads = 3}).run(got.args);
      expect_close_rows(want.y, got.y, c.problem.dim + 8);
      const std::int64_t row_bytes = (c.problem.dim + 8) * size_of(c.problem.out);
      for (std::int64_t i = 0; i < static_cast<std::int64_t>(got.y.bytes()); ++i) {
        if (i % row_bytes < c.problem.dim * size_of(c.problem.out)) continue;
        ASSERT_EQ(static_cast<const std::uint8_t*>(got.y.data())[i], kPoison) << "byte " << i << " past a row was written";
      }
      const RmsNormInputs alone = make_inputs(c);
      Plan<RmsNorm>(c.problem, {.implementation = name, .threads = 1}).run(alone.args);
      expect_equal_bytes(got.y, alone.y);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(NormRopeParity, RmsNormInPlace) {
  for (const RmsNormCase& c : rms_norm_cases()) {
    if (c.problem.in != c.problem.out) continue;
    for (const std::string& name : accepted<RmsNorm>(c.problem)) {
      SCOPED_TRACE(testing::Message() << c << " on " << name);
      RmsNormInputs in = make_inputs(c);
      const Plan<RmsNorm> plan(c.problem, {.implementation = name});
      plan.run(in.args);
      RmsNorm::Args same = in.args;
      same.y = in.x.view().slice(1, c.row_gap, c.row_gap + c.problem.dim);
      plan.run(same);
      for (std::int64_t r = 0; r < c.problem.rows; ++r) {
        for (std::int64_t i = 0; i < c.problem.dim; ++i) {
          ASSERT_EQ(element(in.y, r * (c.problem.dim + 8) + i), element(in.x, r * (c.problem.dim + c.row_gap) + c.row_gap + i));
        }
      }
    }
  }
}

TEST(NormRopeParity, QNormRopeInsert) {
  for (const InsertCase& c : insert_cases()) {
    const InsertInputs want = make_inputs(c);
    Plan<QNormRopeInsert>(c.problem(), {.implementation = "ref"}).run(want.args);
    for (const std::string& name : accepted<QNormRopeInsert>(c.problem())) {
      SCOPED_TRACE(testing::Message() << c << " on " << name);
      const InsertInputs got = make_inputs(c);
      Plan<QNormRopeInsert>(c.problem(), {.implementation = name, .threads = 3}).run(got.args);
      expect_close_rows(want.q_out, got.q_out, c.problem().dim);
      // No sum stands before the bytes of kv: they are exact, and so is everything that must not be written.
      ASSERT_TRUE(want.cache.bytes == got.cache.bytes);
      const InsertInputs alone = make_inputs(c);
      Plan<QNormRopeInsert>(c.problem(), {.implementation = name, .threads = 1}).run(alone.args);
      expect_equal_bytes(got.q_out, alone.q_out);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(NormRopeParity, InverseRopeIsExact) {
  for (const InverseCase& c : inverse_cases()) {
    const InverseInputs want = make_inputs(c);
    Plan<InverseRope>(c.problem, {.implementation = "ref"}).run(want.args);
    for (const std::string& name : accepted<InverseRope>(c.problem)) {
      SCOPED_TRACE(testing::Message() << c << " on " << name);
      InverseInputs got = make_inputs(c);
      const Plan<InverseRope> plan(c.problem, {.implementation = name, .threads = 3});
      plan.run(got.args);
      expect_equal_bytes(want.y, got.y);
      if (HasFatalFailure()) return;
      if (c.problem.in != c.problem.out) continue;
      InverseRope::Args same = got.args;
      same.y = got.x.view().slice(1, 0, c.problem.heads);
      plan.run(same);
      for (std::int64_t t = 0; t < c.problem.tokens; ++t) {
        const std::int64_t position = got.positions.as<std::int64_t>()[t];
        if (position < 0 || position >= 300) continue;  // skipped rows of y are poison
        for (std::int64_t i = 0; i < c.problem.heads * c.problem.dim; ++i) {
          const std::int64_t at = t * (c.problem.heads + 1) * c.problem.dim + i;
          ASSERT_EQ(element(got.y, at), element(got.x, t * (c.problem.heads + c.extra_heads) * c.problem.dim + i));
        }
      }
    }
  }
}

}  // namespace
}  // namespace smla
