#pragma once

#include <cuda_bf16.h>

#include "device/ptx.cuh"
#include "ops/attention/attention_call.cuh"
#include "ops/attention/tile_math.cuh"

namespace smla {

/// How rows of 512 numbers are turned into bf16, piece by piece of eight numbers: first pieces of e4m3 codes, then pieces of bf16. Both are exact: an e4m3
/// number has four significant bits, and a group's scale is a power of two. The scale of a whole cache is left to scores and weights.
struct PieceFormat {
  int codes = 0;   ///< pieces of e4m3 codes
  int scaled = 0;  ///< pieces under a scale byte, of eight pieces each
  int word = 1;    ///< what divides every piece's address: 16, 8 or less
};

/// Bytes of a piece: eight codes in the first half, or eight bf16 numbers.
__device__ inline uint4 load_piece(const std::uint8_t* row, int c, const PieceFormat& f) {
  const bool codes = c < f.codes;
  const std::uint8_t* p = row + (codes ? 8 * c : 16 * c - 8 * f.codes);
  uint4 v{0, 0, 0, 0};
  if (f.word >= 8) {
    if (!codes && f.word == 16) return __ldg(reinterpret_cast<const uint4*>(p));
    const uint2 low = __ldg(reinterpret_cast<const uint2*>(p));
    v.x = low.x, v.y = low.y;
    if (codes) return v;
    const uint2 high = __ldg(reinterpret_cast<const uint2*>(p) + 1);
    v.z = high.x, v.w = high.y;
    return v;
  }
#pragma unroll 1
  for (int i = codes ? 7 : 15; i >= 0; --i) {
    v.w = __funnelshift_l(v.z, v.w, 8);
    v.z = __funnelshift_l(v.y, v.z, 8);
    v.y = __funnelshift_l(v.x, v.y, 8);
    v.x = v.x << 8 | __ldg(p + i);
  }
  return v;
}

__device__ inline std::uint32_t multiply_pair(std::uint32_t a, std::uint32_t b) {
  __nv_bfloat162 x;
  __nv_bfloat162 y;
  memcpy(&x, &a, 4);
  memcpy(&y, &b, 4);
  x = __hmul2(x, y);
  memcpy(&a, &x, 4);
  return a;
}

/// Two codes, each in the upper byte of its half. As the low bits of a bf16 number a code is 2^-120 of its value, subnormals too.
__device__ inline std::uint32_t widen_pair(std::uint32_t codes, std::uint32_t scale) {
  const std::uint32_t small = (codes & 0x8000'8000U) | ((codes >> 4) & 0x07F0'07F0U);
  return multiply_pair(multiply_pair(small, 0x7B80'7B80U), scale);
}

/// Bits of 2^(byte - 127) as bf16, twice; 255 is NaN.
__device__ inline std::uint32_t scale_pair(std::uint32_t byte) {
  const std::uint32_t bits = byte == 255U ? 0x7FC0U : (byte == 0U ? 0x0040U : byte << 7);
  return bits << 16 | bits;
}

/// Eight codes times a scale as bf16.
__device__ inline uint4 widen_codes(std::uint32_t low, std::uint32_t high, std::uint32_t scale) {
  uint4 v{widen_pair(__byte_perm(low, 0, 0x1404), scale), widen_pair(__byte_perm(low, 0, 0x3424), scale),
          widen_pair(__byte_perm(high, 0, 0x1404), scale), widen_pair(__byte_perm(high, 0, 0x3424), scale)};
  // Codes 0x7F and 0xFF are NaN: here they came out as 480.
  const std::uint32_t nan = (((low & 0x7F7F'7F7FU) + 0x0101'0101U) | ((high & 0x7F7F'7F7FU) + 0x0101'0101U)) & 0x8080'8080U;
  if (nan != 0U) {
    const auto patch = [](std::uint32_t pair, std::uint32_t codes) {
      if ((codes & 0x7FU) == 0x7FU) pair = (pair & 0xFFFF'0000U) | 0x7FC0U;
      if ((codes & 0x7F00U) == 0x7F00U) pair = (pair & 0xFFFFU) | 0x7FC0'0000U;
      return pair;
    };
    v = {patch(v.x, low), patch(v.y, low >> 16), patch(v.z, high), patch(v.w, high >> 16)};
  }
  return v;
}

/// Where a key's numbers and scale bytes are; data is null where a list names no row.
struct KeyRow {
  const std::uint8_t* data = nullptr;
  const std::uint8_t* scales = nullptr;
};

/// The row of a slot, -1 for none.
__device__ inline KeyRow key_row(const device::CacheView& cache, std::int32_t slot) {
  if (slot < 0) return {};
  // A slot has 31 bits; a block longer than that holds them all.
  const std::int64_t block = cache.block_size > slot ? 0 : static_cast<std::uint32_t>(slot) / static_cast<std::uint32_t>(cache.block_size);
  const std::int64_t row = slot - block * cache.block_size;
  const std::uint8_t* base = cache.base + block * cache.block_stride;
  return {base + row * cache.data_bytes, base + cache.block_size * cache.data_bytes + row * cache.scale_bytes};
}

/// kRows rows on their way from global to shared memory, in the registers of a warp: two pieces a lane. Behind its eight codes a piece keeps their scale.
template <int kRows>
struct RowsInFlight {
  uint4 piece[kRows][2];

  __device__ void load(int r, const KeyRow& row, const PieceFormat& f) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int c = lane + 32 * i;
      uint4 v{0, 0, 0, 0};
      if (row.data != nullptr) v = load_piece(row.data, c, f);
      if (c < f.codes) v.z = row.data != nullptr && c < f.scaled ? __ldg(row.scales + c / 8) : 127U;
      piece[r][i] = v;
    }
  }
  /// As row `at` of the rows in `shared`.
  __device__ void store(int r, std::uint8_t* shared, int at, const PieceFormat& f) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int c = lane + 32 * i;
      const uint4 v = piece[r][i];
      *reinterpret_cast<uint4*>(shared + piece_at(at, c)) = c < f.codes ? widen_codes(v.x, v.y, scale_pair(v.z)) : v;
    }
  }
};

}  // namespace smla
