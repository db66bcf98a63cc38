#pragma once

#include "device/quads.cuh"

namespace smla::device {

/// Four numbers as E4M3, as core/codecs.h rounds them, with the signs of four others: a NaN that the machine computed with has lost its own.
__device__ inline std::uint32_t e4m3_codes(float4 v, float4 signs) {
  const std::uint32_t top = __byte_perm(__byte_perm(__float_as_uint(signs.x), __float_as_uint(signs.y), 0x0073),
                                        __byte_perm(__float_as_uint(signs.z), __float_as_uint(signs.w), 0x0073), 0x5410);
#if __CUDA_ARCH__ >= 890
  std::uint16_t low;
  std::uint16_t high;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(v.y), "f"(v.x));
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(v.w), "f"(v.z));
  const std::uint32_t codes = low | static_cast<std::uint32_t>(high) << 16;
#else
  const std::uint32_t codes = narrowed<E4M3>(v);
#endif
  return codes | (top & 0x8080'8080U);
}

/// InverseRopeQuant's rule (quantise.h) for a warp's 128 numbers, four a lane. Returns the exponent of their scale.
__device__ inline int quantised(float4 v, std::uint32_t& codes) {
  const float amax = fmaxf(1e-10F, max_of_lanes(largest_magnitude(v), 32));
  const int e = ceil_log2(__fmul_rn(amax, 1.0F / 448.0F));
  codes = e4m3_codes(scaled(v, exp2_int(-e)), v);
  return e;
}

}  // namespace smla::device
