#include "layer/joined_weights.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/host_tensor.h"
#include "engine/synthetic.h"
#include "join_weights.h"

namespace smla {
namespace {

LayerConfig config_of(std::int64_t ratio) {
  ModelConfig model = model_preset("tiny");
  model.num_layers = 1;
  model.compress_ratios = {static_cast<int>(ratio)};
  return model.layer(0);
}

TEST(JoinedWeights, WeightsApartAreNotOne) {
  for (const std::int64_t ratio : {0, 4, 128}) {
    const LayerConfig config = config_of(ratio);
    const OwnedLayerWeights weights = random_weights(config, 3);
    EXPECT_TRUE(joined_latents(weights.views).w.absent()) << ratio;
    EXPECT_TRUE(joined_compressors(config, weights.views).w.absent()) << ratio;
  }
}

TEST(JoinedWeights, NeighboursAreOneMatrix) {
  for (const std::int64_t ratio : {4, 128}) {
    const LayerConfig config = config_of(ratio);
    OwnedLayerWeights weights = random_weights(config, 3);
    const std::vector<std::uint8_t> latents = test::join_weights(config, weights.views, 1);
    const std::vector<std::uint8_t> compressors = test::join_weights(config, weights.views, 2);
    const ConstTensorView both = joined_latents(weights.views).w;
    ASSERT_EQ(both.data, latents.data());
    EXPECT_EQ(both.size(0), config.q_lora_rank + config.head_dim);
    EXPECT_EQ(both.size(1), config.hidden_size);
    EXPECT_TRUE(both.contiguous());
    const ConstTensorView all = joined_compressors(config, weights.views).w;
    ASSERT_EQ(all.data, compressors.data());
    EXPECT_EQ(all.size(0) * all.size(1) * 2, static_cast<std::int64_t>(compressors.size()));
  }
}

/// Linear weights of 128 inputs and `first` and then 64 outputs, with their scales, in two buffers.
struct Fp8Neighbours {
  explicit Fp8Neighbours(std::int64_t first) : values(DType::kE4M3, {first + 64, 128}), scales(DType::kF32, {4, 1}) {
    const auto rows = [](const HostTensor& t, std::int64_t begin, std::int64_t end) {
      return t.view().slice(0, begin, end);
    };
    const std::int64_t blocks = (first + 127) / 128;
    weights.wq_a = rows(values, 0, first), weights.wkv = rows(values, first, first + 64);
    weights.wq_a_scale = rows(scales, 0, blocks), weights.wkv_scale = rows(scales, blocks, blocks + 1);
  }
  HostTensor values, scales;
  LayerWeights weights;
};

TEST(JoinedWeights, AScaleCoversOutputsOfOneWeightOnly) {
  Fp8Neighbours whole(256);
  const JoinedWeight joined = joined_latents(whole.weights);
  ASSERT_FALSE(joined.w.absent());
  EXPECT_EQ(joined.w.size(0), 320);
  EXPECT_EQ(joined.scale.size(0), 3);
  EXPECT_TRUE(joined_latents(Fp8Neighbours(192).weights).w.absent()) << "the second block of scales has 64 outputs";
  whole.weights.wkv_scale.data = static_cast<const float*>(whole.weights.wkv_scale.data) + 1;
  EXPECT_TRUE(joined_latents(whole.weights).w.absent()) << "scales apart";
}

TEST(JoinedWeights, DtypesMustBeEqual) {
  const LayerConfig config = config_of(128);
  OwnedLayerWeights weights = random_weights(config, 3);
  const std::vector<std::uint8_t> latents = test::join_weights(config, weights.views, 1);
  weights.views.wkv.dtype = DType::kF32;
  EXPECT_TRUE(joined_latents(weights.views).w.absent());
}

/// Neighbours in NVFP4 are two matrices: each has a scale of all.
TEST(JoinedWeights, Nvfp4WeightsStayApart) {
  const HostTensor codes(DType::kU8, {256 + 64, 64});
  LayerWeights weights;
  weights.wq_a = codes.view().slice(0, 0, 256), weights.wkv = codes.view().slice(0, 256, 320);
  EXPECT_TRUE(joined_latents(weights).w.absent());
  const LayerConfig config = config_of(128);
  weights.compressor.wkv = weights.wq_a, weights.compressor.wgate = weights.wkv;
  EXPECT_TRUE(joined_compressors(config, weights).w.absent());
}

}  // namespace
}  // namespace smla
