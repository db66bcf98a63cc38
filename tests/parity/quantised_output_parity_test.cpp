// E4M3 output of attention on the CPU: each implementation writes what InverseRopeQuant makes of its BF16 output.
#include <gmock/gmock.h>

#include "aligned_workspace.h"
#include "parity/quantised_output_cases.h"
#include "sparsemla/error.h"

namespace smla {
namespace {

using namespace attention_cases;
using testing::HasSubstr;

void run(const Plan<SparseAttention>& plan, const SparseAttention::Args& args) {
  const test::AlignedWorkspace workspace(plan.workspace_bytes());
  plan.run(args, workspace.get());
}

TEST(QuantisedOutputParity, IsInverseRopeQuantOfBf16Output) {
  for (const QuantisedCase& c : quantised_cases()) {
    SCOPED_TRACE(testing::PrintToString(c));
    AttentionInputs in = make_inputs(c.attention);
    for (const Candidate& candidate : explain<SparseAttention>(in.problem)) {
      if (!candidate.refusal.empty()) continue;
      SCOPED_TRACE(candidate.name);
      HostTensor o(DType::kBF16, {in.problem.tokens, in.problem.heads, in.problem.out_dim()});
      SparseAttention::Args args = in.args();
      args.o = o.view();
      run(Plan<SparseAttention>(in.problem, {.implementation = candidate.name}), args);
      QuantisedRun want(c, in.problem);
      want.make(c, in.problem, std::as_const(o).view());
      QuantisedRun got(c, in.problem);
      const SparseAttention::Problem problem = got.attach(c, in.problem, args);
      run(Plan<SparseAttention>(problem, {.implementation = candidate.name}), args);
      ASSERT_EQ(want.values, got.values);
      ASSERT_EQ(want.scales, got.scales);
    }
  }
}

TEST(QuantisedOutputParity, ErrorsNameWhatIsWrong) {
  const auto text_of = [](const auto& f) -> std::string {
    try {
      f();
    } catch (const InvalidArgument& e) {
      return e.what();
    }
    return "no error";
  };
  const QuantisedCase c = quantised_cases().front();
  AttentionInputs in = make_inputs(c.attention);
  SparseAttention::Args args = in.args();
  QuantisedRun run_of(c, in.problem);
  const SparseAttention::Problem good = run_of.attach(c, in.problem, args);
  const auto planned = [&](auto&& change) {
    SparseAttention::Problem p = good;
    change(p);
    return text_of([&] { Plan<SparseAttention>{p}; });
  };
  using P = SparseAttention::Problem;
  EXPECT_EQ(planned([](P&) {}), "no error");
  EXPECT_THAT(planned([](P& p) { p.output_epilogue->groups = 3; }),
              HasSubstr("output_epilogue.groups: got 3, expected 0 or a divisor of 8"));
  EXPECT_THAT(planned([](P& p) { p.o = DType::kBF16; }),
              HasSubstr("o dtype: got BF16, expected F8_E4M3 with output_epilogue.groups"));
  EXPECT_THAT(planned([](P& p) { p.output_epilogue->groups = 0; }), HasSubstr("o dtype: got F8_E4M3"));
  EXPECT_THAT(planned([](P& p) { p.out_heads = 9; }), HasSubstr("out_heads: got 9, expected 8"));
  EXPECT_THAT(planned([](P& p) { p.value_dim = 320; }), HasSubstr("value_dim: got 320, expected a multiple of 128"));
  const Plan<SparseAttention> plan(good);
  const auto ran = [&](auto&& change) {
    SparseAttention::Args a = args;
    change(a);
    return text_of([&] { run(plan, a); });
  };
  using A = SparseAttention::Args;
  EXPECT_THAT(ran([](A& a) { a.output_epilogue.scales = {}; }), HasSubstr("output_epilogue.scales"));
  EXPECT_THAT(ran([](A& a) { a.output_epilogue.scales = a.output_epilogue.scales.slice(2, 0, 0); }),
              HasSubstr("columns of output_epilogue.scales: got 0, expected at least 1"));
  EXPECT_THAT(ran([](A& a) { a.o = a.o.slice(0, 0, 1); }), HasSubstr("o: got [1, 1, 2048]"));
}

}  // namespace
}  // namespace smla
