#pragma once

#include <cuda_pipeline_primitives.h>

#include "device/ptx/mma_sm80.cuh"
#include "ops/projection/few_rows.cuh"

namespace smla::projection {

// A block of eight warps (2 x 4) computes 64 x 128 outputs, a warp 32 x 32.

constexpr int kTileM = 64;
constexpr int kTileN = 128;
constexpr int kTileK = 64;
constexpr int kStages = 3;
constexpr int kTileWarps = 8;
constexpr int kTileBytes = (kTileM + kTileN) * kTileK * 2;
constexpr int kTileShared = kStages * kTileBytes;

/// The place of 16-byte chunk `c` in a row of 64 bf16 numbers. Chunks are permuted by the row's number, so that a chunk
/// of eight rows is read without bank conflicts.
__device__ inline int swizzled(int row, int c) { return row * 128 + ((c ^ (row & 7)) * 16); }

__device__ inline void ldmatrix_x4(std::uint32_t (&r)[4], const std::uint8_t* at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(at))));
}

/// Starts copying a tile of `rows` rows from input k on; rows and inputs that do not exist are zeros.
__device__ inline void fetch(std::uint8_t* to, const BF16* from, std::int64_t stride, int rows, std::int64_t rows_left,
                             std::int64_t k, std::int64_t k_end) {
  for (int i = static_cast<int>(threadIdx.x); i < rows * (kTileK / 8); i += 32 * kTileWarps) {
    const int r = i / (kTileK / 8);
    const int c = i % (kTileK / 8);
    const bool there = r < rows_left && k + 8 * c < k_end;
    const BF16* source = from + (there ? r * stride + k + 8 * c : 0);
    __pipeline_memcpy_async(to + swizzled(r, c), source, 16, there ? 0 : 16);
  }
}

/// Groups of sixteen NVFP4 weights that a thread brings into a stage: loaded while the stages before are multiplied,
/// then widened. Weights that do not exist are zeros.
class WidenedWeights {
 public:
  __device__ void load(const Operands& o, std::int64_t group, std::int64_t column, std::int64_t k) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const LoadedCodes<true> loaded(o, group, column + row_of(i), k + 16 * place_of(i));
      codes_[i] = loaded.codes;
      scales_[i] = loaded.scale;
    }
  }
  __device__ void store(std::uint8_t* to) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const std::uint32_t factor = widen_nvfp4_scale(scales_[i], 0);
      *reinterpret_cast<uint4*>(to + swizzled(row_of(i), 2 * place_of(i))) =
          in_code_order(widen_nvfp4(codes_[i].x, factor));
      *reinterpret_cast<uint4*>(to + swizzled(row_of(i), 2 * place_of(i) + 1)) =
          in_code_order(widen_nvfp4(codes_[i].y, factor));
    }
  }

 private:
  static constexpr int kOfRow = kTileK / 16;
  static constexpr int kEach = kTileN * kOfRow / (32 * kTileWarps);
  __device__ static int row_of(int i) { return (static_cast<int>(threadIdx.x) + 32 * kTileWarps * i) / kOfRow; }
  __device__ static int place_of(int i) { return static_cast<int>(threadIdx.x) % kOfRow; }

  uint2 codes_[kEach];
  std::uint32_t scales_[kEach];
};

/// kNvfp4: w is NVFP4, and becomes bf16 on its way to shared memory.
template <bool kNvfp4>
__global__ void __launch_bounds__(32 * kTileWarps)
    many_rows(const __grid_constant__ Operands o, std::int64_t column_blocks, std::int64_t row_blocks) {
  extern __shared__ __align__(128) std::uint8_t shared[];
  // Rows are innermost, so that blocks that run together share their weights in L2.
  const std::int64_t row = blockIdx.x % row_blocks * kTileM;
  const std::int64_t column = blockIdx.x / row_blocks % column_blocks * kTileN;
  const std::int64_t group = blockIdx.x / row_blocks / column_blocks;
  const BF16* x = static_cast<const BF16*>(o.x) + row * o.x_row + group * o.x_group;
  const BF16* w = static_cast<const BF16*>(o.w) + (group * o.n + column) * o.k;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp_m = warp / 4 * 32;
  const int warp_n = warp % 4 * 32;
  const std::int64_t steps = (o.k + kTileK - 1) / kTileK;
  const auto stage = [&](std::int64_t step) { return shared + step % kStages * kTileBytes; };
  const auto start = [&](std::int64_t step) {
    if (step < steps) {
      fetch(stage(step), x, o.x_row, kTileM, o.m - row, step * kTileK, o.k);
      if constexpr (!kNvfp4) fetch(stage(step) + kTileM * kTileK * 2, w, o.k, kTileN, o.n - column, step * kTileK, o.k);
    }
    __pipeline_commit();
  };
  const auto start_weights = [&](std::int64_t step, WidenedWeights& weights) {
    if (kNvfp4 && step < steps) weights.load(o, group, column, step * kTileK);
  };
  const auto finish_weights = [&](std::int64_t step, const WidenedWeights& weights) {
    if (kNvfp4 && step < steps) weights.store(stage(step) + kTileM * kTileK * 2);
  };

  float acc[2][4][4] = {};
  WidenedWeights weights;
  for (int s = 0; s < kStages - 1; ++s) {
    start(s);
    start_weights(s, weights);
    finish_weights(s, weights);
  }
  for (std::int64_t step = 0; step < steps; ++step) {
    __pipeline_wait_prior(kStages - 2);
    __syncthreads();
    start(step + kStages - 1);
    start_weights(step + kStages - 1, weights);
    const std::uint8_t* xs = stage(step);
    const std::uint8_t* ws = xs + kTileM * kTileK * 2;
#pragma unroll
    for (int k = 0; k < kTileK / 16; ++k) {
      std::uint32_t a[2][4];
      std::uint32_t b[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        ldmatrix_x4(a[i], xs + swizzled(warp_m + 16 * i + lane % 16, 2 * k + lane / 16));
        ldmatrix_x4(b[i], ws + swizzled(warp_n + 16 * i + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j)
          device::mma_m16n8k16_bf16(acc[i][j], a[i][0], a[i][1], a[i][2], a[i][3], b[j / 2][j % 2 * 2],
                                    b[j / 2][j % 2 * 2 + 1]);
      }
    }
    finish_weights(step + kStages - 1, weights);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        const std::int64_t r = row + warp_m + 16 * i + lane / 4 + v / 2 * 8;
        const std::int64_t c = column + warp_n + 8 * j + lane % 4 * 2 + v % 2;
        if (r < o.m && c < o.n) o.store(r, group, c, o.of_sum(acc[i][j][v], kNvfp4Unit));
      }
    }
  }
}

}  // namespace smla::projection
