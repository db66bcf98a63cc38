#include "layer/reference_layer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/host_tensor.h"
#include "engine/synthetic.h"
#include "sparsemla/error.h"

namespace smla {
namespace {

constexpr std::int64_t kTokens = 300;

struct Inputs {
  LayerConfig config;
  OwnedLayerWeights weights;
  HostTensor cos_sin;
  HostTensor hidden;

  explicit Inputs(int ratio)
      : config{.hidden_size = 48,
               .num_heads = 2,
               .q_lora_rank = 24,
               .o_lora_rank = 12,
               .o_groups = 2,
               .compress_ratio = ratio,
               .index_n_heads = 3,
               .index_topk = 7},
        weights(random_weights(config, 5)),
        cos_sin(DType::kF32, {kTokens, config.rope_head_dim}),
        hidden(DType::kF32, {kTokens, config.hidden_size}) {
    std::ranges::copy(rope_table(config.rope, kTokens), cos_sin.as<float>());
    for (std::int64_t p = 0; p < kTokens; ++p) synthetic_hidden(1, 0, 0, p, hidden.view().slice(0, p, p + 1));
  }
  ReferenceLayer layer(const HostTensor& h) const { return {config, weights.views, cos_sin.view(), h.view()}; }
};

TEST(ReferenceLayer, PreparedRowsAreThoseMadeWhenTheyAreNeeded) {
  for (const int ratio : {1, 4, 128}) {
    const Inputs in(ratio);
    ReferenceLayer prepared = in.layer(in.hidden);
    prepared.prepare(kTokens - 20, kTokens - 1);
    for (std::int64_t p = kTokens - 20; p < kTokens; p += 3) {
      ReferenceLayer alone = in.layer(in.hidden);
      std::optional<std::vector<std::int32_t>> entries;
      if (ratio == 4) {
        EXPECT_EQ(prepared.index_scores(p), alone.index_scores(p)) << p;
        entries.emplace({0, 3, 40, 69});
      }
      const auto chosen = entries ? std::optional<std::span<const std::int32_t>>(*entries) : std::nullopt;
      EXPECT_EQ(prepared.output(p, chosen), alone.output(p, chosen)) << "ratio " << ratio << " position " << p;
    }
  }
}

TEST(ReferenceLayer, HiddenStatesMayBeF64) {
  const Inputs in(4);
  HostTensor wide(DType::kF64, {kTokens, in.config.hidden_size});
  std::copy_n(in.hidden.as<float>(), wide.numel(), wide.as<double>());
  EXPECT_EQ(in.layer(wide).index_scores(100), in.layer(in.hidden).index_scores(100));
}

TEST(ReferenceLayer, PositionsPastTheHiddenStatesAreRefused) {
  const Inputs in(1);
  ReferenceLayer layer = in.layer(in.hidden);
  EXPECT_THROW(layer.prepare(-1, 3), InvalidArgument);
  EXPECT_THROW(layer.prepare(4, 3), InvalidArgument);
  EXPECT_THROW(layer.prepare(0, kTokens), InvalidArgument);
}

/// Whose step rounded the inputs of FP8 weights is a matter of each position.
TEST(ReferenceLayer, InputsOfFp8WeightsAreRoundedWhereTheirStepDid) {
  Inputs in(1);
  in.config.hidden_size = 128;
  in.weights = random_weights(in.config, 5);
  in.hidden = HostTensor(DType::kF32, {kTokens, in.config.hidden_size});
  for (std::int64_t p = 0; p < kTokens; ++p) synthetic_hidden(1, 0, 0, p, in.hidden.view().slice(0, p, p + 1));
  HostTensor wkv(DType::kE4M3, {in.config.head_dim, in.config.hidden_size});
  for (std::int64_t i = 0; i < wkv.numel(); ++i)
    static_cast<std::uint8_t*>(wkv.data())[i] =
        static_cast<std::uint8_t>(0x20 + i * 37 % 0x20 + (i % 3 == 0 ? 0x80 : 0));
  HostTensor scale(DType::kF32, {in.config.head_dim / 128, 1});
  std::fill_n(scale.as<float>(), scale.numel(), 1.0F);
  in.weights.views.wkv = std::as_const(wkv).view();
  in.weights.views.wkv_scale = std::as_const(scale).view();
  const auto output = [&](bool rounds, const std::vector<char>* positions, std::int64_t p) {
    ReferenceRounding rounding;
    rounding.fp8_inputs = rounds;
    rounding.fp8_positions = positions;
    return ReferenceLayer(in.config, in.weights.views, in.cos_sin.view(), in.hidden.view(), rounding)
        .output(p, std::nullopt);
  };
  const std::vector<char> none(kTokens, 0);
  const std::vector<char> all(kTokens, 1);
  std::vector<char> some(kTokens, 0);
  std::fill_n(some.begin(), 100, char{1});  // a prompt of 100 tokens, then steps of few
  EXPECT_EQ(output(true, &none, 150), output(false, nullptr, 150));
  EXPECT_EQ(output(true, &all, 150), output(true, nullptr, 150));
  EXPECT_NE(output(true, nullptr, 150), output(false, nullptr, 150));
  EXPECT_EQ(output(true, &some, 40), output(true, nullptr, 40));
  EXPECT_NE(output(true, &some, 150), output(true, nullptr, 150));
  EXPECT_NE(output(true, &some, 150), output(false, nullptr, 150));
  EXPECT_EQ(output(true, &some, 250), output(false, nullptr, 250));  // its window holds none of the prompt
}

}  // namespace
}  // namespace smla
