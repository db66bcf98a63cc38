// NVFP4 weights from the checkpoint to the layer's output.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "checkpoint/linear.h"
#include "core/host_tensor.h"
#include "property/fp8_checkpoint.h"
#include "sparsemla/engine.h"
#include "sparsemla/error.h"
#include "sparsemla/ops/projection.h"
#include "sparsemla/run_check.h"
#include "sparsemla/weights.h"
#include "unit/kept_weights.h"

namespace smla {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

const LoadOptions kKeep{.keep_nvfp4 = true};

std::set<std::string> kept_names(const LayerTensors& tensors) { return test::names_of(tensors, Projection::kNvfp4); }

const std::set<std::string> kOfEveryLayer{"wq_a.weight", "wq_b.weight", "wkv.weight", "wo_a.weight", "wo_b.weight"};

std::set<std::string> linear_names(const LayerConfig& config) {
  std::set<std::string> names = kOfEveryLayer;
  if (config.has_compressor()) names.insert({"compressor.wkv.weight", "compressor.wgate.weight"});
  if (config.has_indexer()) {
    names.insert({"indexer.compressor.wkv.weight", "indexer.compressor.wgate.weight", "indexer.wq_b.weight",
                  "indexer.weights_proj.weight"});
  }
  return names;
}

/// Kept weights, dequantised, are the weights as they are loaded otherwise; all other tensors are the same.
void expect_same_numbers(const LayerTensors& kept, const LayerTensors& loaded) {
  const auto check = [&](const std::string& name, const ConstTensorView& got, const ConstTensorView& want) {
    const std::string stem = name.substr(0, name.rfind('.'));
    const ConstTensorView& scale = kept.tensors.at(stem + ".weight_scale");
    const ConstTensorView& global = kept.tensors.at(stem + ".weight_scale_2");
    ASSERT_EQ(got.size(1), want.size(1) / 2) << name;
    ASSERT_EQ(scale.size(1), want.size(1) / 16) << name;
    ASSERT_EQ(describe(global), "[1] F32") << name;
    for (std::int64_t i = 0; i < want.numel(); ++i) {
      const unsigned byte = got.as<std::uint8_t>()[i / 2];
      const double code =
          static_cast<double>(from_e2m1(static_cast<std::uint8_t>(i % 2 == 0 ? byte & 15U : byte >> 4U)));
      const double step = static_cast<double>(to_float(scale.as<E4M3>()[i / 16]));
      ASSERT_EQ(bf16_of(code * step * static_cast<double>(global.as<float>()[0])).bits, want.as<BF16>()[i].bits)
          << name << " " << i;
    }
  };
  test::expect_others_same(kept, loaded, Projection::kNvfp4, check);
}

TEST(Nvfp4Weights, KeptOnesAreTheNumbersOfTheCheckpoint) {
  const ModelConfig model = test::fp8_model();
  const test::Nvfp4Checkpoint folder("smla_nvfp4_kept", model);
  const Checkpoint checkpoint(folder.path());
  for (std::int64_t i = 0; i < model.num_layers; ++i) {
    const LayerTensors kept = checkpoint.load_layer(i, 0, 1, kKeep);
    expect_same_numbers(kept, checkpoint.load_layer(i));
    EXPECT_EQ(kept_names(kept), linear_names(model.layer(i)));
    // An option of the other format keeps none.
    EXPECT_TRUE(kept_names(checkpoint.load_layer(i, 0, 1, {.keep_fp8 = true})).empty());
    // Each scale of all is where a layer looks for it.
    const LayerWeights w = layer_weights(kept);
    EXPECT_EQ(w.wkv_global_scale.data, kept.tensors.at("wkv.weight_scale_2").data);
    EXPECT_EQ(w.wo_b_scale.data, kept.tensors.at("wo_b.weight_scale").data);
    if (!model.layer(i).has_indexer()) continue;
    EXPECT_EQ(w.index_compressor.wgate_global_scale.data,
              kept.tensors.at("indexer.compressor.wgate.weight_scale_2").data);
    EXPECT_EQ(w.index_weights_proj_scale.data, kept.tensors.at("indexer.weights_proj.weight_scale").data);
  }
}

TEST(Nvfp4Weights, SlicesThatCutAGroupOfInputsAreDequantised) {
  ModelConfig model = test::fp8_model();
  {
    const test::Nvfp4Checkpoint folder("smla_nvfp4_slices", model);
    const Checkpoint checkpoint(folder.path());
    for (const int rank : {0, 1}) {
      const LayerTensors slice = checkpoint.load_layer(1, rank, 2, kKeep);
      EXPECT_EQ(kept_names(slice), linear_names(model.layer(1)));
      expect_same_numbers(slice, checkpoint.load_layer(1, rank, 2));
    }
  }
  model.o_lora_rank = 24;  // a rank's part of wo_b has 24 inputs; outputs are cut anywhere
  const test::Nvfp4Checkpoint folder("smla_nvfp4_cut", model);
  const Checkpoint checkpoint(folder.path());
  EXPECT_EQ(kept_names(checkpoint.load_layer(0, 0, 1, kKeep)), kOfEveryLayer);
  for (const int rank : {0, 1}) {
    const LayerTensors slice = checkpoint.load_layer(0, rank, 2, kKeep);
    EXPECT_THAT(kept_names(slice), UnorderedElementsAre("wq_a.weight", "wq_b.weight", "wkv.weight", "wo_a.weight"));
    expect_same_numbers(slice, checkpoint.load_layer(0, rank, 2));
  }
}

/// FP8 weights, NVFP4 ones and others in one layer: each option keeps its own. wkv and wgate of a compressor are one
/// dtype in a layer.
TEST(Nvfp4Weights, EachWeightIsKeptByItself) {
  ModelConfig model = test::fp8_model();
  const test::EncodedCheckpoint folder("smla_nvfp4_mixed", model, [](std::string_view name) {
    if (name == "wq_a.weight" || name == "wo_b.weight") return LinearEncoding::kFp8;
    const bool plain = name == "compressor.wgate.weight" || name == "indexer.weights_proj.weight";
    return plain ? LinearEncoding::kPlain : LinearEncoding::kNvfp4;
  });
  const Checkpoint checkpoint(folder.path());
  const LayerTensors nvfp4 = checkpoint.load_layer(1, 0, 1, kKeep);
  EXPECT_THAT(kept_names(nvfp4),
              UnorderedElementsAre("wkv.weight", "wq_b.weight", "wo_a.weight", "indexer.wq_b.weight",
                                   "indexer.compressor.wkv.weight", "indexer.compressor.wgate.weight"));
  expect_same_numbers(nvfp4, checkpoint.load_layer(1));
  const LayerTensors both = checkpoint.load_layer(1, 0, 1, {.keep_fp8 = true, .keep_nvfp4 = true});
  EXPECT_EQ(kept_names(both), kept_names(nvfp4));
  EXPECT_EQ(both.tensors.at("wq_a.weight").dtype, DType::kE4M3);
  EXPECT_EQ(both.tensors.at("compressor.wkv.weight").dtype, DType::kBF16);
}

/// What dequantisation refuses is refused of kept weights, too.
TEST(Nvfp4Weights, DamagedNumbersAreNamed) {
  ModelConfig model = test::fp8_model();
  model.num_layers = 1;
  model.compress_ratios = {0};
  const test::Nvfp4Checkpoint folder("smla_nvfp4_damaged", model);
  const std::string path = folder.path() + "/model.safetensors";
  const auto text = [&](const LoadOptions& options) {
    try {
      Checkpoint(folder.path()).load_layer(0, 0, 1, options);
    } catch (const IoError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const auto change = [&](const std::string& name, std::int64_t at, const std::string& bytes) {
    const std::int64_t begin = SafetensorsFile(path).tensors().at(name).begin;
    std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(begin + at) << bytes;
  };
  EXPECT_EQ(text(kKeep), "no error");
  change("layers.0.attn.wkv.weight_scale", 5, "\x7F");
  EXPECT_THAT(text(kKeep), HasSubstr("wkv.weight_scale: got nan at [0, 5], expected a finite scale"));
  EXPECT_EQ(text(kKeep), text({}));
  change("layers.0.attn.wkv.weight_scale", 5, "\x38");
  change("layers.0.attn.wo_b.weight_scale_2", 0, {"\0\0\0\x80", 4});
  EXPECT_THAT(text(kKeep), HasSubstr("wo_b.weight_scale_2: got -0.000000 at [0], expected one positive scale"));
  EXPECT_EQ(text(kKeep), text({}));
  change("layers.0.attn.wo_b.weight_scale_2", 0, {"\0\0\x80\x7E", 4});  // 2^126
  EXPECT_THAT(text(kKeep), HasSubstr("wo_b.weight: got"));
  EXPECT_EQ(text(kKeep), text({}));
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
  return check.finish();
}
CheckReport checked_run(const EngineOptions& options) { return checked_run(options, options); }

double worst_of(const CheckReport& report) {
  return report.samples[static_cast<std::size_t>(report.worst)].relative_l2;
}

TEST(Nvfp4Weights, ALayerComputesWithThem) {
  const ModelConfig model = test::fp8_model();
  const test::Nvfp4Checkpoint folder("smla_nvfp4_run", model);
  EngineOptions options;
  options.model = model;
  options.layers = {0, 1, 2};
  options.max_batched_tokens = 96;
  options.num_blocks = 600;
  options.max_model_len = 400;
  options.weights = folder.open();
  options.nvfp4_weights = true;
  EngineOptions dequantised = options;
  dequantised.nvfp4_weights = false;
  for (const char* projections : {"", "cpu"}) {
    for (const bool joint : {false, true}) {
      EngineOptions run = options;
      if (*projections != 0) run.layer.implementations["projection"] = projections;
      if (joint) run.layer.implementations["joint_projection"] = "cpu";
      const CheckReport report = checked_run(run);
      EXPECT_TRUE(report.passed) << projections << ": " << worst_of(report) << " of " << report.bound;
      EXPECT_EQ(report.bound, 0.01);
    }
  }
  // Dequantised weights are rounded to bf16, 2^-9 of each at most.
  options.layer.precision = dequantised.layer.precision = Precision::kF32;
  const CheckReport f32 = checked_run(options);
  EXPECT_TRUE(f32.passed) << worst_of(f32);
  EXPECT_EQ(f32.bound, 1e-4);
  EXPECT_GT(worst_of(checked_run(dequantised, options)), 10 * worst_of(f32));
  options.layer.precision = Precision::kBF16;
  options.layer.fp8_output = OutputScale::kF32;  // FP8 inputs of NVFP4 wo_a
  EXPECT_TRUE(checked_run(options).passed);
  options.layer.fp8_output.reset();
  options.planted_error = PlantedError::kPosition;
  EXPECT_FALSE(checked_run(options).passed);
}

TEST(Nvfp4Weights, ALayerNamesWhatDoesNotFit) {
  const ModelConfig model = test::fp8_model();
  const test::Nvfp4Checkpoint folder("smla_nvfp4_bad", model);
  const LayerTensors tensors = Checkpoint(folder.path()).load_layer(2, 0, 1, kKeep);
  const HostTensor rope(DType::kF32, {300, 64});
  const auto text = [&](auto&& change) {
    LayerWeights weights = layer_weights(tensors);
    change(weights);
    try {
      const AttentionLayer layer(tensors.config, weights, {}, rope.view());
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(text([](LayerWeights&) {}), "no error");
  EXPECT_EQ(text([](LayerWeights& w) { w.wkv_scale = {}; }),
            "attention layer: wkv.weight_scale: got no tensor, expected [512, 16] F8_E4M3");
  EXPECT_EQ(text([](LayerWeights& w) { w.compressor.wgate_global_scale = {}; }),
            "attention layer: compressor.wgate.weight_scale_2: got no tensor, expected [1] F32");
  EXPECT_EQ(text([](LayerWeights& w) { w.wq_a.shape[1] = 64; }),
            "attention layer: wq_a: got [128, 64] U8, expected [128, 128] U8");
  EXPECT_EQ(text([](LayerWeights& w) { w.wq_b_scale.stride[0] = 9; }),
            "attention layer: wq_b.weight_scale: got strided rows, expected contiguous ones");
  const HostTensor bf16(DType::kBF16, {512, 256});
  EXPECT_EQ(text([&](LayerWeights& w) { w.wkv = bf16.view(); }),
            "attention layer: wkv.scale: got [512, 16] F8_E4M3, expected none: the weight is BF16");
  EXPECT_EQ(text([&](LayerWeights& w) { w.wkv = bf16.view(), w.wkv_scale = {}; }),
            "attention layer: wkv.weight_scale_2: got [1] F32, expected none: the weight is BF16");
  EXPECT_EQ(text([&](LayerWeights& w) {
              w.compressor.wgate = bf16.view();
              w.compressor.wgate_scale = w.compressor.wgate_global_scale = {};
            }),
            "attention layer: compressor.wgate: got [512, 256] BF16, expected U8, the dtype of the compressor's wkv");
  EXPECT_EQ(text([&](LayerWeights& w) {
              w.wkv = bf16.view(), w.wkv_scale = w.wkv_global_scale = {};
              w.wkv.stride[0] = 300;
            }),
            "attention layer: wkv: got strided rows, expected contiguous ones");
}

}  // namespace
}  // namespace smla
