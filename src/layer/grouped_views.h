#pragma once

#include "sparsemla/layer_weights.h"
#include "sparsemla/ops/projection.h"

namespace smla {

// Activations, weights and scales of a layer as projections take them.

/// A linear weight of a layer and its scales, which are absent where its dtype has none.
struct LinearWeight {
  ConstTensorView w;
  ConstTensorView scale{};         ///< of E4M3 and NVFP4 weights
  ConstTensorView global_scale{};  ///< of NVFP4 weights
};

inline LinearWeight linear_wq_a(const LayerWeights& w) { return {w.wq_a, w.wq_a_scale, w.wq_a_global_scale}; }
inline LinearWeight linear_wq_b(const LayerWeights& w) { return {w.wq_b, w.wq_b_scale, w.wq_b_global_scale}; }
inline LinearWeight linear_wkv(const LayerWeights& w) { return {w.wkv, w.wkv_scale, w.wkv_global_scale}; }
inline LinearWeight linear_wo_a(const LayerWeights& w) { return {w.wo_a, w.wo_a_scale, w.wo_a_global_scale}; }
inline LinearWeight linear_wo_b(const LayerWeights& w) { return {w.wo_b, w.wo_b_scale, w.wo_b_global_scale}; }
inline LinearWeight linear_index_wq_b(const LayerWeights& w) {
  return {w.index_wq_b, w.index_wq_b_scale, w.index_wq_b_global_scale};
}
inline LinearWeight linear_index_weights_proj(const LayerWeights& w) {
  return {w.index_weights_proj, w.index_weights_proj_scale, w.index_weights_proj_global_scale};
}
inline LinearWeight linear_wkv(const CompressorWeights& w) { return {w.wkv, w.wkv_scale, w.wkv_global_scale}; }
inline LinearWeight linear_wgate(const CompressorWeights& w) { return {w.wgate, w.wgate_scale, w.wgate_global_scale}; }

/// [rows, n] as the [rows, groups, n/groups] that a projection takes.
template <class View>
View as_groups(const View& v, std::int64_t groups) {
  View out = v;
  out.rank = 3;
  out.shape = {v.size(0), groups, v.size(1) / groups, 0};
  out.stride = {v.stride[0], v.size(1) / groups, 1, 0};
  return out;
}

/// [rows, heads, dim], dense but for what lies between rows, as [rows, heads * dim].
template <class View>
View as_rows(const View& v) {
  View out = v;
  out.rank = 2;
  out.shape = {v.size(0), v.size(1) * v.size(2), 0, 0};
  out.stride = {v.size(1) * v.size(2), 1, 0, 0};
  return out;
}

/// A weight [groups*n, k] as [groups, n, k]; NVFP4: the same of its bytes.
inline ConstTensorView grouped(const ConstTensorView& w, std::int64_t groups) {
  const std::int64_t n = w.size(0) / groups;
  const std::int64_t k = w.size(1);
  ConstTensorView weight = w;
  weight.rank = 3;
  weight.shape = {groups, n, k, 0};
  weight.stride = {n * k, k, 1, 0};
  return weight;
}

/// The scales of an E4M3 or NVFP4 weight [groups*n, k] by its groups; none of another weight.
inline ConstTensorView grouped_scales(const ConstTensorView& w, const ConstTensorView& scale, std::int64_t groups) {
  return w.dtype == DType::kE4M3 || w.dtype == Projection::kNvfp4 ? grouped(scale, groups) : ConstTensorView();
}

}  // namespace smla
