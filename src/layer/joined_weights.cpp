#include "layer/joined_weights.h"

#include <initializer_list>

namespace smla {

namespace {

/// A dense matrix with the rows of `next` behind its own; false when they do not lie there.
bool append_rows(ConstTensorView* matrix, const ConstTensorView& next) {
  const auto* end = static_cast<const std::uint8_t*>(matrix->data) + matrix->numel() * size_of(matrix->dtype);
  if (next.dtype != matrix->dtype || next.size(1) != matrix->size(1) || !next.contiguous() || next.data != end)
    return false;
  matrix->shape[0] += next.size(0);
  return true;
}

struct Part {
  const ConstTensorView& w;
  const ConstTensorView& scale;
};

JoinedWeight joined(std::initializer_list<Part> parts) {
  JoinedWeight all;
  for (const Part& part : parts) {
    if (part.w.absent() || !part.w.contiguous()) return {};
    if (part.w.dtype == Projection::kNvfp4) return {};  // each has a scale of all
    const bool fp8 = part.w.dtype == DType::kE4M3;
    if (all.w.absent()) {
      all = {.w = part.w, .scale = fp8 ? part.scale : ConstTensorView()};
      continue;
    }
    // A block of scales must not cover outputs of two weights.
    if (fp8 && (all.w.size(0) % Projection::kWeightBlock != 0 || !append_rows(&all.scale, part.scale))) return {};
    if (!append_rows(&all.w, part.w)) return {};
  }
  return all;
}

}  // namespace

JoinedWeight joined_latents(const LayerWeights& weights) {
  return joined({{weights.wq_a, weights.wq_a_scale}, {weights.wkv, weights.wkv_scale}});
}

JoinedWeight joined_compressors(const LayerConfig& config, const LayerWeights& weights) {
  if (!config.has_compressor()) return {};
  static const ConstTensorView kNoScale;  // their weights are never FP8, and not joined in NVFP4
  const CompressorWeights& rows = weights.compressor;
  if (!config.runs_indexer()) return joined({{rows.wkv, kNoScale}, {rows.wgate, kNoScale}});
  const CompressorWeights& index = weights.index_compressor;
  return joined({{rows.wkv, kNoScale}, {rows.wgate, kNoScale}, {index.wkv, kNoScale}, {index.wgate, kNoScale}});
}

}  // namespace smla
