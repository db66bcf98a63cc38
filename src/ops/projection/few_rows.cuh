#pragma once

#include <cuda_bf16.h>

#include "device/ptx/mma_sm80.cuh"
#include "ops/projection/operands.cuh"

namespace smla::projection {

// A block computes 16 rows x kFewColumns outputs; its warps divide k. The order of inputs within a dot product is free
// as long as both operands have the same, so a lane loads 16 bytes of a row, eight consecutive inputs, for two steps of
// mma.sync.

constexpr int kFewRows = 16;
constexpr int kFewColumns = 32;
constexpr int kFewWarps = 8;
constexpr int kFewTiles = kFewColumns / 8;

/// Loads eight inputs of x as bf16, in which e4m3 is exact.
template <bool kE4M3>
__device__ uint4 load_x(const Operands& o, std::int64_t row, std::int64_t group, std::int64_t k) {
  if (row >= o.m || k >= o.k) return make_uint4(0, 0, 0, 0);
  const std::int64_t at = row * o.x_row + group * o.x_group + k;
  if constexpr (!kE4M3) {
    return *reinterpret_cast<const uint4*>(static_cast<const BF16*>(o.x) + at);
  } else {
    const uint2 bytes = *reinterpret_cast<const uint2*>(static_cast<const std::uint8_t*>(o.x) + at);
    const auto pair = [](std::uint32_t two) {
      const std::uint32_t low = __float_as_uint(device::from_e4m3(static_cast<std::uint8_t>(two & 0xFFU))) >> 16;
      const std::uint32_t high = __float_as_uint(device::from_e4m3(static_cast<std::uint8_t>(two >> 8))) & 0xFFFF'0000U;
      return low | high;
    };
    return make_uint4(pair(bytes.x & 0xFFFFU), pair(bytes.x >> 16), pair(bytes.y & 0xFFFFU), pair(bytes.y >> 16));
  }
}

/// Adds the sums of a block's warps in their order and stores them.
__device__ inline void add_warps(const Operands& o, const float (&acc)[kFewTiles][4],
                                 float (&sums)[kFewWarps][kFewRows][kFewColumns], std::int64_t row, std::int64_t column,
                                 std::int64_t group) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int mma_row = static_cast<int>(threadIdx.x) % 32 / 4;
  const int lane = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int tile = 0; tile < kFewTiles; ++tile) {
    const int at = 8 * tile + 2 * lane;
    sums[warp][mma_row][at] = acc[tile][0];
    sums[warp][mma_row][at + 1] = acc[tile][1];
    sums[warp][mma_row + 8][at] = acc[tile][2];
    sums[warp][mma_row + 8][at + 1] = acc[tile][3];
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kFewRows * kFewColumns; i += 32 * kFewWarps) {
    const int r = i / kFewColumns;
    const int j = i % kFewColumns;
    if (row + r >= o.m || column + j >= o.n) continue;
    float sum = 0;
#pragma unroll
    for (int s = 0; s < kFewWarps; ++s) sum += sums[s][r][j];
    o.store(row + r, group, column + j, o.of_sum(sum, kNvfp4Unit));
  }
}

template <bool kE4M3>
__global__ void __launch_bounds__(32 * kFewWarps)
    few_rows(const __grid_constant__ Operands o, std::int64_t column_blocks, std::int64_t row_blocks) {
  __shared__ float sums[kFewWarps][kFewRows][kFewColumns];
  const std::int64_t column = blockIdx.x % column_blocks * kFewColumns;
  const std::int64_t row = blockIdx.x / column_blocks % row_blocks * kFewRows;
  const std::int64_t group = blockIdx.x / column_blocks / row_blocks;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int mma_row = static_cast<int>(threadIdx.x) % 32 / 4;
  const int lane = static_cast<int>(threadIdx.x) % 4;
  const BF16* w = static_cast<const BF16*>(o.w) + group * o.n * o.k;

  float acc[kFewTiles][4] = {};
  for (std::int64_t chunk = warp; chunk * kChunk < o.k; chunk += kFewWarps) {
    float part[kFewTiles][4] = {};
    float(&into)[kFewTiles][4] = kE4M3 ? part : acc;
#pragma unroll(kE4M3 ? 1 : kChunk / 32)
    for (int step = 0; step < kChunk / 32; ++step) {
      const std::int64_t k = chunk * kChunk + 32 * step + 8 * lane;
      const uint4 a = load_x<kE4M3>(o, row + mma_row, group, k);
      const uint4 c = load_x<kE4M3>(o, row + mma_row + 8, group, k);
#pragma unroll
      for (int tile = 0; tile < kFewTiles; ++tile) {
        const std::int64_t j = column + 8 * tile + mma_row;
        uint4 b = make_uint4(0, 0, 0, 0);
        if (j < o.n && k < o.k) b = __ldg(reinterpret_cast<const uint4*>(w + j * o.k + k));
        device::mma_m16n8k16_bf16(into[tile], a.x, c.x, a.y, c.y, b.x, b.y);
        device::mma_m16n8k16_bf16(into[tile], a.z, c.z, a.w, c.w, b.z, b.w);
      }
    }
    if constexpr (kE4M3) {
      const float top = row + mma_row < o.m ? o.scale(row + mma_row, group, chunk) : 0;
      const float bottom = row + mma_row + 8 < o.m ? o.scale(row + mma_row + 8, group, chunk) : 0;
#pragma unroll
      for (int tile = 0; tile < kFewTiles; ++tile) {
        acc[tile][0] += top * part[tile][0];
        acc[tile][1] += top * part[tile][1];
        acc[tile][2] += bottom * part[tile][2];
        acc[tile][3] += bottom * part[tile][3];
      }
    }
  }
  add_warps(o, acc, sums, row, column, group);
}

/// Converts four E4M3 codes to bf16, in which they are exact, in two registers.
__device__ inline uint2 bf16_of_e4m3(std::uint32_t codes) {
  constexpr std::uint32_t kMagnitudes = 0x7F7F'7F7FU;
  if ((((codes & kMagnitudes) + 0x0101'0101U) & 0x8080'8080U) != 0) {  // one of them is a NaN
    const auto one = [&](int i) {
      return __float_as_uint(device::from_e4m3(static_cast<std::uint8_t>(codes >> (8 * i)))) >> 16;
    };
    return make_uint2(one(0) | one(1) << 16, one(2) | one(3) << 16);
  }
  // Shifted to the bits of bf16, a code is 2^-120 of its value, subnormals included.
  const auto pair = [](std::uint32_t high_bytes) {
    const std::uint32_t bits = (high_bytes >> 4 & 0x07F0'07F0U) | (high_bytes & 0x8000'8000U);
    std::uint32_t out;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;"
        : "=r"(out)
        : "r"(bits), "r"(0x7B80'7B80U), "r"(0x8000'8000U));  // times 2^120, plus -0
    return out;
  };
  return make_uint2(pair(__byte_perm(codes, 0, 0x1404)), pair(__byte_perm(codes, 0, 0x3424)));
}

/// Loads sixteen inputs of a row as bf16: inputs 0-7 and 8-15.
struct Sixteen {
  uint4 low = {0, 0, 0, 0};
  uint4 high = {0, 0, 0, 0};
};
__device__ inline Sixteen sixteen_of_e4m3(const uint4& codes) {
  const uint2 a = bf16_of_e4m3(codes.x);
  const uint2 b = bf16_of_e4m3(codes.y);
  const uint2 c = bf16_of_e4m3(codes.z);
  const uint2 d = bf16_of_e4m3(codes.w);
  return {make_uint4(a.x, a.y, b.x, b.y), make_uint4(c.x, c.y, d.x, d.y)};
}
template <bool kE4M3>
__device__ Sixteen load_sixteen(const Operands& o, std::int64_t row, std::int64_t group, std::int64_t k) {
  if (row >= o.m || k >= o.k) return {};
  const std::int64_t at = row * o.x_row + group * o.x_group + k;
  if constexpr (kE4M3) {
    return sixteen_of_e4m3(*reinterpret_cast<const uint4*>(static_cast<const std::uint8_t*>(o.x) + at));
  } else {
    const auto* x = reinterpret_cast<const uint4*>(static_cast<const BF16*>(o.x) + at);
    return {x[0], x[1]};
  }
}

static_assert(Projection::kWeightBlock == kChunk &&
              Projection::kWeightBlock % kFewColumns == 0);  // one scale of w for each step of a warp

/// A lane's sixteen E4M3 or NVFP4 weights from input k of output j on, zeros where there are none; NVFP4 ones are what
/// widen_nvfp4() makes of them.
template <bool kNvfp4>
struct LoadedCodes;
template <>
struct LoadedCodes<false> {
  uint4 codes = {0, 0, 0, 0};
  __device__ LoadedCodes(const Operands& o, std::int64_t group, std::int64_t j, std::int64_t k) {
    const auto* const w = static_cast<const std::uint8_t*>(o.w) + (group * o.n + j) * o.k + k;
    if (j < o.n && k < o.k) codes = __ldg(reinterpret_cast<const uint4*>(w));
  }
  __device__ Sixteen widened() const { return sixteen_of_e4m3(codes); }
};
template <>
struct LoadedCodes<true> {
  uint2 codes = {0, 0};
  std::uint32_t scale = 0;
  __device__ LoadedCodes(const Operands& o, std::int64_t group, std::int64_t j, std::int64_t k) {
    if (j >= o.n || k >= o.k) return;
    const std::int64_t at = (group * o.n + j) * o.k + k;
    codes = __ldg(reinterpret_cast<const uint2*>(static_cast<const std::uint8_t*>(o.w) + at / 2));
    scale = __ldg(o.group_scale + at / Projection::kNvfp4Group);
  }
  __device__ Sixteen widened() const {
    const std::uint32_t factor = widen_nvfp4_scale(scale, 0);
    return {in_code_order(widen_nvfp4(codes.x, factor)), in_code_order(widen_nvfp4(codes.y, factor))};
  }
};

/// few_rows for E4M3 or NVFP4 weights: a lane has sixteen inputs, for four steps of mma.sync. kE4M3: x is E4M3, too.
template <bool kE4M3, bool kNvfp4>
__global__ void __launch_bounds__(32 * kFewWarps)
    few_rows_of_codes(const __grid_constant__ Operands o, std::int64_t column_blocks, std::int64_t row_blocks) {
  __shared__ float sums[kFewWarps][kFewRows][kFewColumns];
  // Rows are innermost, so that blocks that run together share their weights in L2.
  const std::int64_t row = blockIdx.x % row_blocks * kFewRows;
  const std::int64_t column = blockIdx.x / row_blocks % column_blocks * kFewColumns;
  const std::int64_t group = blockIdx.x / row_blocks / column_blocks;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int mma_row = static_cast<int>(threadIdx.x) % 32 / 4;
  const int lane = static_cast<int>(threadIdx.x) % 4;

  float acc[kFewTiles][4] = {};
  for (std::int64_t chunk = warp; chunk * kChunk < o.k; chunk += kFewWarps) {
    float part[kFewTiles][4] = {};
#pragma unroll
    for (int step = 0; step < kChunk / 64; ++step) {
      const std::int64_t k = chunk * kChunk + 64 * step + 16 * lane;
      const auto load = [&](int tile) { return LoadedCodes<kNvfp4>(o, group, column + 8 * tile + mma_row, k); };
      const LoadedCodes<kNvfp4> codes[kFewTiles] = {load(0), load(1), load(2), load(3)};
      static_assert(kFewTiles == 4);
      const Sixteen a = load_sixteen<kE4M3>(o, row + mma_row, group, k);
      const Sixteen c = load_sixteen<kE4M3>(o, row + mma_row + 8, group, k);
#pragma unroll
      for (int tile = 0; tile < kFewTiles; ++tile) {
        const Sixteen b = codes[tile].widened();
        device::mma_m16n8k16_bf16(part[tile], a.low.x, c.low.x, a.low.y, c.low.y, b.low.x, b.low.y);
        device::mma_m16n8k16_bf16(part[tile], a.low.z, c.low.z, a.low.w, c.low.w, b.low.z, b.low.w);
        device::mma_m16n8k16_bf16(part[tile], a.high.x, c.high.x, a.high.y, c.high.y, b.high.x, b.high.y);
        device::mma_m16n8k16_bf16(part[tile], a.high.z, c.high.z, a.high.w, c.high.w, b.high.z, b.high.w);
      }
    }
    const float weights = kNvfp4 ? 1 : o.weight_scale(group, column, chunk);
    float top = weights;
    float bottom = weights;
    if constexpr (kE4M3) {
      top = row + mma_row < o.m ? o.scale(row + mma_row, group, chunk) : 0;
      bottom = row + mma_row + 8 < o.m ? o.scale(row + mma_row + 8, group, chunk) : 0;
    }
#pragma unroll
    for (int tile = 0; tile < kFewTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float v = part[tile][i] * (i < 2 ? top : bottom);
        if constexpr (kE4M3) v *= weights;
        acc[tile][i] += v;
      }
    }
  }
  add_warps(o, acc, sums, row, column, group);
}

}  // namespace smla::projection
