// Layers on the GPU: profile runs, which kernels a forward takes, and forwards of several threads.
#include "gpu/layer_gpu.h"

#include <atomic>
#include <iostream>
#include <latch>
#include <map>
#include <string_view>
#include <thread>

#include "device/gpu.h"
#include "device/launch_hook.h"
#include "layer/op_planner.h"

namespace smla {
namespace {

using namespace layer_gpu;

TEST_F(LayerGpu, AProfileRunTouchesNoCacheAndGivesZeros) {
  for (const LayerConfig& config : small_layers()) {
    const Weights weights(config);
    const DeviceTensor rope = rope_on_gpu(config, 300);
    const AttentionLayer layer(config, weights.placed, {.device = DeviceKind::kCuda}, rope.view());
    const LayerPlan plan = layer.plan(7, 2, 300, formats_of_small_caches(config));
    HostTensor hidden(DType::kBF16, {7, config.hidden_size});
    for (std::int64_t t = 0; t < 7; ++t) synthetic_hidden(1, 0, 0, t, hidden.view().slice(0, t, t + 1));
    const DeviceTensor in = DeviceTensor::copy_of(DeviceKind::kCuda, hidden.view());
    DeviceTensor out(DeviceKind::kCuda, DType::kBF16, {7, config.hidden_size});
    fill_bytes(DeviceKind::kCuda, out.data(), 0x40, out.bytes());
    const DeviceMemory workspace(DeviceKind::kCuda, plan.workspace_bytes());
    fill_bytes(DeviceKind::kCuda, workspace.data(), 0xFF, workspace.bytes());
    layer.dummy_run(plan, in.view(), out.view(), {.data = workspace.data(), .bytes = workspace.bytes()});
    HostTensor made(DType::kBF16, {7, config.hidden_size});
    copy_bytes(DeviceKind::kCuda, made.data(), out.data(), made.bytes());
    for (std::int64_t i = 0; i < made.numel(); ++i) ASSERT_EQ(to_float(made.as<BF16>()[i]), 0.0F);
  }
}

/// A forward that is observed attends by the kernel of one that is not, whichever that is.
TEST_F(LayerGpu, AnObservedForwardHasTheOthersAttentionKernel) {
  std::map<std::string, int> kernels;
  const auto note = [&](const LayerConfig& config, const LayerOptions& options,
                        const std::vector<std::int64_t>& steps) {
    const Weights weights(config);
    const DeviceTensor rope = rope_on_gpu(config, 300);
    const AttentionLayer layer(config, weights.placed, options, rope.view());
    for (const std::int64_t tokens : steps) {
      const std::string made = layer.plan(tokens, tokens, 300, formats_of_small_caches(config)).describe();
      const std::string op = "sparse_attention ";
      const std::size_t at = made.find(op);
      ASSERT_NE(at, std::string::npos) << made;
      EXPECT_EQ(made.find(op, at + 1), std::string::npos) << tokens << " tokens: " << made;
      ++kernels[made.substr(at, made.find(',', at) - at)];
    }
  };
  const std::int64_t wave = device::current_gpu().multiprocessors;
  for (LayerConfig config : small_layers()) {
    config.num_heads = 64;
    note(config, {.device = DeviceKind::kCuda}, {1, 2, 4, 8, 16, 33, 64, 100, 128, 192, 256});
    // With E4M3 output, too, which long steps quantise within attention: 32 heads whose queries are normed in the call
    // take longer by `sm90` than by `cuda`, others less.
    for (const std::int64_t heads : {16, 32, 64}) {
      config.num_heads = heads;
      note(config, {.device = DeviceKind::kCuda, .fp8_output = OutputScale::kF32},
           {513, 600, 8 * wave, 16 * wave, 62 * wave});
    }
  }
  for (const auto& [name, count] : kernels) std::cout << "[ planned ] " << name << ": " << count << "\n";
}

/// Also where a call that makes its queries is cut otherwise than one whose queries are made before: sums would differ.
TEST_F(LayerGpu, AnObservedForwardsAttentionIsCutLikeTheOthers) {
  const LayerOptions options{.device = DeviceKind::kCuda};
  std::size_t scratch = 0;
  std::string text;
  const OpPlanner planner(options, &scratch, &text);
  const auto rows = [](std::int64_t width) {
    return SparseAttention::ScopeShape{.format = &fp8_ds_mla_rows(), .block_size = 64, .width = width};
  };
  int unlike = 0;
  for (const std::int64_t tokens : {1, 8, 16, 32, 40, 48, 56, 64, 96, 128}) {
    SparseAttention::Problem apart{.tokens = tokens, .heads = 64, .scopes = 2};
    apart.scope[0] = rows(128), apart.scope[1] = rows(512);
    SparseAttention::Problem fused = apart;
    fused.query_prologue = SparseAttention::QueryPrologue{.rope_dim = 64};
    const Plan<SparseAttention> others(fused, {.device = DeviceKind::kCuda});
    const auto observed = planner.make<SparseAttention>(apart, fused);
    EXPECT_EQ(observed->implementation(), others.implementation()) << tokens << " tokens";
    EXPECT_EQ(observed->choice(), others.choice()) << tokens << " tokens";
    const Plan<SparseAttention> alone(
        apart, {.device = DeviceKind::kCuda, .implementation = std::string(others.implementation())});
    unlike += alone.choice() != others.choice() ? 1 : 0;
  }
  std::cout << "[ planned ] " << unlike << " of 10 would be cut otherwise\n";
}

/// Who reserves memory for a step has enough for smaller ones: with fewer tokens attention cuts lists into more parts.
TEST_F(LayerGpu, ReservedMemorySufficesForSmallerSteps) {
  for (LayerConfig config : small_layers()) {
    SCOPED_TRACE(config.compress_ratio);
    config.num_heads = 64;
    const Weights weights(config);
    const DeviceTensor rope = rope_on_gpu(config, 300);
    const AttentionLayer layer(config, weights.placed, {.device = DeviceKind::kCuda}, rope.view());
    const LayerCaches caches = formats_of_small_caches(config);
    std::size_t most = 0;
    for (const std::int64_t tokens :
         {1, 2, 8, 16, 17, 32, 33, 64, 65, 100, 128, 132, 133, 140, 192, 264, 265, 300, 400, 512, 513, 600}) {
      for (const std::int64_t length : {100, 5000, 8000, 128'000})
        most = std::max(most, layer.plan(tokens, tokens, length, caches).workspace_bytes());
      EXPECT_GE(layer.reserve_bytes(tokens, tokens, 128'000, caches), most) << tokens;
    }
  }
}

std::atomic<int> quantisers{0};
void count_quantisers(const char* kernel) {
  if (std::string_view(kernel) == "quantise_back") ++quantisers;
}

/// A long step of a layer with an FP8 output projection: attention quantises its output, and the layer's is the same in
/// every bit when it is observed, which it is with a kernel of its own for that.
TEST_F(LayerGpu, AttentionQuantisesTheOutputOfLongSteps) {
  struct Silent : LayerObserver {
    void on_stage(Stage /*stage*/, double /*seconds*/) override {}
    void on_tensor(std::string_view /*name*/, const ConstTensorView& /*value*/, std::int64_t /*row*/) override {}
  } observer;
  const std::string kernel = "sm90";
  const LayerConfig config = small_layers()[0];
  const PlanOptions named{.device = DeviceKind::kCuda, .implementation = kernel};
  for (const Candidate& c : explain<SparseAttention>(OpDescription<SparseAttention>::typical(), named))
    if (c.name == kernel && !c.refusal.empty()) GTEST_SKIP() << c.refusal;
  const Weights weights(config);
  const DeviceTensor rope = rope_on_gpu(config, 1000);
  for (const OutputScale scale : {OutputScale::kF32, OutputScale::kUe8m0x4}) {
    LayerOptions options{.device = DeviceKind::kCuda, .fp8_output = scale, .implementations = {}};
    options.implementations["sparse_attention"] = kernel;
    const AttentionLayer layer(config, weights.placed, options, rope.view());
    // Tokens are no multiple of four, so scales are padded; the second is too short to be quantised by attention.
    for (const auto& requests : {std::vector<OwnStep::Request>{{300, 0}, {229, 5}}, {{301, 0}}}) {
      OwnStep step(layer, config, requests);
      const bool fused = step.batch.start.back() > 512;
      quantisers = 0;
      device::launch_hook = count_quantisers;
      step.queue();
      EXPECT_EQ(quantisers, fused ? 0 : 1);
      const std::vector<std::uint16_t> want = step.result();
      step.queue(&observer);
      device::launch_hook = nullptr;
      EXPECT_EQ(quantisers, fused ? 1 : 2);
      EXPECT_EQ(step.result(), want);
    }
  }
}

/// One layer, two threads: while the capture of one is open, its forward already queued, the other runs a whole
/// forward. The side stream that joined the capture must not be the other's.
TEST_F(LayerGpu, OneThreadRecordsAForwardWhileAnotherRunsOne) {
  for (const LayerConfig& config : small_layers()) {
    if (!config.has_compressor()) continue;  // no side stream
    SCOPED_TRACE(config.compress_ratio);
    const Weights weights(config);
    const DeviceTensor rope = rope_on_gpu(config, 300);
    const AttentionLayer layer(config, weights.placed, {.device = DeviceKind::kCuda}, rope.view());
    OwnStep alone(layer, config);
    alone.queue();
    const std::vector<std::uint16_t> want = alone.result();
    for (int round = 0; round < 3; ++round) {
      OwnStep recorded(layer, config);
      OwnStep beside(layer, config);
      std::latch queued(1);
      std::latch ran(1);
      std::string error;
      std::vector<std::uint16_t> got;
      std::thread other([&] {
        queued.wait();
        try {
          beside.queue();
          got = beside.result();
        } catch (const std::exception& e) {
          error = e.what();
        }
        ran.count_down();
      });
      Graph graph;
      std::string recording_error;
      try {
        graph = Graph(recorded.stream.get(), [&] {
          recorded.queue();
          queued.count_down();
          ran.wait();
        });
      } catch (const std::exception& e) {
        recording_error = e.what();
        if (!queued.try_wait()) queued.count_down();
      }
      other.join();
      ASSERT_EQ(recording_error, "");
      ASSERT_EQ(error, "");
      EXPECT_EQ(got, want) << "the thread that ran";
      graph.launch(recorded.stream.get());
      EXPECT_EQ(recorded.result(), want) << "the thread that recorded";
    }
  }
}

}  // namespace
}  // namespace smla
