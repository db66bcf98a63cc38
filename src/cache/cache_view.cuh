#pragma once

#include <bit>
#include <cstdint>

#include "device/numbers.cuh"
#include "sparsemla/kv_format.h"

namespace smla::device {

/// A paged cache as a kernel reads it: the record format by value.
struct CacheView {
  std::uint8_t* base = nullptr;
  std::int64_t num_slots = 0;
  std::int64_t block_size = 1;
  int block_bits = 0;  ///< log2 of block_size where it is a power of two, else -1; saves a 64-bit division
  std::int64_t block_stride = 0;
  std::int64_t data_bytes = 0;
  std::int64_t scale_bytes = 0;
  std::int64_t inline_scale_bytes = 0;
  float scale = 1.0F;
  int dim = 0;
  int nope_dim = 0;
  int group = 0;
  Element nope = Element::kF32;
  Element rope = Element::kF32;
  ScaleKind kind = ScaleKind::kNone;

  /// The block of a slot, or the block-table column of a position.
  __device__ std::int64_t block_of(std::int64_t slot) const {
    return block_bits >= 0 ? slot >> block_bits : slot / block_size;
  }
  /// Addresses of a row's numbers and of its scales, which are inside the row or with those of the block's other rows.
  struct RowPlace {
    std::uint8_t* data;
    std::uint8_t* scales;
  };
  __device__ RowPlace place(std::int64_t slot) const {
    const std::int64_t block = block_of(slot);
    const std::int64_t row = slot - block * block_size;
    std::uint8_t* first = base + block * block_stride;
    std::uint8_t* data = first + row * data_bytes;
    return {data, inline_scale_bytes > 0 ? data + nope_bytes() : first + block_size * data_bytes + row * scale_bytes};
  }
  __device__ std::uint8_t* data(std::int64_t slot) const { return place(slot).data; }
  __device__ std::uint8_t* scales(std::int64_t slot) const { return place(slot).scales; }

  /// Loads a word from an address of any alignment: a cache may have any base and stride, and a misaligned load is an
  /// error.
  template <class Word>
  __device__ static Word word(const std::uint8_t* p) {
    if (reinterpret_cast<std::uintptr_t>(p) % sizeof(Word) == 0) return *reinterpret_cast<const Word*>(p);
    Word v = 0;
    for (int i = static_cast<int>(sizeof(Word)) - 1; i >= 0; --i) v = static_cast<Word>(v << 8 | p[i]);
    return v;
  }

  __device__ static float load(const std::uint8_t* row, Element element, std::int64_t first_byte, int i) {
    switch (element) {
      case Element::kF32: return __uint_as_float(word<std::uint32_t>(row + first_byte + 4 * i));
      case Element::kBF16: return from_bf16(word<std::uint16_t>(row + first_byte + 2 * i));
      case Element::kE4M3: return from_e4m3(row[first_byte + i]);
      case Element::kE2M1: break;
    }
    const unsigned byte = row[first_byte + i / 2];
    return from_e2m1(i % 2 == 0 ? byte & 15U : byte >> 4);
  }

  __device__ std::int64_t nope_bytes() const {
    return nope == Element::kF32
               ? 4 * nope_dim
               : (nope == Element::kBF16 ? 2 * nope_dim : (nope == Element::kE4M3 ? nope_dim : nope_dim / 2));
  }

  __device__ std::int64_t rope_offset() const { return nope_bytes() + inline_scale_bytes; }

  /// Decodes number d of the row of a slot.
  __device__ float number(std::int64_t slot, int d) const {
    const std::uint8_t* row = data(slot);
    if (d >= nope_dim) return load(row, rope, rope_offset(), d - nope_dim);
    const float v = load(row, nope, 0, d);
    switch (kind) {
      case ScaleKind::kNone: return v;
      case ScaleKind::kPerTensor: return v * scale;
      case ScaleKind::kUe8m0: return v * from_ue8m0(scales(slot)[d / group]);
      case ScaleKind::kF32: break;
    }
    return v * __uint_as_float(word<std::uint32_t>(scales(slot) + 4 * (d / group)));
  }
};

inline CacheView view_of_cache(const PagedCache& cache) {
  const RowFormat& f = *cache.format;
  return {.base = cache.base,
          .num_slots = cache.num_slots(),
          .block_size = cache.block_size,
          .block_bits = cache.block_size > 0 && std::has_single_bit(static_cast<std::uint64_t>(cache.block_size))
                            ? std::countr_zero(static_cast<std::uint64_t>(cache.block_size))
                            : -1,
          .block_stride = cache.block_stride_bytes,
          .data_bytes = f.data_bytes,
          .scale_bytes = f.scale_bytes,
          .inline_scale_bytes = f.inline_scale_bytes,
          .scale = cache.scale,
          .dim = f.dim,
          .nope_dim = f.nope_dim,
          .group = f.group,
          .nope = f.nope,
          .rope = f.rope,
          .kind = f.scale};
}

}  // namespace smla::device
