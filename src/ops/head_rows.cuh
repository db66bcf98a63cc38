#pragma once

#include "device/launch.cuh"
#include "device/row_views.cuh"

namespace smla {

// Shared by kernels whose rows are the heads of a token: RMSNorm's factor, RoPE, the grid.

/// The factor of RMSNorm for a row of n numbers.
__device__ inline float inverse_root(float squares, int n, float eps) {
  return __frsqrt_rn(__fdiv_rn(squares, static_cast<float>(n)) + eps);
}

/// A rope table and the rotation of numbers i..i+3 of a row by it. Pair p is numbers nope + 2p and nope + 2p + 1; each
/// product and each sum is rounded by itself. i and `nope` are both even or both odd.
struct Rope {
  const float* cos_sin = nullptr;
  std::int64_t rows = 0;
  std::int64_t stride = 0;
  int nope = 0;
  int pairs = 0;

  __device__ bool has(std::int64_t position) const { return position >= 0 && position < rows; }
  /// The row of a position that the table has.
  __device__ const float* row(std::int64_t position) const {
    return pairs == 0 ? nullptr : cos_sin + position * stride;
  }

  __device__ static void rotate(float& e, float& o, float c, float s) {
    const float even = __fsub_rn(__fmul_rn(e, c), __fmul_rn(o, s));
    o = __fadd_rn(__fmul_rn(o, c), __fmul_rn(e, s));
    e = even;
  }
  /// `sign` -1 rotates back: e*c - o*(-s) has the bits of e*c + o*s.
  __device__ float4 rotated(float4 v, int i, const float* row, float sign = 1.0F) const {
    const int p = (i - nope) / 2;
    if (i >= nope && p < pairs) rotate(v.x, v.y, row[p], sign * row[pairs + p]);
    if (i + 2 >= nope && p + 1 < pairs) rotate(v.z, v.w, row[p + 1], sign * row[pairs + p + 1]);
    return v;
  }
};

/// Norms, without a weight, and rotates kRows rows of n numbers that a warp holds: v[row][k] has numbers 128 k + 4 lane
/// and the next three, zeros past n. The result is what QNormRopeInsert computes before it rounds. `cos_sin`: of each
/// row; one without it stays as it is.
template <int kRows, int kVec4s>
__device__ void norm_and_rotate(float4 (&v)[kRows][kVec4s], int n, float eps, const Rope& rope,
                                const float* const (&cos_sin)[kRows]) {
  float sum[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    device::Squares squares;
#pragma unroll
    for (int k = 0; k < kVec4s; ++k) squares.add(v[r][k]);
    sum[r] = squares.all();
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) sum[r] = inverse_root(device::sum_of_warp(sum[r]), n, eps);
#pragma unroll
  for (int k = 0; k < kVec4s; ++k) {
    const int i = 128 * k + 4 * static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (cos_sin[r] != nullptr) v[r][k] = rope.rotated(device::scaled(v[r][k], sum[r]), i, cos_sin[r]);
    }
  }
}
/// The same of rows that one row of cos_sin rotates.
template <int kRows, int kVec4s>
__device__ void norm_and_rotate(float4 (&v)[kRows][kVec4s], int n, float eps, const Rope& rope, const float* cos_sin) {
  const float* rows[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) rows[r] = cos_sin;
  norm_and_rotate(v, n, eps, rope, rows);
}

inline Rope rope_of(const ConstTensorView& cos_sin, int dim, int rope_dim) {
  return {.cos_sin = static_cast<const float*>(cos_sin.data),
          .rows = cos_sin.size(0),
          .stride = cos_sin.stride[0],
          .nope = dim - rope_dim,
          .pairs = rope_dim / 2};
}

/// A grid with one warp for each head of each token. Blocks are dim3(32, heads) and never span two tokens.
struct HeadGrid {
  static constexpr int kWarps = 8;  ///< the most heads of a block
  unsigned chunks = 0;              ///< blocks of a token
  unsigned heads = 0;               ///< heads of a block

  static HeadGrid of(std::int64_t heads) {
    if (heads == 0) return {};
    const std::int64_t chunks = (heads + kWarps - 1) / kWarps;
    return {static_cast<unsigned>(chunks), static_cast<unsigned>((heads + chunks - 1) / chunks)};
  }
  unsigned blocks(std::int64_t tokens) const { return blocks_for(tokens * chunks, 1); }
  dim3 block() const { return dim3(32, heads); }
  __device__ std::int64_t token() const { return blockIdx.x / chunks; }
  __device__ std::int64_t head() const { return blockIdx.x % chunks * heads + threadIdx.y; }
};

/// The sum over a block of dim3(32, HeadGrid::kWarps), warp by warp in their order.
__device__ inline float sum_of_block(float v) {
  __shared__ float parts[HeadGrid::kWarps];
  v = device::sum_of_warp(v);
  if (threadIdx.x == 0) parts[threadIdx.y] = v;
  __syncthreads();
  v = 0;
#pragma unroll
  for (int w = 0; w < HeadGrid::kWarps; ++w) v += parts[w];
  return v;
}

}  // namespace smla
