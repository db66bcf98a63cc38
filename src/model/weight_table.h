#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "sparsemla/layer_weights.h"
#include "sparsemla/model_config.h"

namespace smla {

/// The dtype of a linear weight in NVFP4: bytes of two codes.
inline constexpr DType kNvfp4Weight = DType::kU8;

/// What a weight is, which rules its dtypes.
enum class WeightKind : std::uint8_t {
  kLinear,  ///< [outputs, inputs], BF16, F32 or NVFP4; E4M3 where fp8_groups is not 0
  kNorm,    ///< [dim], BF16 or F32
  kApe,     ///< [ratio, width], F32 or BF16; loaded as F32
  kSink     ///< [heads], F32, infinities allowed
};

/// What tensor-parallel ranks share out.
enum class WeightCut : std::uint8_t { kNone, kRows, kColumns };

/// One weight of a layer: the row of the table that loading, checking, placing and making weights read.
struct WeightSpec {
  std::string stem;  ///< "wq_a", "indexer.compressor.ape"
  std::string name;  ///< in a checkpoint, below "layers.<i>.attn.": "wq_a.weight", "attn_sink"
  std::vector<std::int64_t> shape;
  WeightKind kind = WeightKind::kLinear;
  WeightCut cut = WeightCut::kNone;
  int joined = 0;  ///< those of one number lie one after another where we place them: one product; 0: alone
  std::int64_t fp8_groups = 0;  ///< linear maps side by side whose outputs are whole blocks in FP8; 0: never FP8
  ConstTensorView& (*view)(LayerWeights& weights) = nullptr;   ///< where a layer looks for it
  ConstTensorView& (*scale)(LayerWeights& weights) = nullptr;  ///< of its E4M3 blocks or NVFP4 groups; kLinear alone
  ConstTensorView& (*global_scale)(LayerWeights& weights) = nullptr;  ///< of an NVFP4 weight; kLinear alone
};

/// The weights that a layer reads, in the order of a checkpoint's documentation.
std::vector<WeightSpec> weight_table(const LayerConfig& config);
/// The indexer's weights of a layer that runs none (reuses_topk): they may be given, and are not read.
std::vector<WeightSpec> idle_weights(const LayerConfig& config);
/// The names that such weights may have, those of their scales included.
std::vector<std::string> idle_weight_names(const LayerConfig& config);

/// Calls `visit` for every weight of the table, with its checkpoint name; after one that is E4M3 (once `visit` has set
/// it) for its scales, "wq_a.scale"; after one in NVFP4 for "wq_a.weight_scale" and "wq_a.weight_scale_2".
void visit_weights(const LayerConfig& config, LayerWeights& weights,
                   const std::function<void(std::string_view, ConstTensorView&)>& visit);

}  // namespace smla
