#pragma once

#include "sparsemla/ops/projection.h"

namespace smla {

// Activations, weights and scales of a layer as projections take them.

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

/// A weight [groups*n, k] as [groups, n, k].
inline ConstTensorView grouped(const ConstTensorView& w, std::int64_t groups) {
  const std::int64_t n = w.size(0) / groups;
  const std::int64_t k = w.size(1);
  ConstTensorView weight = w;
  weight.rank = 3;
  weight.shape = {groups, n, k, 0};
  weight.stride = {n * k, k, 1, 0};
  return weight;
}

/// The scales of an E4M3 weight [groups*n, k] by its groups; none of another weight.
inline ConstTensorView grouped_scales(const ConstTensorView& w, const ConstTensorView& scale, std::int64_t groups) {
  return w.dtype == DType::kE4M3 ? grouped(scale, groups) : ConstTensorView();
}

}  // namespace smla
