// Layers on the GPU: profile runs, which kernels a forward takes, and forwards of several threads.
#include "gpu/layer_gpu.h"

#include <atomic>
#include <iostream>
#include <latch>
#include <map>
#include <string_view>
#include <thread>

#include "device/launch_hook.h"
#include "device/streams.h"
#include "layer/op_planner.h"
#include "ops/call_observer.h"

namespace smla {
namespace {

using namespace layer_gpu;

LayerCaches formats_of_small_caches(const LayerConfig& config) {
  LayerCaches caches;
  caches[CacheRole::kWindow] = {.format = &fp8_ds_mla_rows(), .block_size = 64};
  caches[CacheRole::kCompressed] = {.format = &fp8_ds_mla_rows(), .block_size = 64};
  caches[CacheRole::kIndex] = {.format = &index_fp8_rows(), .block_size = 64};
  caches[CacheRole::kState] = {.format = &state_rows(512, config.has_indexer() ? 2 : 1), .block_size = 4};
  caches[CacheRole::kIndexState] = {.format = &state_rows(128, 2), .block_size = 4};
  return caches;
}

DeviceTensor rope_on_gpu(const LayerConfig& config, std::int64_t positions) {
  const std::vector<float> table = rope_table(config.rope, positions);
  return DeviceTensor::copy_of(DeviceKind::kCuda, view_of(table.data(), {positions, config.rope_head_dim}));
}

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

/// One step of a layer over caches of its own: everything that a thread needs to run it.
struct OwnStep {
  /// Of a request: tokens of the step, and tokens before them.
  struct Request {
    std::int32_t query, before;
  };
  OwnStep(const AttentionLayer& layer_in, const LayerConfig& config,
          const std::vector<Request>& requests = {{1, 3}, {1, 64}, {1, 127}, {1, 254}, {1, 7}})
      : layer(layer_in),
        layout(make_kv_layout({&config, 1}, {})),
        stream(DeviceKind::kCuda),
        pool(layout, 1024, DeviceKind::kCuda),
        metadata(layout, {&config, 1}, FrontEnd::kFlashMla, DeviceKind::kCuda) {
    for (const Request& r : requests) batch.add(r.query, r.before);
    const std::int64_t tokens = batch.start.back();
    out = DeviceTensor(DeviceKind::kCuda, DType::kBF16, {tokens, config.hidden_size});
    batch.close(layout, 0, 1, 5);
    std::int32_t block = 1;  // each block is one request's, in one group
    std::vector<GroupBlock> blocks;
    for (std::size_t group = 0; group < batch.tables.size(); ++group) {
      HostTensor& table = batch.tables[group];
      for (std::int64_t i = 0; i < table.numel(); ++i) {
        blocks.push_back({.block = block, .group = static_cast<int>(group)});
        table.as<std::int32_t>()[i] = block++;
      }
    }
    EXPECT_LE(block, 1024);
    fill_bytes(DeviceKind::kCuda, memory().base, 0, memory_bytes());
    pool.zero(blocks);  // the requests have a past, which is read
    metadata.build(batch.on(DeviceKind::kCuda));
    caches = caches_of(pool, 0);
    plan = layer.plan(metadata.shape(), caches);
    workspace = DeviceMemory(DeviceKind::kCuda, plan.workspace_bytes());
    HostTensor hidden(DType::kBF16, {tokens, config.hidden_size});
    for (std::int64_t t = 0; t < tokens; ++t) synthetic_hidden(1, 0, 0, t, hidden.view().slice(0, t, t + 1));
    in = DeviceTensor::copy_of(DeviceKind::kCuda, hidden.view());
    synchronize(DeviceKind::kCuda);
  }
  void queue(LayerObserver* observer = nullptr) {
    layer.forward(plan, metadata.layer(0), caches, std::as_const(in).view(), out.view(),
                  {.data = workspace.data(), .bytes = workspace.bytes()}, stream.get(), observer);
  }
  std::vector<std::uint16_t> result() {
    synchronize(DeviceKind::kCuda, stream.get());
    std::vector<std::uint16_t> bits(static_cast<std::size_t>(out.bytes() / 2));
    copy_bytes(DeviceKind::kCuda, bits.data(), out.data(), out.bytes());
    return bits;
  }

  /// What is in the caches, all of them: the blocks of the pool but the last.
  PagedCache memory() const { return pool.cache(0, CacheRole::kWindow); }
  std::size_t memory_bytes() const {
    return static_cast<std::size_t>((memory().num_blocks - 1) * memory().block_stride_bytes);
  }
  std::vector<std::uint8_t> contents() const {
    std::vector<std::uint8_t> bytes(memory_bytes());
    copy_bytes(DeviceKind::kCuda, bytes.data(), memory().base, bytes.size());
    return bytes;
  }

  const AttentionLayer& layer;
  KvLayout layout;
  OwnedStream stream;
  KvPool pool;
  StepMetadata metadata;
  DeviceTensor in, out;
  Batch batch;
  LayerCaches caches;
  LayerPlan plan;
  DeviceMemory workspace;
};

std::atomic<int> products{0};
void count_products(const char* kernel) {
  if (std::string_view(kernel) == "projection") ++products;
}

/// A decode step whose weights of one input are computed at once: the same kernel's bits, in four products. With a
/// second stream the indexer's queries are a product of their own.
TEST_F(LayerGpu, JointProductsAreTheSameLayer) {
  for (const LayerConfig& config : small_layers()) {
    const Weights weights(config);
    const DeviceTensor rope = rope_on_gpu(config, 300);
    for (const bool scores : {false, true}) {
      for (const bool side_streams : {false, true}) {
        // The kernel for Hopper beside one setting of the streams.
        const std::string kernel = side_streams && test::has_sm90_stream() ? "sm90_stream" : "cuda_stream";
        SCOPED_TRACE(testing::Message() << config.compress_ratio << " scores " << scores << " " << kernel);
        LayerOptions options{
            .device = DeviceKind::kCuda, .short_context = !scores, .side_streams = side_streams, .implementations = {}};
        options.implementations["projection"] = kernel;
        const AttentionLayer apart(config, weights.placed, options, rope.view());
        options.implementations = {{"joint_projection", kernel}};
        const AttentionLayer joint(config, weights.placed, options, rope.view());
        OwnStep separate(apart, config);
        separate.queue();
        const std::vector<std::uint16_t> want = separate.result();
        OwnStep together(joint, config);
        products = 0;
        device::launch_hook = count_products;
        together.queue();
        device::launch_hook = nullptr;
        const bool chooses = together.plan.describe().find("indexer_q") != std::string::npos;
        EXPECT_EQ(products, side_streams && chooses ? 5 : 4) << together.plan.describe();
        EXPECT_EQ(together.result(), want);
        EXPECT_EQ(together.plan.describe().find(", projection"), std::string::npos) << together.plan.describe();
      }
    }
  }
}

/// A forward that is observed attends by the kernel of one that is not, whichever that is.
TEST_F(LayerGpu, AnObservedForwardHasTheOthersAttentionKernel) {
  std::map<std::string, int> kernels;
  for (LayerConfig config : small_layers()) {
    config.num_heads = 64;
    const Weights weights(config);
    const DeviceTensor rope = rope_on_gpu(config, 300);
    const AttentionLayer layer(config, weights.placed, {.device = DeviceKind::kCuda}, rope.view());
    for (const std::int64_t tokens : {1, 2, 4, 8, 16, 33, 64, 100, 128, 192, 256}) {
      const std::string made = layer.plan(tokens, tokens, 300, formats_of_small_caches(config)).describe();
      const std::string op = "sparse_attention ";
      const std::size_t at = made.find(op);
      ASSERT_NE(at, std::string::npos) << made;
      EXPECT_EQ(made.find(op, at + 1), std::string::npos) << tokens << " tokens: " << made;
      ++kernels[made.substr(at, made.find(',', at) - at)];
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

TEST_F(LayerGpu, FewTokensAreMultipliedByFp8WeightsAsTheyAre) {
  LayerConfig config = small_layers()[0];
  config.hidden_size = 256;
  config.q_lora_rank = config.o_lora_rank = 128;
  const Weights weights(config);
  LayerWeights views = weights.placed;
  std::vector<DeviceTensor> memory;
  const auto fp8 = [&](ConstTensorView& w, ConstTensorView& scale) {
    memory.emplace_back(DeviceKind::kCuda, DType::kE4M3, std::vector<std::int64_t>{w.size(0), w.size(1)});
    w = std::as_const(memory.back()).view();
    memory.emplace_back(DeviceKind::kCuda, DType::kF32, std::vector<std::int64_t>{w.size(0) / 128, w.size(1) / 128});
    scale = std::as_const(memory.back()).view();
  };
  fp8(views.wq_a, views.wq_a_scale), fp8(views.wkv, views.wkv_scale), fp8(views.wq_b, views.wq_b_scale);
  fp8(views.wo_a, views.wo_a_scale), fp8(views.wo_b, views.wo_b_scale);
  const DeviceTensor rope = rope_on_gpu(config, 300);
  const auto rounds = [&](const LayerOptions& options, std::int64_t tokens) {
    const AttentionLayer layer(config, views, options, rope.view());
    const std::string made = layer.plan(tokens, 1, 300, formats_of_small_caches(config)).describe();
    EXPECT_EQ(made.find("quantize_rows") != std::string::npos, layer.rounds_fp8_inputs(tokens)) << made;
    EXPECT_EQ(made.find("inverse_rope_quant") != std::string::npos, layer.rounds_fp8_inputs(tokens)) << made;
    return layer.rounds_fp8_inputs(tokens);
  };
  LayerOptions options{.device = DeviceKind::kCuda, .implementations = {}};
  EXPECT_FALSE(rounds(options, 1));
  constexpr std::int64_t most = 64;  // weights of less than 16 MiB
  EXPECT_FALSE(rounds(options, most));
  EXPECT_TRUE(rounds(options, most + 1));
  options.deterministic = true;
  EXPECT_TRUE(rounds(options, 1));
  options.deterministic = false;
  options.fp8_output = OutputScale::kF32;
  EXPECT_TRUE(rounds(options, 1));
  options.fp8_output.reset();
  options.implementations["joint_projection"] = "cuda_stream";
  EXPECT_FALSE(rounds(options, most + 1));
}

std::atomic<int> output_products{0};
void count_output_products(const char* kernel) {
  if (std::string_view(kernel) == "output_projection") ++output_products;
}

/// Weights in E4M3 in place of others, with numbers of both signs up to 1.75 and scales of an eighth.
struct Fp8Weights {
  void make(ConstTensorView& w, ConstTensorView& scale) {
    const auto rows = w.size(0);
    const auto columns = w.size(1);
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(rows * columns));
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(i * 2654435761U >> 13U & 0xBFU);
    const std::vector<float> scales(static_cast<std::size_t>((rows + 127) / 128 * ((columns + 127) / 128)), 0.125F);
    memory.emplace_back(DeviceKind::kCuda, DType::kE4M3, std::vector<std::int64_t>{rows, columns});
    copy_bytes(DeviceKind::kCuda, memory.back().data(), codes.data(), codes.size());
    w = std::as_const(memory.back()).view();
    memory.emplace_back(DeviceKind::kCuda, DType::kF32,
                        std::vector<std::int64_t>{(rows + 127) / 128, (columns + 127) / 128});
    copy_bytes(DeviceKind::kCuda, memory.back().data(), scales.data(), 4 * scales.size());
    scale = std::as_const(memory.back()).view();
  }
  std::vector<DeviceTensor> memory;
};

/// Outputs of layers that differ in roundings.
void expect_near(const std::vector<std::uint16_t>& got, const std::vector<std::uint16_t>& want) {
  ASSERT_EQ(got.size(), want.size());
  double largest = 0;
  double error = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double w = to_float(BF16{want[i]});
    largest = std::max(largest, std::abs(w));
    error = std::max(error, std::abs(to_float(BF16{got[i]}) - w));
  }
  EXPECT_GT(largest, 0);
  EXPECT_LE(error, largest / 64);
}

std::atomic<int> normed_products{0};
void count_normed_products(const JointProjection::Problem& problem, const JointProjection::Args& /*args*/,
                           const CallPlace& /*place*/, const std::function<void()>& run) {
  normed_products += problem.norms_x ? 1 : 0;
  run();
}

/// Products that norm the latent queries themselves, beside the compressor and the norm of the keys, give the layer of
/// norms ahead of them; a norm's weight in F32 keeps these.
TEST_F(LayerGpu, ProductsThatNormTheQueriesAreTheSameLayer) {
  if (!test::has_sm90_stream()) GTEST_SKIP() << "no kernel for Hopper";
  for (LayerConfig config : small_layers()) {
    config.hidden_size = config.q_lora_rank = 256;
    const Weights weights(config);
    LayerWeights views = weights.placed;
    Fp8Weights fp8;
    fp8.make(views.wq_b, views.wq_b_scale);
    if (config.runs_indexer()) fp8.make(views.index_wq_b, views.index_wq_b_scale);
    ASSERT_EQ(views.q_norm.dtype, DType::kBF16);
    std::vector<float> wide;
    for (std::int64_t i = 0; i < config.q_lora_rank; ++i)
      wide.push_back(to_float(static_cast<const BF16*>(weights.host.views.q_norm.data)[i]));
    const DeviceTensor of_f32 = DeviceTensor::copy_of(DeviceKind::kCuda, view_of(wide.data(), {config.q_lora_rank}));
    LayerWeights apart_views = views;
    apart_views.q_norm = of_f32.view();
    const DeviceTensor rope = rope_on_gpu(config, 300);
    for (const bool scores : {false, true}) {
      for (const bool side_streams : {false, true}) {
        SCOPED_TRACE(testing::Message() << config.compress_ratio << " scores " << scores << " streams "
                                        << side_streams);
        LayerOptions options{.device = DeviceKind::kCuda,
                             .short_context = !scores,
                             .side_streams = side_streams,
                             .implementations = {{"joint_projection", "sm90_stream"}}};
        const AttentionLayer apart(config, apart_views, options, rope.view());
        const AttentionLayer within(config, views, options, rope.view());
        const auto run = [](OwnStep& step) {
          normed_products = 0;
          call_observer<JointProjection>.store(count_normed_products);
          step.queue();
          call_observer<JointProjection>.store(nullptr);
          return step.result();
        };
        OwnStep ahead(apart, config);
        const std::vector<std::uint16_t> want = run(ahead);
        EXPECT_EQ(normed_products, 0);
        OwnStep inside(within, config);
        const std::vector<std::uint16_t> got = run(inside);
        const bool chooses = inside.plan.describe().find("indexer_q") != std::string::npos;
        EXPECT_EQ(normed_products, side_streams && chooses ? 2 : 1) << inside.plan.describe();
        expect_near(got, want);
        EXPECT_TRUE(ahead.contents() == inside.contents()) << "rows in the caches";
        // Who reserves memory for more tokens has enough for a step of few.
        EXPECT_GE(within.reserve_bytes(600, 600, 300, inside.caches), inside.plan.workspace_bytes());
      }
    }
  }
}

/// wo_a and wo_b in one launch give the layer that they give in two.
TEST_F(LayerGpu, OneLaunchOfBothOutputWeightsIsTheSameLayer) {
  const std::string kernel(OutputProjection::kOneLaunch);
  const PlanOptions named{.device = DeviceKind::kCuda, .implementation = kernel};
  const OutputProjection::Problem any{.m = 1, .k = 16, .rank = 128, .n = 1, .wo_a = DType::kE4M3, .wo_b = DType::kE4M3};
  for (const Candidate& c : explain<OutputProjection>(any, named))
    if (c.name == kernel && !c.refusal.empty()) GTEST_SKIP() << c.refusal;
  for (LayerConfig config : small_layers()) {
    config.hidden_size = 256;
    config.o_lora_rank = 128;
    const Weights weights(config);
    LayerWeights views = weights.placed;
    Fp8Weights fp8;
    fp8.make(views.wo_a, views.wo_a_scale), fp8.make(views.wo_b, views.wo_b_scale);
    const DeviceTensor rope = rope_on_gpu(config, 300);
    LayerOptions options{.device = DeviceKind::kCuda, .implementations = {}};
    const AttentionLayer two(config, views, options, rope.view());
    options.implementations["output_projection"] = kernel;
    const AttentionLayer one(config, views, options, rope.view());
    OwnStep apart(two, config);
    apart.queue();
    OwnStep together(one, config);
    output_products = 0;
    device::launch_hook = count_output_products;
    together.queue();
    device::launch_hook = nullptr;
    EXPECT_EQ(output_products, 1) << together.plan.describe();
    const std::vector<std::uint16_t> want = apart.result();
    const std::vector<std::uint16_t> got = together.result();
    expect_near(got, want);
  }
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

/// Inputs of NVFP4 weights are never rounded, and steps of few tokens make one product of each input.
TEST_F(LayerGpu, Nvfp4WeightsAreMultipliedByInputsAsTheyAre) {
  for (LayerConfig config : small_layers()) {
    config.hidden_size = 256;
    config.q_lora_rank = config.o_lora_rank = 128;
    const Weights weights(config);
    LayerWeights views = weights.placed;
    std::vector<DeviceTensor> memory;
    const auto blank = [&](DType dtype, std::vector<std::int64_t> shape) {
      return std::as_const(memory.emplace_back(DeviceKind::kCuda, dtype, std::move(shape))).view();
    };
    for (const WeightSpec& spec : weight_table(config)) {
      if (spec.kind != WeightKind::kLinear) continue;
      spec.view(views) = blank(Projection::kNvfp4, {spec.shape[0], spec.shape[1] / 2});
      spec.scale(views) = blank(DType::kE4M3, {spec.shape[0], spec.shape[1] / Projection::kNvfp4Group});
      spec.global_scale(views) = blank(DType::kF32, {1});
    }
    const DeviceTensor rope = rope_on_gpu(config, 300);
    LayerOptions options{.device = DeviceKind::kCuda, .implementations = {}};
    for (const bool deterministic : {false, true}) {
      options.deterministic = deterministic;
      const AttentionLayer layer(config, views, options, rope.view());
      for (const std::int64_t tokens : {1, 16, 64, 65, 200}) {
        const std::string made = layer.plan(tokens, 1, 300, formats_of_small_caches(config)).describe();
        EXPECT_EQ(made.find("quantize_rows"), std::string::npos) << made;
        EXPECT_EQ(made.find("inverse_rope_quant"), std::string::npos) << made;
        EXPECT_EQ(made.find("joint_projection cuda_stream") != std::string::npos, tokens <= 64 && !deterministic)
            << tokens << " tokens: " << made;
      }
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
