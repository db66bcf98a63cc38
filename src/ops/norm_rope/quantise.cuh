#pragma once

#include "device/vec4.cuh"

namespace smla::device {

/// InverseRopeQuant's rule (quantise.h) for the 128 numbers of a warp, four for each lane. Returns the scale's
/// exponent.
__device__ inline int quantised(float4 v, std::uint32_t& codes) {
  const float amax = fmaxf(1e-10F, max_of_lanes(largest_magnitude(v), 32));
  const int e = ceil_log2(__fmul_rn(amax, 1.0F / 448.0F));
  codes = e4m3_codes(scaled(v, exp2_int(-e)), v);
  return e;
}

}  // namespace smla::device
