// What options of a layer mean together, and whose side stream is whose.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <set>
#include <thread>

#include "layer/placed_layer.h"
#include "layer/side_streams.h"
#include "model/weight_table.h"
#include "sparsemla/layer.h"

namespace smla {
namespace {

std::string error_of(const LayerOptions& options) {
  try {
    effective_options(options);
  } catch (const InvalidArgument& e) {
    return e.what();
  }
  return "";
}

LayerOptions over(const RowFormat& rows) { return {.caches = {.rows = &rows}}; }

TEST(LayerOptions, WhatFollowsFromOthersIsFilledIn) {
  EXPECT_EQ(effective_options({}).q, DType::kBF16);
  EXPECT_EQ(effective_options(over(fp8_per_tensor_rows())).q, DType::kE4M3);
  LayerOptions plain = over(fp8_per_tensor_rows());
  plain.q = DType::kBF16;
  EXPECT_EQ(effective_options(plain).q, DType::kBF16);
  const LayerOptions f32 = effective_options({.precision = Precision::kF32});
  EXPECT_EQ(f32.caches.rows, &f32_rows());
  EXPECT_EQ(f32.caches.index, &index_f32_rows());
  EXPECT_EQ(f32.q, DType::kBF16);
}

TEST(LayerOptions, WhatWouldHaveNoEffectIsRefused) {
  LayerOptions o = over(fp8_ds_mla_rows());
  o.caches.kv_scale = 0.5F;
  EXPECT_EQ(error_of(o),
            "attention layer: kv_scale: got 0.500000 with fp8_ds_mla rows, expected 1, or per-tensor rows");
  o = over(bf16_rows());
  o.q_scale = 0.25F;
  EXPECT_EQ(error_of(o), "attention layer: q_scale: got 0.250000 with BF16 queries, expected 1, or E4M3 queries");
  o = over(fp8_per_tensor_rows());
  o.caches.kv_scale = 0.5F, o.q_scale = 0.25F;
  EXPECT_EQ(error_of(o), "");
  o.caches.kv_scale = std::nanf("");
  EXPECT_EQ(error_of(o), "attention layer: kv_scale: got nan, expected a finite number above 0");

  o = over(fp8_ds_mla_rows());
  o.gather_prefill = true;
  EXPECT_EQ(error_of(o), "");
  o.front_end = FrontEnd::kSm120;
  EXPECT_EQ(error_of(o), "attention layer: gather_prefill: got true with the sm120 front-end, expected flashmla");
  o = over(bf16_rows());
  o.gather_prefill = true;
  EXPECT_EQ(error_of(o), "attention layer: gather_prefill: got true with bf16 rows, expected fp8_ds_mla rows");
  o = {.precision = Precision::kF32};
  o.q = DType::kE4M3;
  EXPECT_EQ(error_of(o), "attention layer: q: got F8_E4M3 at precision f32, expected BF16 or none");
}

TEST(SideStreams, EachCallersStreamHasItsOwn) {
  SideStreams streams(DeviceKind::kCpu);
  int a = 0;
  int b = 0;
  SideStream& of_a = streams.of({.handle = &a});
  EXPECT_EQ(&of_a, &streams.of({.handle = &a}));
  EXPECT_NE(&of_a, &streams.of({.handle = &b}));
  EXPECT_NE(&of_a, &streams.of({}));
  std::vector<int> callers(64);
  std::vector<SideStream*> seen(callers.size());
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = t; i < callers.size(); i += 4) seen[i] = &streams.of({.handle = &callers[i]});
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(std::set<SideStream*>(seen.begin(), seen.end()).size(), callers.size());
}

/// The one table of weights: what a layer reads is what a checkpoint stores, each once, and slices cut it evenly.
TEST(WeightTable, NamesMembersAndCutsOfEveryLayerKind) {
  const ModelConfig model = model_preset("tiny");
  for (const std::int64_t index : {0, 1, 2}) {
    const LayerConfig config = model.layer(index);
    LayerWeights weights;
    std::set<std::string> names;
    std::set<const void*> members;
    for (const WeightSpec& spec : weight_table(config)) {
      EXPECT_TRUE(names.insert(spec.name).second) << spec.name;
      EXPECT_TRUE(members.insert(&spec.view(weights)).second) << spec.name;
      EXPECT_EQ(spec.scale != nullptr, spec.kind == WeightKind::kLinear) << spec.name;
      EXPECT_EQ(spec.global_scale != nullptr, spec.kind == WeightKind::kLinear) << spec.name;
      EXPECT_TRUE(spec.fp8_groups == 0 || spec.kind == WeightKind::kLinear) << spec.name;
      if (spec.scale != nullptr) {
        EXPECT_TRUE(members.insert(&spec.scale(weights)).second) << spec.name;
        EXPECT_TRUE(members.insert(&spec.global_scale(weights)).second) << spec.name;
      }
      if (spec.cut == WeightCut::kRows) {
        EXPECT_EQ(spec.shape[0] % config.o_groups, 0) << spec.name;
      }
      if (spec.cut == WeightCut::kColumns) {
        EXPECT_EQ(spec.shape[1] % config.o_groups, 0) << spec.name;
      }
    }
    EXPECT_EQ(names.size(), 8U + (config.has_compressor() ? 4U : 0U) + (config.has_indexer() ? 6U : 0U));
  }
}

}  // namespace
}  // namespace smla
