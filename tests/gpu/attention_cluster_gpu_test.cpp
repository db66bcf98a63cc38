// Sparse attention whose parts of a list a cluster adds up (`sm90_cluster`), on a GPU: calls that it cuts so, held
// against `_ref`.
#include "gpu/attention_gpu.h"

namespace smla {
namespace {

using namespace attention_gpu;

const Way kClusters{.implementation = "sm90_cluster"};

/// Into how many parts, which a cluster adds up, the lists of a call are cut; 1: no cluster.
int parts_of(const SparseAttention::Problem& p) {
  for (const Candidate& c :
       explain<SparseAttention>(p, {.device = DeviceKind::kCuda, .implementation = "sm90_cluster"})) {
    const std::size_t at = c.choice.find("lists in ");
    if (c.name == "sm90_cluster" && c.choice.ends_with("which a cluster of blocks adds up"))
      return std::stoi(c.choice.substr(at + std::string("lists in ").size()));
  }
  return 1;
}

class AttentionClusters : public AttentionGpu {
 protected:
  void SetUp() override {
    AttentionGpu::SetUp();
    if (IsSkipped()) return;
    const std::vector<std::string> names =
        test::gpu_implementations<SparseAttention>(problem_of({.tokens = 1, .scopes = {{.width = 640}}}));
    if (std::ranges::find(names, "sm90_cluster") == names.end())
      GTEST_SKIP() << "no clusters: this GPU's compute capability is not 9.0";
  }
  void check_clusters(AttentionInputs& in) {
    const AttentionOutputs want = attention_cases::run(in, "ref", 1);
    expect_parity(want, run_device(in, kClusters), bound_of(kClusters));
    ++calls_[parts_of(in.problem)];
  }
  std::map<int, int> calls_;  ///< by parts
};

TEST_F(AttentionClusters, HeadsByWidthsAreRef) {
  unsigned i = 0;
  for (const std::int64_t heads : {1, 9, 16, 17, 64, 128}) {
    for (const std::int64_t width : {65, 128, 200, 640, 1152}) {
      AttentionCase c{.tokens = heads > 64 ? 1 : 2, .heads = heads, .seed = 300 + i};
      if (i % 3 == 1) c.out_heads = heads + 3;
      if (i % 4 == 2) c.q = DType::kE4M3, c.q_scale = 0.71F;
      if (i % 5 == 3)
        c.partial = true, c.o = DType::kF32;
      else if (i % 2 == 0)
        c.sink = 0.4F;
      const char* format = i % 7 == 6 ? "bf16" : (i % 7 == 3 ? "fp8_per_tensor" : "fp8_ds_mla");
      c.scopes = {{.format = format, .width = std::min<std::int64_t>(width, 128), .lens = Lens::kMixed}};
      if (width > 128) c.scopes.push_back({.format = format, .width = width - 128, .lens = Lens::kMixed});
      SCOPED_TRACE(testing::PrintToString(c));
      AttentionInputs in = make_inputs(c);
      check_clusters(in);
      if (HasFailure()) return;
      ++i;
    }
  }
  EXPECT_GT(calls_[2], 0);
  EXPECT_GT(calls_.rbegin()->first, 8) << "a cluster of more than eight blocks";
}

/// Rows that half precision cannot hold lie in one part of the list, in all, or in none of a token's.
TEST_F(AttentionClusters, NumbersPastHalfPrecisionAreRef) {
  for (const std::int64_t heads : {5, 40}) {
    AttentionInputs in = make_inputs({.tokens = 3,
                                      .heads = heads,
                                      .q_magnitude = 0x1p-12F,
                                      .sink = 0.2F,
                                      .scopes = {{.width = 128}, {.width = 300}}});
    shift_rows(in.scopes[1], 12);
    check_clusters(in);
  }
  EXPECT_EQ(calls_[1], 0);
}

TEST_F(AttentionClusters, TwentyRepeatsAreTheSameBits) {
  AttentionInputs in =
      make_inputs({.tokens = 2, .heads = 64, .sink = 0.2F, .scopes = {{.width = 128}, {.width = 512}}});
  ASSERT_GT(parts_of(in.problem), 1);
  const AttentionOutputs first = run_device(in, kClusters);
  for (int i = 0; i < 20; ++i) expect_same_bits(first, run_device(in, kClusters));
}

}  // namespace
}  // namespace smla
