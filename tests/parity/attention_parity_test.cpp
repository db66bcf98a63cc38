#include <gtest/gtest.h>

#include "aligned_workspace.h"
#include "parity/accepted.h"
#include "parity/attention_changes.h"
#include "parity/attention_compare.h"
#include "parity/merge_cases.h"
#include "sparsemla/ops/norm_rope.h"

namespace smla {
namespace {

using test::accepted;

using namespace attention_cases;

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

/// On the host tokens that share rows of indices have the bits that they have with rows of their own.
TEST(AttentionParity, SharedRowsAreRowsOfTheirOwn) {
  for (const AttentionCase& c : sharing_cases()) {
    AttentionInputs in = make_inputs(c);
    AttentionInputs alone = with_own_lists(in);
    for (const std::string& name : accepted<SparseAttention>(in.problem)) {
      SCOPED_TRACE(testing::Message() << c << " on " << name);
      const AttentionOutputs want = run(alone, name, 1);
      const AttentionOutputs got = run(in, name, 1);
      ASSERT_EQ(want.o, got.o);
      for (std::int64_t t = 0; t < c.tokens; ++t) {
        for (std::int64_t h = 0; h < c.heads; ++h) ASSERT_EQ(want.lse_of(t, h), got.lse_of(t, h));
      }
    }
  }
}

TEST(AttentionParity, OutputsThatAreNotWantedMayBeAbsent) {
  AttentionInputs in = make_inputs({.heads = 7, .scopes = {{.width = 70}}});
  for (const std::string& name : accepted<SparseAttention>(in.problem)) {
    const AttentionOutputs want = run(in, name, 1);
    const Plan<SparseAttention> plan(in.problem, {.implementation = name, .threads = 1});
    const test::AlignedWorkspace scratch(plan.workspace_bytes());
    AttentionOutputs got(in.problem);
    SparseAttention::Args args = in.args();
    got.attach(args);
    args.lse = {};
    plan.run(args, scratch.get());
    EXPECT_EQ(want.o, got.o) << name;
  }
}

/// With an output epilogue a call ends as InverseRope would end it.
TEST(AttentionParity, RotatingBackIsInverseRope) {
  AttentionInputs in = make_inputs({.tokens = 3, .heads = 7, .out_heads = 9, .scopes = {{.width = 70}}});
  const float cos_sin[] = {0.8F, 0.1F, 0.6F, 0.99F, 1.0F, 0.5F, 0.0F, -0.5F};
  const std::int64_t positions[] = {1, 2, 0};
  SparseAttention::Problem problem = in.problem;
  problem.output_epilogue = {.rope_dim = 4};
  for (const std::string& name : accepted<SparseAttention>(problem)) {
    AttentionOutputs want = run(in, name, 1);
    SparseAttention::Args args = in.args();
    want.attach(args);
    const TensorView turned = args.o.slice(1, 0, 7);
    Plan<InverseRope>({.tokens = 3, .heads = 7, .dim = problem.dim, .rope_dim = 4}, {.implementation = "ref"})
        .run({.x = turned, .positions = view_of(positions, {3}), .cos_sin = view_of(cos_sin, {2, 4}), .y = turned});
    const Plan<SparseAttention> plan(problem, {.implementation = name, .threads = 1});
    const test::AlignedWorkspace scratch(plan.workspace_bytes());
    AttentionOutputs got(problem);
    args = in.args();
    got.attach(args);
    args.output_epilogue = {.positions = view_of(positions, {3}), .cos_sin = view_of(cos_sin, {2, 4})};
    plan.run(args, scratch.get());
    EXPECT_EQ(want.o, got.o) << name;
  }
}

/// With a query prologue a call begins as QNormRopeInsert would begin it; of a position without a row q is used as it
/// is.
TEST(AttentionParity, QueriesMadeInTheCallAreQNormRopeInserts) {
  for (const DType q : {DType::kBF16, DType::kF32}) {
    AttentionInputs in = make_inputs({.tokens = 3, .heads = 7, .out_heads = 9, .q = q, .scopes = {{.width = 70}}});
    const float cos_sin[] = {0.8F, 0.1F, 0.6F, 0.99F, 1.0F, 0.5F, 0.0F, -0.5F};
    const std::int64_t positions[] = {1, 2, 0};
    SparseAttention::Problem problem = in.problem;
    problem.query_prologue = {.rope_dim = 4, .eps = 1e-3F};
    for (const std::string& name : accepted<SparseAttention>(problem)) {
      const SparseAttention::Args args = in.args();
      HostTensor queries(q, {3, 7, problem.dim});
      copy_heads(args.q, queries);
      Plan<QNormRopeInsert>({.tokens = 3,
                             .heads = 7,
                             .out_heads = 7,
                             .dim = problem.dim,
                             .rope_dim = 4,
                             .in = q,
                             .q_out = q,
                             .eps = 1e-3F},
                            {.implementation = name == "ref" ? "ref" : "cpu"})
          .run({.q = queries.view(),
                .positions = view_of(positions, {3}),
                .cos_sin = view_of(cos_sin, {2, 4}),
                .q_out = queries.view()});
      const auto run_with = [&](const SparseAttention::Problem& p, SparseAttention::Args a, AttentionOutputs& out) {
        const Plan<SparseAttention> plan(p, {.implementation = name, .threads = 1});
        const test::AlignedWorkspace scratch(plan.workspace_bytes());
        out.attach(a);
        plan.run(a, scratch.get());
      };
      AttentionOutputs want(problem);
      SparseAttention::Args ready = args;
      ready.q = std::as_const(queries).view();
      run_with(in.problem, ready, want);
      AttentionOutputs got(problem);
      SparseAttention::Args raw = args;
      raw.query_prologue = {.positions = view_of(positions, {3}), .cos_sin = view_of(cos_sin, {2, 4})};
      run_with(problem, raw, got);
      EXPECT_EQ(want.o, got.o) << name;
    }
  }
}

/// Prologue and epilogue have dims, positions and a table each: both together are the one and then the other.
TEST(AttentionParity, PrologueAndEpilogueRotateApart) {
  AttentionInputs in = make_inputs({.tokens = 3, .heads = 7, .scopes = {{.width = 70}}});
  const float q_table[] = {0.8F, 0.1F, 0.6F, 0.99F, 1.0F, 0.5F, 0.0F, -0.5F};
  const float o_table[] = {0.5F, -0.8F};
  const std::int64_t q_positions[] = {1, 0, 1};
  const std::int64_t o_positions[] = {0, 7, 0};
  SparseAttention::Problem first = in.problem;
  first.query_prologue = {.rope_dim = 4};
  SparseAttention::Problem both = first;
  both.output_epilogue = {.rope_dim = 2};
  SparseAttention::Args args = in.args();
  args.query_prologue = {.positions = view_of(q_positions, {3}), .cos_sin = view_of(q_table, {2, 4})};
  args.output_epilogue = {.positions = view_of(o_positions, {3}), .cos_sin = view_of(o_table, {1, 2})};
  for (const std::string& name : accepted<SparseAttention>(both)) {
    const auto run_with = [&](const SparseAttention::Problem& p, AttentionOutputs& out) {
      const Plan<SparseAttention> plan(p, {.implementation = name, .threads = 1});
      const test::AlignedWorkspace scratch(plan.workspace_bytes());
      out.attach(args);
      plan.run(args, scratch.get());
    };
    AttentionOutputs want(both);
    run_with(first, want);
    const TensorView heads = args.o.slice(1, 0, 7);
    Plan<InverseRope>({.tokens = 3, .heads = 7, .dim = both.dim, .rope_dim = 2}, {.implementation = "ref"})
        .run({.x = heads,
              .positions = args.output_epilogue.positions,
              .cos_sin = args.output_epilogue.cos_sin,
              .y = heads});
    AttentionOutputs got(both);
    run_with(both, got);
    EXPECT_EQ(want.o, got.o) << name;
  }
}

TEST(MergePartialsParity, EveryImplementationAgreesWithTheReference) {
  for (const MergeCase& c : merge_cases()) {
    const MergeInputs in(c);
    const auto merge = [&](const std::string& name) {
      AttentionOutputs out(c.shape());
      Plan<MergePartials>(c.problem(), {.implementation = name, .threads = 3}).run(in.args(out));
      return out;
    };
    const AttentionOutputs want = merge("ref");
    for (const std::string& name : accepted<MergePartials>(c.problem())) {
      SCOPED_TRACE(testing::Message() << c << " on " << name);
      expect_parity(want, merge(name));
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace smla
