// Two GPUs in one process: what runs on both at once, each from a thread of its own, has the bits of what runs on one
// alone.
#include <cuda_runtime_api.h>

#include <array>
#include <map>
#include <thread>

#include "gpu/gpu_run.h"
#include "property/small_model.h"
#include "sparsemla/engine.h"

namespace smla {
namespace {

constexpr int kGpus = 2;

class TwoGpus : public test::GpuTest {
 protected:
  void SetUp() override {
    test::GpuTest::SetUp();
    if (IsSkipped()) return;
    const std::size_t found = gpus().size();
    if (found < kGpus) GTEST_SKIP() << "this machine has " << found << " GPU, the test needs " << kGpus;
  }
  void TearDown() override { (void)cudaSetDevice(0); }
};

using Digests = std::map<std::int64_t, std::uint64_t>;

/// All three kinds of layer, prompts in chunks, decodes by graphs.
Digests run_engine_on(int gpu, bool deterministic) {
  EXPECT_EQ(cudaSetDevice(gpu), cudaSuccess);
  EngineOptions o;
  o.model = test::small_model();
  o.layers = {0, 1, 2};
  o.layer.device = DeviceKind::kCuda;
  o.layer.deterministic = deterministic;
  o.max_batched_tokens = 64;
  o.max_seqs = 8;
  o.num_blocks = 4000;
  o.max_model_len = 1500;
  Engine engine(o);
  for (const std::int64_t prompt : {3, 130, 64, 300, 1020}) {
    engine.submit({.id = prompt, .prompt_tokens = prompt, .output_tokens = 30});
  }
  while (engine.step([] { return 0.0; })) {
  }
  Digests digests;
  for (const RequestResult& r : engine.results()) {
    EXPECT_EQ(r.state, RequestResult::State::kFinished) << r.refusal;
    digests[r.spec.id] = r.digest;
  }
  return digests;
}

TEST_F(TwoGpus, EnginesAtOnceGiveTheBitsOfOneAlone) {
  for (const bool deterministic : {true, false}) {
    SCOPED_TRACE(testing::Message() << "deterministic " << deterministic);
    const Digests alone = run_engine_on(0, deterministic);
    EXPECT_EQ(run_engine_on(1, deterministic), alone);
    std::array<Digests, kGpus> both;
    std::vector<std::thread> threads;
    for (int gpu = 0; gpu < kGpus; ++gpu) {
      threads.emplace_back([&both, gpu, deterministic] {
        for (int i = 0; i < 3; ++i) both[static_cast<std::size_t>(gpu)] = run_engine_on(gpu, deterministic);
      });
    }
    for (std::thread& t : threads) t.join();
    for (const Digests& digests : both) EXPECT_EQ(digests, alone);
  }
}

/// A thread may change its GPU between calls: each engine was made on its own.
TEST_F(TwoGpus, OneThreadUsesThemInTurn) {
  const Digests first = run_engine_on(1, true);
  const Digests second = run_engine_on(0, true);
  EXPECT_EQ(first, second);
  EXPECT_EQ(run_engine_on(1, true), first);
}

}  // namespace
}  // namespace smla
