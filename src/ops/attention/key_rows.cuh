#pragma once

#include "device/halves.cuh"
#include "device/ptx/cp_async.cuh"
#include "device/ptx/shared.cuh"
#include "ops/attention/attention_call.cuh"
#include "ops/attention/attention_split.h"

namespace smla {

using device::fp16_overflow;
using device::halves_of;
using device::kCodeShift;
using device::misread_nan;
using device::multiply_halves;
using device::widen_codes;

// Key rows of 512 numbers in shared memory, as the cache stores them: groups of 64 e4m3 codes, then groups of 64 bf16
// numbers, which are converted to fp16 there. An e4m3 code times a power of two is exact in fp16, and a bf16 number
// nearly always is. Where fp16 cannot represent one, functions here return true and the block computes in fp32
// (exact_head.cuh).

/// bf16 numbers are multiplied with this before they become fp16, so that small ones keep their bits; numbers of 1,024
/// and more overflow.
constexpr float kHalfUnit = 0x1p6F;
constexpr std::uint32_t kHalfUnits = 0x4280'4280;  ///< as bf16 numbers
constexpr std::uint32_t kHalfOverflow = 0x4480;    ///< 1,024 as a bf16 number

/// Two bf16 numbers times kHalfUnit. `top`: the largest sizes so far, see half_overflow().
__device__ inline std::uint32_t unit_pair(std::uint32_t pair, std::uint32_t& top) {
  top = device::largest_sizes(top, pair);
  return device::multiply_bf16(pair, kHalfUnits);
}
/// The same as fp16.
__device__ inline std::uint32_t half_pair(std::uint32_t pair, std::uint32_t& top) {
  const std::uint32_t x = unit_pair(pair, top);
  return halves_of(__uint_as_float(x << 16), __uint_as_float(x & 0xFFFF'0000U));
}
/// Where fp16 cannot represent a number that unit_pair() saw: the upper bit of its half.
__device__ inline std::uint32_t half_overflow(std::uint32_t top) { return device::at_least(top, kHalfOverflow); }

/// The fp16 factor of codes whose scale is 2^(byte - 127): the scale times kHalfUnit. 0 for byte 0, because such
/// numbers are below 2^-118.
__device__ inline std::uint16_t half_scale(int byte) {
  const int exponent = byte - 127 + 6 + 15 + kCodeShift;
  if (byte == 0 || exponent < -9) return 0;
  return static_cast<std::uint16_t>(exponent > 0 ? min(exponent, 30) << 10 : 0x200 >> -exponent);
}
/// Whether fp16 cannot represent codes of this scale well enough: scales from 2^-26 to 2^1 are accepted. From 2^-21 on
/// all codes are exact; below, small codes lose bits that do not matter beside the largest of their group.
__device__ inline bool unrepresentable_scale(int byte) { return byte != 0 && (byte < 101 || byte > 128); }

/// How the rows of a scope's cache lie in memory.
struct RowLayout {
  KeyLayout key;
  const std::uint8_t* base = nullptr;
  std::int64_t block_stride = 0;
  std::int64_t scales = 0;      ///< bytes from a cache block's beginning to its scales
  std::uint32_t num_slots = 0;  ///< slots of the cache, at most 2^31 - 1
  std::uint32_t block_size = 1;
  int block_bits = -1;  ///< log2 of block_size where it is a power of two, else -1
  std::uint32_t row_bytes = 0;
  std::uint32_t scale_bytes = 0;
  /// Whether each group of codes has a UE8M0 scale byte. Otherwise the whole cache has one scale, which the kernel
  /// applies to scores (TileCall::score_scale) and weights (weight_scale) instead of to keys.
  bool scaled = false;
  bool aligned = false;  ///< rows are aligned to 16 bytes and scales to 4
};

/// Copies 16 bytes of any alignment to shared memory, or zeros where `there` is false: for rows that are not aligned to
/// what cp.async needs.
__device__ inline void copy_piece(std::uint32_t to, const std::uint8_t* from, bool there) {
  uint4 v{0, 0, 0, 0};
#pragma unroll 1
  for (int i = 15; there && i >= 0; --i) {
    v.w = __funnelshift_l(v.z, v.w, 8);
    v.z = __funnelshift_l(v.y, v.z, 8);
    v.y = __funnelshift_l(v.x, v.y, 8);
    v.x = v.x << 8 | __ldg(from + i);
  }
  device::st_shared_v4(to, v);
}

/// A buffer for the keys of a tile. The 16-byte pieces of a row are permuted within each 128 bytes by the row's number,
/// so that a warp reads 64 bytes of eight rows, or one piece of eight rows, without bank conflicts.
template <AttentionTile kTile>
struct KeyBuffer {
  std::uint32_t at = 0;
  KeyLayout layout;

  __device__ static int swizzle_codes(int key) { return (key & 1) << 2 | (key >> 1 & 3); }
  __device__ static int swizzle_halves(int key) { return key & 7; }
  __device__ std::uint32_t codes(int key) const { return at + key * AttentionTile::kDim; }
  __device__ std::uint32_t halves(int key) const {
    return at + kTile.keys * layout.code_bytes() + key * layout.half_bytes();
  }
  /// The scales of a key's groups, 16 bytes.
  __device__ std::uint32_t scales(int key) const {
    return at + kTile.keys * (layout.code_bytes() + layout.half_bytes()) + key * 2 * AttentionTile::kGroups;
  }
  __device__ std::uint32_t valid() const { return at + kTile.keys * (layout.bytes() - 1); }
};

/// One thread's share of copying a tile's rows into a buffer: a part of one row.
template <AttentionTile kTile>
struct RowCopy {
  static constexpr int kThreads = 32 * AttentionTile::kWarps;
  static constexpr int kParts = kThreads / kTile.keys;  ///< threads that share a row
  static constexpr int kScales = 2;                     ///< scales that a thread converts together
  static constexpr int kUnit = 16;                      ///< bf16 numbers that a thread converts together

  int there = 0;  ///< whether the list names a row

  __device__ static int row() { return static_cast<int>(threadIdx.x) / kParts; }
  __device__ static int part() { return static_cast<int>(threadIdx.x) % kParts; }

  /// Starts copying the row of a slot; zeros for slot -1.
  __device__ void start(const KeyBuffer<kTile>& buffer, const RowLayout& layout, std::int32_t slot) {
    there = slot >= 0 ? 1 : 0;
    const auto named = static_cast<std::uint32_t>(max(slot, 0));
    const std::uint32_t block = layout.block_bits >= 0 ? named >> layout.block_bits : named / layout.block_size;
    const std::uint32_t in_block = named - block * layout.block_size;
    const std::uint8_t* base = layout.base + static_cast<std::int64_t>(block) * layout.block_stride;
    const std::uint8_t* data = base + static_cast<std::uint64_t>(in_block) * layout.row_bytes;
    const std::uint8_t* scales =
        base + layout.scales + static_cast<std::uint64_t>(in_block) * layout.scale_bytes + first_scale() / 4 * 4;
    const int pieces = buffer.layout.code_groups * (AttentionTile::kGroup / 16) - part();
    const std::uint8_t* from = data + 16 * part();
    const std::uint32_t to = buffer.codes(row()) + ((part() ^ KeyBuffer<kTile>::swizzle_codes(row())) << 4);
    const std::uint8_t* rest = data + AttentionTile::kGroup * buffer.layout.code_groups + 32 * part();
    // Address of piece part() + i * kParts. With four threads a row, every second piece is in the other half of its
    // 128 bytes.
    const auto place = [&](int i) { return kParts == 4 ? (to ^ (i % 2 * 64)) + i / 2 * 128 : to + i * 16 * kParts; };
    if (layout.aligned) {
#pragma unroll
      for (int i = 0; i < AttentionTile::kDim / 16 / kParts; ++i) {
        if (i * kParts < pieces) device::cp_async<16>(place(i), from + 16 * kParts * i, there != 0);
      }
      for_units(buffer, [&](int i, std::uint32_t even, std::uint32_t odd) {
        device::cp_async<16>(even, rest + 32 * kParts * i, there != 0);
        device::cp_async<16>(odd, rest + 32 * kParts * i + 16, there != 0);
      });
      if (layout.scaled && first_scale() < AttentionTile::kGroups)
        device::cp_async<4>(scale_place(buffer), scales, there != 0);
    } else {
#pragma unroll 1
      for (int i = 0; i * kParts < pieces; ++i) copy_piece(place(i), from + 16 * kParts * i, there != 0);
      for_units(buffer, [&](int i, std::uint32_t even, std::uint32_t odd) {
#pragma unroll 1
        for (int half = 0; half < 2; ++half)
          copy_piece(half == 0 ? even : odd, rest + 32 * kParts * i + 16 * half, there != 0);
      });
      if (layout.scaled && first_scale() < AttentionTile::kGroups) {
#pragma unroll 1
        for (int i = 0; i < 4; ++i) {
          const bool inside = there != 0 && first_scale() / 4 * 4 + i < static_cast<int>(layout.scale_bytes);
          const std::uint32_t byte = inside ? __ldg(scales + i) : 0U;
          asm volatile("st.shared.u8 [%0], %1;" ::"r"(scale_place(buffer) + i), "r"(byte) : "memory");
        }
      }
    }
  }

  /// Converts the copied part of the row, in place, to what the products take: call it after cp_async_wait(), and a
  /// barrier after it. Returns whether fp16 cannot represent a number.
  __device__ bool finish(const KeyBuffer<kTile>& buffer, bool scaled) const {
    std::uint32_t top = 0;
    for_units(buffer, [&](int, std::uint32_t even, std::uint32_t odd) {
      const uint4 a = device::ld_shared_v4(even);
      const uint4 b = device::ld_shared_v4(odd);
      const std::uint32_t x[8] = {unit_pair(a.x, top), unit_pair(a.y, top), unit_pair(a.z, top), unit_pair(a.w, top),
                                  unit_pair(b.x, top), unit_pair(b.y, top), unit_pair(b.z, top), unit_pair(b.w, top)};
      const auto low = [&](int i) { return halves_of(__uint_as_float(x[i] << 16), __uint_as_float(x[i + 1] << 16)); };
      const auto high = [&](int i) {
        return halves_of(__uint_as_float(x[i] & 0xFFFF'0000U), __uint_as_float(x[i + 1] & 0xFFFF'0000U));
      };
      const uint4 evens{low(0), low(2), low(4), low(6)};
      const uint4 odds{high(0), high(2), high(4), high(6)};
      device::st_shared_v4(even, evens);
      device::st_shared_v4(odd, odds);
    });
    bool unrepresentable = half_overflow(top) != 0U;
    if (first_scale() < buffer.layout.code_groups) {
      std::uint32_t bytes = 0;
      if (scaled) bytes = device::ld_shared_u32(scale_place(buffer));
      bytes >>= 8 * (first_scale() % 4);
      const int low = static_cast<int>(bytes & 0xFFU);
      const int high = first_scale() + 1 < buffer.layout.code_groups ? static_cast<int>(bytes >> 8 & 0xFFU) : 0;
      unrepresentable = unrepresentable || unrepresentable_scale(low) || unrepresentable_scale(high);
      // Without scales the factor of codes is 1.
      constexpr std::uint32_t kOne = ((15U + kCodeShift) << 10) * 0x1'0001U;
      const std::uint32_t pair = scaled ? static_cast<std::uint32_t>(half_scale(high)) << 16 | half_scale(low) : kOne;
      device::st_shared_u32(scale_place(buffer), pair);
    }
    if (part() == 0) asm volatile("st.shared.u8 [%0], %1;" ::"r"(buffer.valid() + row()), "r"(there) : "memory");
    return unrepresentable;
  }

 private:
  /// The first group whose scale this thread converts, and the address of the scales: first UE8M0 bytes, after the
  /// conversion fp16 numbers.
  __device__ static int first_scale() { return part() * kScales; }
  __device__ static std::uint32_t scale_place(const KeyBuffer<kTile>& buffer) {
    return buffer.scales(row()) + 2 * first_scale();
  }

  /// Calls f(i, address of the even numbers, address of the odd ones) for this thread's units part() + i * kParts, each
  /// of 16 bf16 numbers.
  template <class F>
  __device__ void for_units(const KeyBuffer<kTile>& buffer, F&& f) const {
    const int units = (AttentionTile::kGroups - buffer.layout.code_groups) * (AttentionTile::kGroup / kUnit) - part();
    const std::uint32_t even = buffer.halves(row()) + (((2 * part()) ^ KeyBuffer<kTile>::swizzle_halves(row())) << 4);
#pragma unroll 1
    for (int i = 0; i * kParts < units; ++i) f(i, even + 32 * kParts * i, (even ^ 16) + 32 * kParts * i);
  }
};

}  // namespace smla
