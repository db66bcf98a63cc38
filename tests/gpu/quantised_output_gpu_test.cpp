// E4M3 output of attention on a GPU: each implementation writes what InverseRopeQuant makes of its BF16 output.
#include "gpu/attention_gpu.h"
#include "parity/quantised_output_cases.h"

namespace smla {
namespace {

using namespace attention_gpu;

void check(const QuantisedCase& c, AttentionInputs& in, std::map<std::string, int>& ran) {
  for (const Way& way : ways_of(in.problem)) {
    SCOPED_TRACE(testing::PrintToString(way));
    HostTensor o(DType::kBF16, {in.problem.tokens, in.problem.heads, in.problem.out_dim()});
    SparseAttention::Args args = in.args();
    args.o = o.view();
    run_way(in.problem, args, way);
    QuantisedRun want(c, in.problem);
    want.make(c, in.problem, std::as_const(o).view());
    QuantisedRun got(c, in.problem);
    const SparseAttention::Problem problem = got.attach(c, in.problem, args);
    if (const auto names = test::gpu_implementations<SparseAttention>(problem, way.deterministic);
        std::ranges::find(names, way.implementation) == names.end())
      continue;
    run_way(problem, args, way);
    ASSERT_EQ(want.scales, got.scales);
    ASSERT_EQ(want.values, got.values);
    ++ran[way.implementation];
  }
}

TEST_F(AttentionGpu, QuantisedOutputIsInverseRopeQuantOfBf16Output) {
  std::map<std::string, int> ran;
  for (const QuantisedCase& c : quantised_cases()) {
    SCOPED_TRACE(testing::PrintToString(c));
    AttentionInputs in = make_inputs(c.attention);
    check(c, in, ran);
    if (HasFailure()) return;
  }
  const SparseAttention::Problem typical = OpDescription<SparseAttention>::typical();
  for (const std::string& name : test::gpu_implementations<SparseAttention>(typical)) {
    const bool refuses = name == "sm90_small";
    EXPECT_EQ(!refuses, ran[name] > 0) << name;
  }
}

/// Keys that half precision cannot represent, so that the kernels compute in fp32, and enough tokens that a block has
/// several items.
TEST_F(AttentionGpu, QuantisedOutputOfNumbersPastHalfPrecision) {
  std::map<std::string, int> ran;
  const QuantisedCase c{.attention = {.tokens = 9,
                                      .heads = 20,
                                      .scopes = {{.width = 66, .lens = Lens::kAbsent, .invalid = 0}},
                                      .seed = 90},
                        .groups = 5,
                        .scale = OutputScale::kUe8m0x4};
  for (const int shift : {0, 12, 40}) {
    SCOPED_TRACE(shift);
    AttentionInputs in = make_inputs(c.attention);
    shift_rows(in.scopes[0], shift);
    check(c, in, ran);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace smla
