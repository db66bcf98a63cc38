#pragma once

#include "ops/attention/block_sm90.cuh"

namespace smla::attention::sm90 {

// How a computing warp writes its 16 rows of 256 columns. A thread has two rows, 8 apart, and of every 8 columns the
// two from 2 (lane % 4) on. number(i): its i-th of 128 numbers, four for each 8 columns: two of the first row, two of
// the second.

/// A warp's rows on their way to memory, through 2 KiB of shared memory that are its own: 16 rows of 128 bytes,
/// swizzled. There is no room for more columns at once.
struct RowStage {
  static constexpr int kRows = 16;

  std::uint32_t at;
  int heads;  ///< rows to write

  __device__ std::uint32_t place(int row, int piece) const { return at + row * 128 + ((piece ^ (row & 7)) << 4); }

  /// Writes what is staged, 16 bytes a lane, and makes room for what follows. `o`: where the first row's 128 bytes go;
  /// `stride`: bytes from a row to the next.
  __device__ void flush(std::uint8_t* o, std::int64_t stride) const {
    const int lane = Lane::fresh().lane;
    const int row = lane / 8;
    const std::uint32_t from = place(row, lane % 8);
    std::uint8_t* to = o + row * stride + lane % 8 * 16;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kRows; i += 8) {
      const uint4 a = device::ld_shared_v4(from + i * 128);
      const uint4 b =
          device::ld_shared_v4((from ^ 64) + (i + 4) * 128);  // rows 4 apart differ in the swizzle's last bit
      if (row + i < heads) *reinterpret_cast<uint4*>(to) = a;
      to += 4 * stride;
      if (row + i + 4 < heads) *reinterpret_cast<uint4*>(to) = b;
      to += 4 * stride;
    }
    __syncwarp();
    asm volatile("" ::: "memory");  // one after the other: there are no registers for more
  }
};

/// Two numbers rounded to bf16 or fp16, the first in the lower half.
struct Bf16Pair {
  __device__ std::uint32_t operator()(float low, float high) const {
    std::uint32_t bits;
    asm volatile("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
  }
};
struct HalfPair {
  __device__ std::uint32_t operator()(float low, float high) const {
    std::uint32_t bits;
    asm volatile("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
  }
};

/// Writes rows of 16-bit numbers, bf16 or fp16 as `pair` rounds them. `o`: the warp's first row at its first column;
/// `stride`: numbers from a row to the next.
template <class Number, class Pair>
__device__ void store_pairs(const RowStage& stage, std::uint16_t* o, std::int64_t stride, const Number& number,
                            const Pair& pair) {
  const int lane = fresh_thread() % 32;
  const int row = lane % 8 + lane / 8 % 2 * 8;
#pragma unroll
  for (int block = 0; block < 4; ++block) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      std::uint32_t v[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const int i = 32 * block + 8 * j + 2 * w;
        v[w] = pair(number(i), number(i + 1));
      }
      device::stmatrix_x4(stage.place(row, 2 * j + lane / 16), v[0], v[1], v[2], v[3]);
    }
    stage.flush(reinterpret_cast<std::uint8_t*>(o + 64 * block), 2 * stride);
  }
}

/// Writes fp32 rows; as store_pairs().
template <class Number>
__device__ void store_f32(const RowStage& stage, float* o, std::int64_t stride, const Number& number) {
  const int lane = fresh_thread() % 32;
#pragma unroll
  for (int block = 0; block < 8; ++block) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int i = 16 * block + 4 * j + 2 * r;
        const uint2 v{__float_as_uint(number(i)), __float_as_uint(number(i + 1))};
        device::st_shared_v2(stage.place(lane / 4 + 8 * r, 2 * j + lane % 4 / 2) + lane % 2 * 8, v);
      }
    }
    stage.flush(reinterpret_cast<std::uint8_t*>(o + 32 * block), 4 * stride);
  }
}

/// Writes rows number by number, because they are not aligned to more. `o`: the thread's first row at the warp's first
/// column; `left`: heads from that row on; `part`: lane % 4.
template <class T, class Number, class Round>
__device__ void store_singly(T* o, std::int64_t stride, int left, int part, const Number& number, const Round& round) {
  o += 2 * part;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (8 * r >= left) continue;
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      o[8 * r * stride + i / 2 * 8 + i % 2] = round(number(i / 2 * 4 + 2 * r + i % 2));
      asm volatile("" ::: "memory");
    }
  }
}

}  // namespace smla::attention::sm90
