#pragma once

#include "ops/attention/attention_block.cuh"

namespace smla::attention::sm90 {

// How a computing warpgroup writes its 64 rows of 256 columns. A thread has two rows, 8 apart, of which `left` says how
// many heads there are from the first on, and of every 8 columns the two from 2 `part` on. number(i): its i-th of 128
// numbers, four for each 8 columns: two of the first row, two of the second. `o`: the first row at the warpgroup's
// first column; `stride`: numbers from a row to the next.

/// Writes bf16 rows, 16 bytes at a time: the four lanes that share a row exchange their columns.
template <class Number>
__device__ void store_bf16(std::uint16_t* o, std::int64_t stride, int left, int part, const Number& number) {
  o += 8 * part;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int block = 0; block < 8; ++block) {
      std::uint32_t v[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int i = 4 * (4 * block + j) + 2 * r;
        asm volatile("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v[j]) : "f"(number(i + 1)), "f"(number(i)));
      }
      const auto exchange = [&](std::uint32_t& a, std::uint32_t& b, int with) {
        const bool upper = (part & with) != 0;
        const std::uint32_t got = __shfl_xor_sync(kAll, upper ? a : b, with);
        (upper ? a : b) = got;
      };
      exchange(v[0], v[1], 1), exchange(v[2], v[3], 1);
      exchange(v[0], v[2], 2), exchange(v[1], v[3], 2);
      if (8 * r < left) *reinterpret_cast<uint4*>(o + 8 * r * stride + 32 * block) = make_uint4(v[0], v[1], v[2], v[3]);
      asm volatile("" ::: "memory");  // one after the other: there are no registers for more
    }
  }
}

/// Writes fp32 rows.
template <class Number>
__device__ void store_f32(float* o, std::int64_t stride, int left, int part, const Number& number) {
  o += 2 * part;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (8 * r >= left) continue;
#pragma unroll
    for (int j = 0; j < 32; ++j) {
      *reinterpret_cast<float2*>(o + 8 * r * stride + 8 * j) =
          make_float2(number(4 * j + 2 * r), number(4 * j + 2 * r + 1));
      asm volatile("" ::: "memory");
    }
  }
}

/// Writes rows number by number, because they are not aligned to more.
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
