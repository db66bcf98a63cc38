#pragma once

#include <cstdint>

#include "device/halves.cuh"
#include "device/vec4.cuh"

namespace smla::projection::sm90 {

// bf16 inputs as sums of E4M3 numbers, so that tensor cores multiply them by E4M3 weights. 128 inputs of a row become a
// scale and two numbers each: x = scale * (upper + lower / kLower). The scale is a power of two that puts the largest
// input in [128, 256). Upper has the first four significant bits and lower the other four, so the sum is x, except that
// inputs below 2^-13 of the largest are off by at most 2^-21 of it. With an infinity the scale is infinite.

constexpr float kLower = 16;
constexpr int kSplitLanes = 8;                ///< lanes that share 128 inputs, sixteen each
constexpr int kSplitRows = 32 / kSplitLanes;  ///< rows that a warp splits together
using SixteenInputs = uint4[2];               ///< bf16 inputs of a lane

/// What becomes of a lane's sixteen inputs.
struct SplitInputs {
  uint4 upper, lower;
  std::uint32_t scale;  ///< of all 128, the bits of a float
};

namespace detail {

__device__ inline float4 four_of(const SixteenInputs& pairs, int i) {
  const uint4& p = pairs[i / 2];
  return device::widened(i % 2 == 0 ? make_uint2(p.x, p.y) : make_uint2(p.z, p.w));
}

__device__ inline void split_four(const float4& x, float shrink, std::uint32_t& upper, std::uint32_t& lower) {
  const float4 small = {x.x * shrink, x.y * shrink, x.z * shrink, x.w * shrink};
  upper = device::e4m3_codes(small);
  const float4 taken = device::widened_codes(upper);
  const auto rest = [](float all, float part) { return kLower * (all - part); };
  lower = device::e4m3_codes(
      {rest(small.x, taken.x), rest(small.y, taken.y), rest(small.z, taken.z), rest(small.w, taken.w)});
}

}  // namespace detail

/// Splits the inputs of kCount rows for each eight lanes of a warp, side by side, so that one row's waits are another's
/// work. All lanes take part.
template <int kCount>
__device__ void split_inputs(const SixteenInputs (&x)[kCount], SplitInputs (&out)[kCount]) {
  constexpr int kLeast = 8;  // exponent of the smallest largest input whose scale is a normal number
  float largest[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    largest[i] = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float4 four = detail::four_of(x[i], j);
      largest[i] = fmaxf(fmaxf(largest[i], fabsf(four.x)), fabsf(four.y));
      largest[i] = fmaxf(fmaxf(largest[i], fabsf(four.z)), fabsf(four.w));
    }
  }
#pragma unroll
  for (int distance = 1; distance < kSplitLanes; distance *= 2) {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      largest[i] = fmaxf(largest[i], __shfl_xor_sync(0xFFFF'FFFFU, largest[i], distance));
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int exponent = max(static_cast<int>(__float_as_uint(largest[i]) >> 23), kLeast);
    const float shrink = __uint_as_float(static_cast<unsigned>(2 * 127 + 7 - exponent) << 23);
    out[i].scale = static_cast<unsigned>(exponent == 255 ? 255 : exponent - 7) << 23;
    detail::split_four(detail::four_of(x[i], 0), shrink, out[i].upper.x, out[i].lower.x);
    detail::split_four(detail::four_of(x[i], 1), shrink, out[i].upper.y, out[i].lower.y);
    detail::split_four(detail::four_of(x[i], 2), shrink, out[i].upper.z, out[i].lower.z);
    detail::split_four(detail::four_of(x[i], 3), shrink, out[i].upper.w, out[i].lower.w);
  }
}

}  // namespace smla::projection::sm90
