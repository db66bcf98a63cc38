// FP8 weights from the checkpoint to the layer's output.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "checkpoint/linear.h"
#include "core/host_tensor.h"
#include "property/fp8_checkpoint.h"
#include "sparsemla/engine.h"
#include "sparsemla/run_check.h"
#include "sparsemla/weights.h"
#include "unit/kept_weights.h"

namespace smla {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

const LoadOptions kKeep{.keep_fp8 = true};

std::set<std::string> kept_names(const LayerTensors& tensors) { return test::names_of(tensors, DType::kE4M3); }

/// Kept weights, dequantised, are the weights as they are loaded otherwise; all other tensors are the same.
void expect_same_numbers(const LayerTensors& kept, const LayerTensors& loaded) {
  const auto check = [&](const std::string& name, const ConstTensorView& got, const ConstTensorView& want) {
    const ConstTensorView& scale = kept.tensors.find(name.substr(0, name.rfind('.')) + ".scale")->second;
    ASSERT_EQ(scale.dtype, DType::kF32);
    for (std::int64_t r = 0; r < want.size(0); ++r) {
      for (std::int64_t c = 0; c < want.size(1); ++c) {
        const double code = static_cast<double>(to_float(got.as<E4M3>()[r * want.size(1) + c]));
        const double step = static_cast<double>(scale.as<float>()[r / 128 * scale.size(1) + c / 128]);
        ASSERT_EQ(bf16_of(code * step).bits, want.as<BF16>()[r * want.size(1) + c].bits)
            << name << " [" << r << ", " << c << "]";
      }
    }
  };
  test::expect_others_same(kept, loaded, DType::kE4M3, check);
}

TEST(Fp8Weights, KeptOnesAreTheNumbersOfTheCheckpoint) {
  const ModelConfig model = test::fp8_model();
  const test::Fp8Checkpoint folder("smla_fp8_kept", model);
  const Checkpoint checkpoint(folder.path());
  for (std::int64_t i = 0; i < model.num_layers; ++i) {
    const LayerTensors kept = checkpoint.load_layer(i, 0, 1, kKeep);
    expect_same_numbers(kept, checkpoint.load_layer(i));
    std::set<std::string> want{"wq_a.weight", "wq_b.weight", "wkv.weight", "wo_a.weight", "wo_b.weight"};
    if (model.layer(i).has_indexer()) want.insert("indexer.wq_b.weight");
    EXPECT_EQ(kept_names(kept), want);
    const LayerWeights weights = layer_weights(kept);
    EXPECT_FALSE(weights.wq_a_scale.absent() || weights.wq_b_scale.absent() || weights.wkv_scale.absent() ||
                 weights.wo_a_scale.absent() || weights.wo_b_scale.absent());
    EXPECT_EQ(weights.index_wq_b_scale.absent(), !model.layer(i).has_indexer());
  }
}

TEST(Fp8Weights, SlicesThatAreNoWholeBlocksAreDequantised) {
  ModelConfig model = test::fp8_model();
  {
    const test::Fp8Checkpoint folder("smla_fp8_slices", model);
    const Checkpoint checkpoint(folder.path());
    for (const int rank : {0, 1}) {
      const LayerTensors slice = checkpoint.load_layer(1, rank, 2, kKeep);
      EXPECT_THAT(kept_names(slice), UnorderedElementsAre("wq_a.weight", "wq_b.weight", "wkv.weight", "wo_a.weight",
                                                          "wo_b.weight", "indexer.wq_b.weight"));
      expect_same_numbers(slice, checkpoint.load_layer(1, rank, 2));
    }
  }
  model.o_lora_rank = 64;  // a group of wo_a is half a block, and so is a rank's part of wo_b
  const test::Fp8Checkpoint folder("smla_fp8_halves", model);
  const Checkpoint checkpoint(folder.path());
  EXPECT_THAT(kept_names(checkpoint.load_layer(0, 0, 1, kKeep)),
              UnorderedElementsAre("wq_a.weight", "wq_b.weight", "wkv.weight", "wo_b.weight"));
  for (const int rank : {0, 1}) {
    const LayerTensors slice = checkpoint.load_layer(0, rank, 2, kKeep);
    EXPECT_THAT(kept_names(slice), UnorderedElementsAre("wq_a.weight", "wq_b.weight", "wkv.weight"));
    expect_same_numbers(slice, checkpoint.load_layer(0, rank, 2));
  }
}

/// A run of `options`, checked by what `expected` says should have run.
CheckReport checked_run(const EngineOptions& options, const EngineOptions& expected) {
  const std::vector<RequestSpec> specs{{.id = 0, .prompt_tokens = 190, .output_tokens = 4},
                                       {.id = 1, .prompt_tokens = 37, .output_tokens = 6}};
  RunCheck check(specs, expected, 9);
  Engine engine(options, &check);
  for (const RequestSpec& spec : specs) engine.submit(spec);
  while (engine.step([] { return 0.0; })) {
  }
  EXPECT_EQ(engine.implementations().find("quantize_rows"), std::string::npos);  // a CPU multiplies inputs as they are
  return check.finish();
}
CheckReport checked_run(const EngineOptions& options) { return checked_run(options, options); }

TEST(Fp8Weights, ALayerComputesWithThem) {
  const ModelConfig model = test::fp8_model();
  const test::Fp8Checkpoint folder("smla_fp8_run", model);
  EngineOptions options;
  options.model = model;
  options.layers = {0, 1, 2};
  options.max_batched_tokens = 96;
  options.num_blocks = 600;
  options.max_model_len = 400;
  options.weights = folder.open();
  for (const Precision precision : {Precision::kBF16, Precision::kF32}) {
    options.layer.precision = precision;
    options.fp8_weights = false;
    const EngineOptions dequantised = options;
    EXPECT_TRUE(checked_run(dequantised).passed);
    options.fp8_weights = true;
    const CheckReport fp8 = checked_run(options);
    EXPECT_TRUE(fp8.passed) << fp8.samples[static_cast<std::size_t>(fp8.worst)].relative_l2 << " of " << fp8.bound;
    // The scales are powers of two: dequantised weights are the same numbers, and neither run rounds inputs to FP8.
    EXPECT_EQ(fp8.bound, precision == Precision::kF32 ? 1e-4 : 0.01);
    EXPECT_TRUE(checked_run(dequantised, options).passed);
  }
  options.layer.precision = Precision::kBF16;
  options.planted_error = PlantedError::kPosition;
  EXPECT_FALSE(checked_run(options).passed);
}

TEST(Fp8Weights, AProfileRunGoesThroughThem) {
  const ModelConfig model = test::fp8_model();
  const test::Fp8Checkpoint folder("smla_fp8_dummy", model);
  const LayerTensors tensors = Checkpoint(folder.path()).load_layer(1, 0, 1, kKeep);
  HostTensor rope(DType::kF32, {300, 64});
  const AttentionLayer layer(tensors.config, layer_weights(tensors), {}, rope.view());
  EXPECT_EQ(layer.options().fp8_output, std::nullopt);
  LayerCaches caches;
  for (const CacheRole role : {CacheRole::kWindow, CacheRole::kCompressed})
    caches[role] = {.format = &fp8_ds_mla_rows(), .block_size = 64};
  const LayerPlan plan = layer.plan(5, 2, 300, caches);
  EXPECT_THAT(plan.describe(), Not(HasSubstr("quantize_rows")));
  EXPECT_GE(layer.reserve_bytes(5, 2, 300, caches), plan.workspace_bytes());
  HostTensor hidden(DType::kBF16, {5, model.hidden_size});
  HostTensor output(DType::kBF16, {5, model.hidden_size});
  std::memset(output.data(), 0xFF, output.bytes());
  HostTensor workspace(DType::kU8, {static_cast<std::int64_t>(plan.workspace_bytes())});
  layer.dummy_run(plan, hidden.view(), output.view(), {.data = workspace.data(), .bytes = workspace.bytes()});
  for (std::int64_t i = 0; i < output.numel(); ++i) ASSERT_EQ(to_float(output.as<BF16>()[i]), 0.0F);
}

TEST(Fp8Weights, ALayerNamesWhatDoesNotFit) {
  const ModelConfig model = test::fp8_model();
  const test::Fp8Checkpoint folder("smla_fp8_bad", model);
  const LayerTensors tensors = Checkpoint(folder.path()).load_layer(0, 0, 1, kKeep);
  const HostTensor rope(DType::kF32, {300, 64});
  const auto text = [&](auto&& change) {
    LayerConfig config = tensors.config;
    LayerWeights weights = layer_weights(tensors);
    change(config, weights);
    try {
      const AttentionLayer layer(config, weights, {}, rope.view());
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(text([](LayerConfig&, LayerWeights&) {}), "no error");
  EXPECT_THAT(text([](LayerConfig&, LayerWeights& w) { w.wkv_scale = {}; }),
              HasSubstr("attention layer: wkv.scale: got"));
  EXPECT_EQ(text([](LayerConfig&, LayerWeights& w) { w.wo_b_scale.shape[0] = 1; }),
            "attention layer: wo_b.scale: got [1, 2] F32, expected [2, 2] F32");
  const HostTensor bf16(DType::kBF16, {128, 256});
  EXPECT_EQ(text([&](LayerConfig&, LayerWeights& w) { w.wq_a = bf16.view(); }),
            "attention layer: wq_a.scale: got [1, 2] F32, expected none: the weight is BF16");
  EXPECT_THAT(text([](LayerConfig&, LayerWeights& w) { w.wq_b_scale.stride[0] = 3; }),
              HasSubstr("wq_b.scale: got strided rows, expected contiguous"));
  const HostTensor codes(DType::kE4M3, {128, 512 * 4});
  EXPECT_EQ(text([&](LayerConfig& c, LayerWeights& w) {
              c.o_lora_rank = 64;
              w.wo_a = codes.view();
            }),
            "attention layer: outputs of a group of wo_a: got 64, expected a multiple of 128 for F8_E4M3 weights");
}

}  // namespace
}  // namespace smla
