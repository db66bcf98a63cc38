#include <gtest/gtest.h>

#include <iostream>
#include <set>

#include "parity/attention_cases.h"

namespace smla {
namespace {

using namespace attention_cases;

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

/// Place of a float on the line of bfloat16 numbers.
int bf16_place(float v) {
  const int bits = to_bf16(v).bits;
  return (bits & 0x8000) != 0 ? -(bits & 0x7FFF) : bits;
}

void expect_same_lse(float want, float got) {
  if (std::isinf(want) || std::isinf(got)) {
    ASSERT_EQ(want, got);
  } else {
    ASSERT_LE(std::fabs(want - got), 1e-5F * std::max(1.0F, std::fabs(want)));
  }
}

/// BF16: l2 2.2e-3 over the tensor, each element within one ulp or 4e-3 of its row's largest. F32: l2 1e-5. Padded heads are +0.
void expect_parity(const AttentionOutputs& want, const AttentionOutputs& got) {
  const SparseAttention::Problem& p = want.problem;
  const bool bf16 = p.o == DType::kBF16;
  double error = 0;
  double norm = 0;
  for (std::int64_t t = 0; t < p.tokens; ++t) {
    for (std::int64_t h = 0; h < p.padded_heads(); ++h) {
      float largest = 0;
      for (std::int64_t d = 0; d < p.dim; ++d) largest = std::max(largest, std::fabs(want.value(t, h, d)));
      for (std::int64_t d = 0; d < p.dim; ++d) {
        const float w = want.value(t, h, d);
        const float g = got.value(t, h, d);
        ASSERT_TRUE(std::isfinite(w) && std::isfinite(g)) << "token " << t << " head " << h << " dim " << d << ": " << w << " and " << g;
        ASSERT_TRUE(h < p.heads || (g == 0 && !std::signbit(g))) << "padded head " << h;
        if (bf16 && std::abs(bf16_place(w) - bf16_place(g)) > 1) {
          ASSERT_LE(std::fabs(w - g), 4e-3F * largest) << "token " << t << " head " << h << " dim " << d;
        }
        error += (static_cast<double>(w) - g) * (static_cast<double>(w) - g);
        norm += static_cast<double>(w) * w;
      }
      if (h < p.heads) expect_same_lse(want.lse_of(t, h), got.lse_of(t, h));
    }
  }
  ASSERT_LE(std::sqrt(error), (bf16 ? 2.2e-3 : 1e-5) * std::sqrt(norm));
  ASSERT_TRUE(got.gaps_untouched());
}

TEST(AttentionParity, EveryImplementationAgreesWithTheReference) {
  for (const AttentionCase& c : attention_cases::attention_cases()) {
    AttentionInputs in = make_inputs(c);
    const AttentionOutputs want = run(in, "ref", 1);
    ASSERT_TRUE(want.gaps_untouched()) << c;
    for (const std::string& name : accepted<SparseAttention>(in.problem)) {
      if (name == "ref") continue;
      for (const int threads : {1, 3}) {
        SCOPED_TRACE(testing::Message() << c << " on " << name << " with " << threads << " threads");
        const AttentionOutputs got = run(in, name, threads);
        expect_parity(want, got);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(AttentionParity, OutputsThatAreNotWantedMayBeAbsent) {
  AttentionInputs in = make_inputs({.heads = 7, .scopes = {{.width = 70}}});
  for (const std::string& name : accepted<SparseAttention>(in.problem)) {
    const AttentionOutputs want = run(in, name, 1);
    const Plan<SparseAttention> plan(in.problem, {.implementation = name, .threads = 1});
    std::vector<float> scratch(plan.workspace_bytes() / sizeof(float));
    AttentionOutputs got(in.problem);
    SparseAttention::Args args = in.args();
    got.attach(args);
    args.lse = {};
    plan.run(args, {.data = scratch.data(), .bytes = plan.workspace_bytes()});
    EXPECT_EQ(want.o, got.o) << name;
  }
}

struct MergeCase {
  std::int64_t slices, tokens, heads;
  int dim = 512;
  DType o = DType::kBF16;
  double empty = 0.2;  ///< share of slices without a key; what they hold is NaN
  std::optional<float> sink = std::nullopt;
};

TEST(MergePartialsParity, EveryImplementationAgreesWithTheReference) {
  std::vector<MergeCase> cases;
  for (const std::int64_t slices : {0, 1, 2, 7, 64}) {
    for (const DType o : {DType::kBF16, DType::kF32}) {
      for (const float sink : {-kInf, -20.0F, 0.0F, 20.0F, kInf}) cases.push_back({slices, 3, 5, 512, o, 0.3, sink});
      cases.push_back({slices, 2, 7, 130, o, 0.0, std::nullopt});
      cases.push_back({slices, 2, 3, 1, o, 1.0, 0.0F});
    }
  }
  cases.push_back({3, 0, 4});
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const MergeCase& c = cases[i];
    std::mt19937_64 random(i);
    std::normal_distribution<float> normal;
    const std::int64_t rows = c.slices * c.tokens * c.heads;
    std::vector<float> partial_o(static_cast<std::size_t>(rows * c.dim));
    std::vector<float> partial_lse(static_cast<std::size_t>(rows));
    for (std::size_t r = 0; r < partial_lse.size(); ++r) {
      const bool empty = static_cast<double>(random() % 1000) < 1000 * c.empty;
      partial_lse[r] = empty ? -kInf : 3 * normal(random);
      for (int d = 0; d < c.dim; ++d) {
        partial_o[r * static_cast<std::size_t>(c.dim) + static_cast<std::size_t>(d)] =
            empty ? std::numeric_limits<float>::quiet_NaN() : normal(random);
      }
    }
    std::vector<float> sink(static_cast<std::size_t>(c.heads), c.sink.value_or(0));
    const MergePartials::Problem problem{.slices = c.slices, .tokens = c.tokens, .heads = c.heads, .dim = c.dim, .o = c.o};
    const SparseAttention::Problem shape{.tokens = c.tokens, .heads = c.heads, .dim = c.dim, .o = c.o};
    const auto merge = [&](const std::string& name) {
      AttentionOutputs out(shape);
      SparseAttention::Args views;
      out.attach(views);
      MergePartials::Args args{.partial_o = view_of(static_cast<const float*>(partial_o.data()), {c.slices, c.tokens, c.heads, c.dim}),
                               .partial_lse = view_of(static_cast<const float*>(partial_lse.data()), {c.slices, c.tokens, c.heads}),
                               .sink = {},
                               .o = views.o,
                               .lse = views.lse};
      if (c.sink) args.sink = view_of(static_cast<const float*>(sink.data()), {c.heads});
      Plan<MergePartials>(problem, {.implementation = name, .threads = 3}).run(args);
      return out;
    };
    const AttentionOutputs want = merge("ref");
    for (const std::string& name : accepted<MergePartials>(problem)) {
      SCOPED_TRACE(testing::Message() << "case " << i << " on " << name);
      expect_parity(want, merge(name));
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace smla
