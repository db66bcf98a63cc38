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

/// Stages 32 columns of fp32 rows.
template <class Number>
__device__ void stage_f32(const RowStage& stage, int lane, int block, const Number& number) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = 16 * block + 4 * j + 2 * r;
      const uint2 v{__float_as_uint(number(i)), __float_as_uint(number(i + 1))};
      device::st_shared_v2(stage.place(lane / 4 + 8 * r, 2 * j + lane % 4 / 2) + lane % 2 * 8, v);
    }
  }
}

/// Writes fp32 rows; as store_pairs().
template <class Number>
__device__ void store_f32(const RowStage& stage, float* o, std::int64_t stride, const Number& number) {
  const int lane = fresh_thread() % 32;
#pragma unroll
  for (int block = 0; block < 8; ++block) {
    stage_f32(stage, lane, block, number);
    stage.flush(reinterpret_cast<std::uint8_t*>(o + 32 * block), 4 * stride);
  }
}

/// What a row's numbers are divided by before they become E4M3, as an exponent of 2. `most`: the largest magnitude that
/// the lane's have, of four lanes that share the row.
__device__ inline int scale_exponent(float most) {
  most = fmaxf(1e-10F, device::max_of_lanes(most, 4));
  return ceil_log2(__fmul_rn(most, 1.0F / 448.0F));
}

/// Where a warp's rows go that become E4M3, in shared memory: there are no registers for it beside the output.
struct QuantisedRows {
  static constexpr std::uint32_t kBytes = 32;  ///< of a row: u64 its numbers, u64 its first scale, u64 columns of it

  std::uint32_t at;

  __device__ std::uint32_t place(int row) const { return at + row * kBytes; }
  /// Of 16 lanes, one for each row; `heads`: rows that there are. The others go nowhere.
  __device__ void put(const AttentionCall& a, std::int64_t token, std::uint32_t first_head, int heads, int side) const {
    const int row = fresh_thread() % 32;
    if (row < RowStage::kRows) {
      const bool there = row < heads;
      const std::uint32_t head = first_head + (there ? row : 0);
      const std::uint8_t* const to = there ? quantised_head(a, token, head) + 256 * side : nullptr;
      device::st_shared_u64(place(row), reinterpret_cast<std::uint64_t>(to));
      device::st_shared_u64(place(row) + 8, reinterpret_cast<std::uint64_t>(scale_place(a, token, head, 2 * side)));
      device::st_shared_u64(place(row) + 16, there ? scale_columns(a, token) : 0);
    }
    __syncwarp();
  }
  __device__ std::uint8_t* numbers(int row) const {
    return reinterpret_cast<std::uint8_t*>(device::ld_shared_u64(place(row)));
  }
  /// Stores the scale of the left or the right 128 of the warp's columns of a row.
  __device__ void store_scale(const QuantisedOutput& q, int row, int half, int exponent) const {
    auto* first = reinterpret_cast<std::uint8_t*>(device::ld_shared_u64(place(row) + 8));
    first += q.packed ? half : 4 * half * q.stride[1];
    attention::store_scale(q.packed, first, static_cast<std::int64_t>(device::ld_shared_u64(place(row) + 16)),
                           exponent);
  }
};

/// Writes 32 columns of rows as E4M3, from `column` of the warp's on. They are staged in fp32, already divided by their
/// scales.
__device__ inline void flush_codes(const RowStage& stage, const QuantisedRows& rows, int column) {
  const int lane = fresh_thread() % 32;
  const std::uint32_t from = stage.place(lane / 8, lane % 8);
  __syncwarp();
#pragma unroll
  for (int i = 0; i < RowStage::kRows; i += 4) {
    const float4 v = device::widened(device::ld_shared_v4((i % 8 == 0 ? from : from ^ 64) + i * 128));
    const std::uint32_t codes = device::e4m3_codes(v, v);
    if (std::uint8_t* const row = rows.numbers(lane / 8 + i); row != nullptr)
      *reinterpret_cast<std::uint32_t*>(row + column + lane % 8 * 4) = codes;
    asm volatile("" ::: "memory");
  }
  __syncwarp();
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
