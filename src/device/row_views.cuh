#pragma once

#include <type_traits>

#include "device/launch.cuh"
#include "device/quads.cuh"
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

/// Whether every row may be loaded or stored four elements at a time.
inline bool by_fours(const ConstTensorView& v) {
  if (v.absent() || v.numel() == 0) return true;
  bool ok = reinterpret_cast<std::uintptr_t>(v.data) % static_cast<std::uintptr_t>(4 * size_of(v.dtype)) == 0 &&
            v.size(v.rank - 1) % 4 == 0;
  for (int i = 0; i + 1 < v.rank; ++i) ok = ok && (v.size(i) <= 1 || v.stride[static_cast<std::size_t>(i)] % 4 == 0);
  return ok;
}

inline Rope rope_of(const ConstTensorView& cos_sin, int dim, int rope_dim) {
  return {.cos_sin = static_cast<const float*>(cos_sin.data),
          .rows = cos_sin.size(0),
          .stride = cos_sin.stride[0],
          .nope = dim - rope_dim,
          .pairs = rope_dim / 2};
}

/// A grid over the heads of tokens, a warp for each: blocks of dim3(32, heads), none over two tokens.
struct HeadGrid {
  static constexpr int kWarps = 8;  ///< the most heads of a block
  unsigned chunks = 0;              ///< blocks of a token
  unsigned heads = 0;               ///< heads of a block

  static HeadGrid of(std::int64_t heads) {
    if (heads == 0) return {};
    const std::int64_t chunks = (heads + kWarps - 1) / kWarps;
    return {static_cast<unsigned>(chunks), static_cast<unsigned>((heads + chunks - 1) / chunks)};
  }
  unsigned blocks(std::int64_t tokens) const { return blocks_for(tokens * chunks, 1); }
  dim3 block() const { return dim3(32, heads); }
  __device__ std::int64_t token() const { return blockIdx.x / chunks; }
  __device__ std::int64_t head() const { return blockIdx.x % chunks * heads + threadIdx.y; }
};

/// f(float{}) or f(BF16{}).
template <class F>
void with_float(DType dtype, F&& f) {
  dtype == DType::kF32 ? f(float{}) : f(BF16{});
}
/// f(std::true_type{}) or f(std::false_type{}).
template <class F>
void with_bool(bool value, F&& f) {
  value ? f(std::true_type{}) : f(std::false_type{});
}

}  // namespace smla::device
