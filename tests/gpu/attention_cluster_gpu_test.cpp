// Sparse attention whose parts of a list a cluster adds up (`sm90_cluster`), on a GPU: calls that it cuts so, held
// against `_ref`.
#include "gpu/attention_gpu.h"

namespace smla {
namespace {

using namespace attention_gpu;

const Way kClusters{.implementation = "sm90_cluster"};

/// How a call is cut, in words.
std::string choice_of(const SparseAttention::Problem& p) {
  const PlanOptions options{.device = DeviceKind::kCuda, .implementation = kClusters.implementation};
  for (const Candidate& c : explain<SparseAttention>(p, options)) {
    if (c.name == kClusters.implementation) return c.choice;
  }
  return "";
}

/// Into how many parts, which a cluster adds up, the lists of a call are cut; 1: no cluster.
int parts_of(const SparseAttention::Problem& p) {
  const std::string choice = choice_of(p);
  const std::string before = "lists in ";
  const std::size_t at = choice.find(before);
  return choice.ends_with("which a cluster of blocks adds up") ? std::stoi(choice.substr(at + before.size())) : 1;
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
  if (device::current_gpu().multiprocessors >= 16) {
    EXPECT_GT(calls_.rbegin()->first, 8) << "a cluster of more than eight blocks";
  }
}

/// Rows that half precision cannot hold lie in some parts of the list, and in whole lists.
TEST_F(AttentionClusters, NumbersPastHalfPrecisionAreRef) {
  for (const std::int64_t heads : {5, 40}) {
    for (const std::int64_t second : {0, 100}) {
      AttentionInputs in = make_inputs({.tokens = 2,
                                        .heads = heads,
                                        .q_magnitude = 0x1p-12F,
                                        .sink = 0.2F,
                                        .scopes = {{.width = 64}, {.width = second}}});
      shift_rows(in.scopes[second > 0 ? 1 : 0], 12);
      check_clusters(in);
    }
  }
  EXPECT_GT(calls_.size(), 1U) << "calls in parts, and whole";
}

/// Blocks that have a multiprocessor to themselves keep several tiles on their way; short and long lists, empty ones,
/// and more tiles than buffers.
TEST_F(AttentionClusters, BlocksWithMoreBuffersAreRef) {
  int deep = 0;
  for (const std::int64_t heads : {8, 20, 64}) {
    for (const std::int64_t second : {0, 63, 640}) {
      AttentionInputs in = make_inputs(
          {.tokens = heads > 32 ? 5 : 8, .heads = heads, .sink = 0.2F, .scopes = {{.width = 70}, {.width = second}}});
      const std::string choice = choice_of(in.problem);
      if (choice.find(" 3 buffers") != std::string::npos || choice.find(" 4 buffers") != std::string::npos) ++deep;
      SCOPED_TRACE(choice);
      check_clusters(in);
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(deep, 0);
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
