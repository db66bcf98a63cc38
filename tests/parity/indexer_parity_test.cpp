#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <set>
#include <string>

#include "aligned_workspace.h"
#include "parity/indexer_cases.h"

namespace smla {
namespace {

constexpr std::uint32_t kPoison = 0x7FA5'5A5A;  // a NaN nobody computes
constexpr std::int64_t kPadding = 5;            // floats between two rows of logits
constexpr double kLogitsL2 = 2e-6;              // against double; the contract allows 5e-4

cases::IndexerQOutputs run(const cases::IndexerQCase& c, const cases::IndexerQInputs& inputs,
                           const std::string& implementation, int threads) {
  cases::IndexerQOutputs out(c);
  Plan<IndexerQ>(c.problem(), {.implementation = implementation, .threads = threads})
      .run(out.attached(c, inputs.args(c)));
  return out;
}

TEST(IndexerQParity, EveryImplementationEqualsRefInEveryBit) {
  for (const cases::IndexerQCase& c : cases::indexer_q_cases()) {
    SCOPED_TRACE(testing::Message() << c);
    const cases::IndexerQInputs inputs(c);
    const cases::IndexerQOutputs expected = run(c, inputs, "ref", 1);
    for (const std::uint32_t w : expected.weights) ASSERT_NE(w, cases::IndexerQOutputs::kPoison);
    for (const Candidate& candidate : explain<IndexerQ>(c.problem())) {
      if (!candidate.refusal.empty()) continue;
      for (const int threads : {1, 2})
        ASSERT_TRUE(run(c, inputs, candidate.name, threads) == expected) << candidate.name << ", threads " << threads;
    }
  }
}

/// Logits as bits, so that poison and infinities compare.
using Bits = std::vector<std::uint32_t>;

Bits run(const cases::IndexerLogitsCase& c, const IndexerLogits::Args& inputs, const std::string& implementation,
         int threads) {
  Bits out(static_cast<std::size_t>(c.rows * (c.width + kPadding)), kPoison);
  IndexerLogits::Args args = inputs;
  args.logits = TensorView(out.data(), DType::kF32, {c.rows, c.width});
  args.logits.stride[0] = c.width + kPadding;
  const Plan<IndexerLogits> plan(c.problem(), {.implementation = implementation, .threads = threads});
  const test::AlignedWorkspace workspace(plan.workspace_bytes());
  plan.run(args, workspace.get());
  return out;
}

/// Every defined column is written, no other; -inf stands exactly where ref has it; the rest within l2.
void expect_close(const cases::IndexerLogitsCase& c, const cases::IndexerLogitsInputs& inputs, const Bits& got,
                  const Bits& expected) {
  double error = 0;
  double norm = 0;
  for (std::int64_t row = 0; row < c.rows; ++row) {
    const std::int64_t len = std::clamp<std::int64_t>(inputs.lens[static_cast<std::size_t>(row)], 0, c.width);
    for (std::int64_t j = 0; j < c.width + kPadding; ++j) {
      const auto at = static_cast<std::size_t>(row * (c.width + kPadding) + j);
      if (j >= len) {
        ASSERT_EQ(got[at], kPoison) << "row " << row << " column " << j << " is not defined";
        continue;
      }
      const double a = std::bit_cast<float>(got[at]);
      const double b = std::bit_cast<float>(expected[at]);
      ASSERT_FALSE(std::isnan(a)) << "row " << row << " column " << j;
      ASSERT_EQ(std::isinf(a), std::isinf(b)) << "row " << row << " column " << j;
      if (std::isinf(b)) continue;
      error += (a - b) * (a - b);
      norm += b * b;
    }
  }
  EXPECT_LE(std::sqrt(error), kLogitsL2 * std::sqrt(norm));
}

TEST(IndexerLogitsParity, EveryImplementationAgainstRef) {
  std::set<std::string> refused;
  for (const cases::IndexerLogitsCase& c : cases::indexer_logits_cases()) {
    SCOPED_TRACE(testing::Message() << c);
    const cases::IndexerLogitsInputs inputs(c);
    const IndexerLogits::Args args = inputs.args(c);
    const Bits expected = run(c, args, "ref", 1);
    for (const Candidate& candidate : explain<IndexerLogits>(c.problem())) {
      if (!candidate.refusal.empty()) {
        refused.insert(candidate.name + ": " + candidate.refusal);
        continue;
      }
      SCOPED_TRACE(candidate.name);
      const Bits got = run(c, args, candidate.name, 1);
      expect_close(c, inputs, got, expected);
      ASSERT_EQ(run(c, args, candidate.name, 2), got) << "threads show";
      if (testing::Test::HasFatalFailure()) return;
    }
  }
  for (const std::string& text : refused) std::printf("[ refused  ] indexer_logits %s\n", text.c_str());
}

TEST(IndexerLogitsParity, ARowDoesNotDependOnItsNeighbours) {
  for (const RowFormat* format : {&index_fp8_rows(), &index_mxfp4_rows(), &index_f32_rows()}) {
    const cases::IndexerLogitsCase c{.rows = 23,
                                     .requests = 3,
                                     .heads = 11,
                                     .width = 150,
                                     .block_size = 53,
                                     .format = format,
                                     .lens = {150, 3, 149, 64}};
    const cases::IndexerLogitsInputs inputs(c);
    const IndexerLogits::Args args = inputs.args(c);
    for (const Candidate& candidate : explain<IndexerLogits>(c.problem())) {
      if (!candidate.refusal.empty()) continue;
      const Bits all = run(c, args, candidate.name, 2);
      cases::IndexerLogitsCase one = c;
      one.rows = 1;
      for (std::int64_t row = 0; row < c.rows; ++row) {
        IndexerLogits::Args alone = args;
        alone.q = args.q.slice(0, row, row + 1);
        if (!args.q_scale.absent()) alone.q_scale = args.q_scale.slice(0, row, row + 1);
        alone.weights = args.weights.slice(0, row, row + 1);
        alone.row_to_req = args.row_to_req.slice(0, row, row + 1);
        alone.lens = args.lens.slice(0, row, row + 1);
        const auto begin = all.begin() + row * (c.width + kPadding);
        ASSERT_EQ(run(one, alone, candidate.name, 1), Bits(begin, begin + c.width + kPadding))
            << format->name << " " << candidate.name << " row " << row;
      }
    }
  }
}

TEST(IndexerLogitsParity, HeadBlocksDoNotShow) {
  // Heads of weight 0 add +0, so a row of fewer heads must have the bits of the full one: whatever block its last heads
  // fall into.
  const cases::IndexerLogitsCase full{.rows = 2, .heads = 64, .width = 70, .format = &index_fp8_rows()};
  cases::IndexerLogitsInputs inputs(full);
  for (const Candidate& candidate : explain<IndexerLogits>(full.problem())) {
    if (!candidate.refusal.empty()) continue;
    for (std::int64_t heads = 1; heads < 20; ++heads) {
      cases::IndexerLogitsInputs muted = inputs;
      for (std::size_t i = 0; i < muted.weights.size(); ++i) {
        if (static_cast<std::int64_t>(i) % 64 >= heads) muted.weights[i] = 0;
      }
      cases::IndexerLogitsCase few = full;
      few.heads = heads;
      IndexerLogits::Args args = muted.args(full);
      args.q.shape[1] = heads;  // strided: the other heads are still there
      args.weights.shape[1] = heads;
      ASSERT_EQ(run(few, args, candidate.name, 1), run(full, muted.args(full), candidate.name, 1))
          << candidate.name << " heads " << heads;
    }
  }
}

}  // namespace
}  // namespace smla
