#pragma once

#include "device/vec4.cuh"

namespace smla::device {

namespace hadamard_steps {

/// Butterfly of two numbers of one thread.
__device__ inline void cross(float& a, float& b) {
  const float sum = __fadd_rn(a, b);
  b = __fsub_rn(a, b);
  a = sum;
}

/// Butterfly with the lane `lanes` away: the lower of the two keeps the sum. `sign` is -1 for the upper and 1 for the
/// lower; multiplying by it is exact.
__device__ inline float across(float v, int lanes, float sign) {
  return __fmaf_rn(v, sign, __shfl_xor_sync(0xFFFF'FFFFU, v, lanes));
}

template <int kVec4s>
__device__ void steps_across(float4 (&x)[kVec4s], int lanes) {
  const float sign = (threadIdx.x & static_cast<unsigned>(lanes)) != 0 ? -1.0F : 1.0F;
#pragma unroll
  for (int i = 0; i < kVec4s; ++i) {
    x[i].x = across(x[i].x, lanes, sign);
    x[i].y = across(x[i].y, lanes, sign);
    x[i].z = across(x[i].z, lanes, sign);
    x[i].w = across(x[i].w, lanes, sign);
  }
}

}  // namespace hadamard_steps

/// Normalised Walsh-Hadamard transform in place of 128 numbers that half a warp holds, eight a lane: number 8*lane +
/// 4*i + j is component j of x[i]. Gives the bits of the function below. Both halves must call it.
__device__ inline void hadamard_of_half(float4 (&x)[2]) {
  using hadamard_steps::cross;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    cross(x[i].x, x[i].y), cross(x[i].z, x[i].w);
    cross(x[i].x, x[i].z), cross(x[i].y, x[i].w);
  }
  cross(x[0].x, x[1].x), cross(x[0].y, x[1].y);
  cross(x[0].z, x[1].z), cross(x[0].w, x[1].w);
#pragma unroll
  for (int lanes = 1; lanes < 16; lanes *= 2) hadamard_steps::steps_across(x, lanes);
  const float factor = __fdiv_rn(1.0F, __fsqrt_rn(128.0F));
  x[0] = scaled(x[0], factor), x[1] = scaled(x[1], factor);
}

/// Normalised Walsh-Hadamard transform in place of the n numbers that a warp holds, bit for bit the one of
/// cache/row_codec.h: number 128*i + 4*lane + j is component j of the lane's x[i]. n is a power of two up to
/// 128*kVec4s; components past n are undefined after it. All 32 lanes must call it. A row of 128 in shared memory:
/// `float4 x[1] = {row[lane]}; hadamard(x, 128); row[lane] = x[0];`.
template <int kVec4s>
__device__ void hadamard(float4 (&x)[kVec4s], int n) {
  using hadamard_steps::cross;
#pragma unroll
  for (int i = 0; i < kVec4s; ++i) {
    if (n > 1) cross(x[i].x, x[i].y), cross(x[i].z, x[i].w);
    if (n > 2) cross(x[i].x, x[i].z), cross(x[i].y, x[i].w);
  }
  if (n >= 128) {
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) hadamard_steps::steps_across(x, lanes);
  } else {
    for (int lanes = 1; 4 * lanes < n; lanes *= 2) hadamard_steps::steps_across(x, lanes);
  }
#pragma unroll
  for (int step = 1; step < kVec4s; step *= 2) {
#pragma unroll
    for (int i = 0; i < kVec4s; ++i) {
      if ((i & step) != 0 || 128 * step >= n) continue;
      cross(x[i].x, x[i + step].x), cross(x[i].y, x[i + step].y);
      cross(x[i].z, x[i + step].z), cross(x[i].w, x[i + step].w);
    }
  }
  const float factor = __fdiv_rn(1.0F, __fsqrt_rn(static_cast<float>(n)));
#pragma unroll
  for (int i = 0; i < kVec4s; ++i) x[i] = scaled(x[i], factor);
}

}  // namespace smla::device
