#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "core/codecs.h"

namespace smla::device {

// What kernels use instead of core/codecs.h, or besides: codes as their bits, and faster ways to the same numbers.

using smla::from_ue8m0;

/// a / b of numbers that are not negative. Nearly always both have 32 bits, in which a division is a fraction of the
/// work.
__device__ inline std::int64_t quotient(std::int64_t a, std::int64_t b) {
  const bool narrow = ((a | b) >> 32) == 0;
  return narrow ? static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b) : a / b;
}

__device__ inline float from_bf16(std::uint16_t bits) { return to_float(BF16{bits}); }

/// In integer arithmetic: the machine's own conversion exists from sm_89 on only.
__device__ inline float from_e4m3(std::uint8_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x80U) << 24;
  const std::uint32_t magnitude = bits & 0x7FU;
  if (magnitude == 0x7FU) return __uint_as_float(sign | 0x7FC0'0000U);
  // As the low bits of a float the code is 2^-120 of its value, subnormals too.
  return __uint_as_float(sign | (magnitude << 20)) * 0x1p120F;
}

/// Without a table, which would lie in local memory.
__device__ inline float from_e2m1(unsigned code) {
  const unsigned m = code & 7U;
  const float v = m < 2U ? 0.5F * static_cast<float>(m) : __uint_as_float((m << 22) + (126U << 23));
  return (code & 8U) != 0U ? -v : v;
}

/// By the machine's own conversion: every NaN becomes 0x7FFF.
__device__ inline std::uint16_t to_bf16_bits(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }

}  // namespace smla::device
