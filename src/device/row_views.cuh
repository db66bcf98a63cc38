#pragma once

#include <type_traits>

#include "device/vec4.cuh"
#include "sparsemla/tensor_view.h"

namespace smla::device {

/// Rows (i) or (i, j) of a tensor whose last dimension is dense.
template <class T>
struct Rows {
  T* data = nullptr;
  std::int64_t stride[2] = {0, 0};
  __device__ T* row(std::int64_t i, std::int64_t j = 0) const { return data + i * stride[0] + j * stride[1]; }
};

template <class T, class Void>
Rows<T> rows_of(const BasicTensorView<Void>& v) {
  return {static_cast<T*>(v.data), {v.rank > 1 ? v.stride[0] : 0, v.rank > 2 ? v.stride[1] : 0}};
}

/// Whether every row can be loaded and stored four elements at a time.
inline bool by_fours(const ConstTensorView& v) {
  if (v.absent() || v.numel() == 0) return true;
  bool ok = reinterpret_cast<std::uintptr_t>(v.data) % static_cast<std::uintptr_t>(4 * size_of(v.dtype)) == 0 &&
            v.size(v.rank - 1) % 4 == 0;
  for (int i = 0; i + 1 < v.rank; ++i) ok = ok && (v.size(i) <= 1 || v.stride[static_cast<std::size_t>(i)] % 4 == 0);
  return ok;
}

/// Calls f(float{}) or f(BF16{}).
template <class F>
void with_float(DType dtype, F&& f) {
  dtype == DType::kF32 ? f(float{}) : f(BF16{});
}
/// Calls f(std::true_type{}) or f(std::false_type{}).
template <class F>
void with_bool(bool value, F&& f) {
  value ? f(std::true_type{}) : f(std::false_type{});
}

}  // namespace smla::device
