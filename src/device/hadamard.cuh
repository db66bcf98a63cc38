#pragma once

#include <cuda_runtime.h>

namespace smla::device {

namespace hadamard_steps {

/// Butterfly of two numbers of one thread.
__device__ inline void cross(float& a, float& b) {
  const float sum = __fadd_rn(a, b);
  b = __fsub_rn(a, b);
  a = sum;
}

/// Butterfly with the thread `lanes` away: the lower of the two keeps the sum.
__device__ inline float across(float v, int lanes, bool upper) {
  const float other = __shfl_xor_sync(0xFFFF'FFFFU, v, lanes);
  return upper ? __fsub_rn(other, v) : __fadd_rn(v, other);
}

}  // namespace hadamard_steps

/// Normalised Walsh-Hadamard transform in place of the n numbers that a warp holds, bit for bit the one of cache/row_codec.h: number
/// 128*i + 4*lane + j is component j of the lane's x[i]. n is a power of two up to 128*kQuads; components past n become anything.
/// All 32 lanes take part. A row of 128 in shared memory: `float4 x[1] = {row[lane]}; hadamard(x, 128); row[lane] = x[0];`.
template <int kQuads>
__device__ void hadamard(float4 (&x)[kQuads], int n) {
  using hadamard_steps::across;
  using hadamard_steps::cross;
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    if (n > 1) cross(x[i].x, x[i].y), cross(x[i].z, x[i].w);
    if (n > 2) cross(x[i].x, x[i].z), cross(x[i].y, x[i].w);
    for (int lanes = 1; lanes < 32 && 4 * lanes < n; lanes *= 2) {
      const bool upper = (lane & lanes) != 0;
      x[i].x = across(x[i].x, lanes, upper);
      x[i].y = across(x[i].y, lanes, upper);
      x[i].z = across(x[i].z, lanes, upper);
      x[i].w = across(x[i].w, lanes, upper);
    }
  }
#pragma unroll
  for (int step = 1; step < kQuads; step *= 2) {
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      if ((i & step) != 0 || 128 * step >= n) continue;
      cross(x[i].x, x[i + step].x), cross(x[i].y, x[i + step].y);
      cross(x[i].z, x[i + step].z), cross(x[i].w, x[i + step].w);
    }
  }
  const float factor = __fdiv_rn(1.0F, __fsqrt_rn(static_cast<float>(n)));
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    x[i].x = __fmul_rn(x[i].x, factor);
    x[i].y = __fmul_rn(x[i].y, factor);
    x[i].z = __fmul_rn(x[i].z, factor);
    x[i].w = __fmul_rn(x[i].w, factor);
  }
}

}  // namespace smla::device
