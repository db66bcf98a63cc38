#pragma once

#include <cstddef>
#include <cstdint>

#include "sparsemla/kv_format.h"

namespace smla {

/// Bits of one stored number.
constexpr int bits_of(Element element) {
  switch (element) {
    case Element::kF32: return 32;
    case Element::kBF16: return 16;
    case Element::kE4M3: return 8;
    case Element::kE2M1: return 4;
  }
  return 0;
}

/// Where a row's inline scales and its rope numbers begin.
inline std::ptrdiff_t inline_scale_offset(const RowFormat& format) {
  return static_cast<std::ptrdiff_t>(format.nope_dim) * bits_of(format.nope) / 8;
}
inline std::ptrdiff_t rope_offset(const RowFormat& format) {
  return inline_scale_offset(format) + format.inline_scale_bytes;
}

/// Where row `offset` of a block keeps its numbers and its scales.
inline std::uint8_t* row_data(const PagedCache& cache, std::int64_t block, std::int64_t offset) {
  return cache.block(block) + offset * cache.format->data_bytes;
}
inline std::uint8_t* row_scales(const PagedCache& cache, std::int64_t block, std::int64_t offset) {
  return cache.block(block) + cache.block_size * cache.format->data_bytes + offset * cache.format->scale_bytes;
}

/// The scales of a row: inside it, or with those of the block's other rows.
inline std::uint8_t* scales_of_row(const PagedCache& cache, std::int64_t block, std::int64_t offset) {
  if (cache.format->inline_scale_bytes == 0) return row_scales(cache, block, offset);
  return row_data(cache, block, offset) + inline_scale_offset(*cache.format);
}

/// The `format.dim` numbers of the row in slot `slot`, exact in fp32 (per-tensor rows: e4m3 * scale, one rounding).
/// `slot` must be in the cache.
void decode_row(const PagedCache& cache, std::int64_t slot, float* values);

/// Encodes `format.dim` numbers into slot `slot`; scale padding is written as 0.
/// Nope dims with group scales are rounded to bf16 before the quantiser (spec 5.1, 4.2); bf16 elements are rounded
/// once; per-tensor rows take e4m3(clamp(x * (1/scale), +-448)) of the fp32 value as given.
void encode_row(const PagedCache& cache, std::int64_t slot, const float* values, ClampRule clamp = ClampRule::kAmax);

/// Normalised Walsh-Hadamard transform of n (a power of two) numbers in place, Sylvester order, factor n^-0.5
/// (spec 4.1).
void hadamard(float* values, int n);

}  // namespace smla
