#pragma once

#include <cstdint>

#include "core/codecs.h"
#include "sparsemla/tensor_view.h"

namespace smla {

/// Largest row of QNormRopeInsert and InverseRope: rows are rotated in a buffer on the stack.
inline constexpr int kMaxRopeRow = 2048;

/// Element `i` of a row of `dtype` (F32 or BF16), exact.
inline float load_element(DType dtype, const void* row, std::int64_t i) {
  return dtype == DType::kF32 ? static_cast<const float*>(row)[i] : to_float(static_cast<const BF16*>(row)[i]);
}

/// Rounds `value` once to `dtype` (F32, BF16 or E4M3).
inline void store_element(DType dtype, void* row, std::int64_t i, float value) {
  switch (dtype) {
    case DType::kBF16: static_cast<BF16*>(row)[i] = to_bf16(value); break;
    case DType::kE4M3: static_cast<E4M3*>(row)[i] = to_e4m3(value); break;
    default: static_cast<float*>(row)[i] = value; break;
  }
}

/// Where row (i) or (i, j) of a view begins; the last dimension is contiguous.
template <class Void>
auto* row_of(const BasicTensorView<Void>& view, std::int64_t i, std::int64_t j = 0) {
  using Byte = std::conditional_t<std::is_const_v<Void>, const std::uint8_t, std::uint8_t>;
  return static_cast<Void*>(static_cast<Byte*>(view.data) +
                            (i * view.stride[0] + (view.rank > 2 ? j * view.stride[1] : 0)) * size_of(view.dtype));
}

/// Row of the rope table at `position`, or null when the table has none: such a token is skipped.
inline const float* rope_row(const ConstTensorView& cos_sin, std::int64_t position) {
  if (position < 0 || position >= cos_sin.size(0)) return nullptr;
  return static_cast<const float*>(row_of(cos_sin, position));
}

/// Rotates `pairs` interleaved pairs in place: e' = e*c - o*s, o' = o*c + e*s; each product and each sum is rounded by
/// itself.
inline void rotate_pairs(float* x, int pairs, const float* cosines, const float* sines) {
  for (int i = 0; i < pairs; ++i) {
    const float e = x[2 * i];
    const float o = x[2 * i + 1];
    x[2 * i] = e * cosines[i] - o * sines[i];
    x[2 * i + 1] = o * cosines[i] + e * sines[i];
  }
}

}  // namespace smla
