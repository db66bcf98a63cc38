#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "core/codecs.h"

namespace smla::device {

// Conversions that kernels use instead of core/codecs.h: they take codes as bits and give the same numbers faster.

using smla::from_ue8m0;

/// a / b for numbers that are not negative. Nearly always both fit 32 bits, where division is much faster.
__device__ inline std::int64_t quotient(std::int64_t a, std::int64_t b) {
  const bool narrow = ((a | b) >> 32) == 0;
  return narrow ? static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b) : a / b;
}

__device__ inline float from_bf16(std::uint16_t bits) { return to_float(BF16{bits}); }

/// E4M3 to float by integer arithmetic, because the conversion instruction exists from sm_89 on only.
__device__ inline float from_e4m3(std::uint8_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x80U) << 24;
  const std::uint32_t magnitude = bits & 0x7FU;
  if (magnitude == 0x7FU) return __uint_as_float(sign | 0x7FC0'0000U);
  // Shifted to the bits of a float, the code is 2^-120 of its value, subnormals included.
  return __uint_as_float(sign | (magnitude << 20)) * 0x1p120F;
}

/// E2M1 to float without a table, which would be in local memory.
__device__ inline float from_e2m1(unsigned code) {
  const unsigned m = code & 7U;
  const float v = m < 2U ? 0.5F * static_cast<float>(m) : __uint_as_float((m << 22) + (126U << 23));
  return (code & 8U) != 0U ? -v : v;
}

/// Float to bf16 by the GPU's conversion instruction: every NaN becomes 0x7FFF.
/// 2^x to two units in the last place; 0 where that is no normal number.
__device__ inline float exp2_approx(float x) {
  float y = 0;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline std::uint16_t to_bf16_bits(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }

}  // namespace smla::device
