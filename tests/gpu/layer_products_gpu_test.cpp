// How a layer on the GPU multiplies by its weights: joint products, norms within them, both output weights in one
// launch, FP8 and NVFP4 weights.
#include <atomic>
#include <string_view>

#include "device/launch_hook.h"
#include "gpu/layer_gpu.h"
#include "ops/call_observer.h"

namespace smla {
namespace {

using namespace layer_gpu;

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

}  // namespace
}  // namespace smla
