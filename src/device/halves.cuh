#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "device/numbers.cuh"

namespace smla::device {

// Words of two fp16 numbers, and the conversion of e4m3 codes to them.

/// widen_codes() gives codes as 2^-kCodeShift of their value: before sm_89 by shifting, as there is no conversion.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
constexpr int kCodeShift = 8;
#else
constexpr int kCodeShift = 0;
#endif

/// Converts four codes to fp16: codes 0 and 1 in one word, 2 and 3 in the other.
__device__ inline void widen_codes(std::uint32_t codes, std::uint32_t& low, std::uint32_t& high) {
  if constexpr (kCodeShift == 0) {
    asm("{.reg .b16 l, h;\n mov.b32 {l, h}, %2;\n cvt.rn.f16x2.e4m3x2 %0, l;\n cvt.rn.f16x2.e4m3x2 %1, h;}"
        : "=r"(low), "=r"(high)
        : "r"(codes));
  } else {
    const auto shift = [](std::uint32_t x) { return (x & 0x8000'8000U) | ((x >> 1) & 0x3F80'3F80U); };
    low = shift(__byte_perm(codes, 0, 0x1404));
    high = shift(__byte_perm(codes, 0, 0x3424));
  }
}

/// Which of four codes are NaN although widen_codes() makes a number of them: the upper bit of each such byte.
__device__ inline std::uint32_t misread_nans(std::uint32_t codes) {
  return kCodeShift == 0 ? 0U : ((codes & 0x7F7F'7F7FU) + 0x0101'0101U) & 0x8080'8080U;
}
__device__ inline bool misread_nan(std::uint32_t codes) { return misread_nans(codes) != 0U; }

/// The values of four codes, the first in the lowest bits; NaN stays NaN.
__device__ inline float4 widened_codes(std::uint32_t codes) {
  if (misread_nan(codes)) {
    const auto number = [&](int i) { return from_e4m3(static_cast<std::uint8_t>(codes >> (8 * i))); };
    return {number(0), number(1), number(2), number(3)};
  }
  constexpr float kUnit = static_cast<float>(1 << kCodeShift);
  std::uint32_t low;
  std::uint32_t high;
  widen_codes(codes, low, high);
  __half2 x;
  __half2 y;
  memcpy(&x, &low, 4);
  memcpy(&y, &high, 4);
  return {kUnit * __low2float(x), kUnit * __high2float(x), kUnit * __low2float(y), kUnit * __high2float(y)};
}

/// Products of the two numbers in each word, Pair being what such a word holds.
template <class Pair>
__device__ std::uint32_t multiply_pairs(std::uint32_t a, std::uint32_t b) {
  Pair x;
  Pair y;
  memcpy(&x, &a, 4);
  memcpy(&y, &b, 4);
  x = __hmul2(x, y);
  memcpy(&a, &x, 4);
  return a;
}
__device__ inline std::uint32_t multiply_halves(std::uint32_t a, std::uint32_t b) {
  return multiply_pairs<__half2>(a, b);
}
__device__ inline std::uint32_t multiply_bf16(std::uint32_t a, std::uint32_t b) {
  return multiply_pairs<__nv_bfloat162>(a, b);
}

__device__ inline std::uint32_t halves_of(float low, float high) {
  const __half2 h = __floats2half2_rn(low, high);
  std::uint32_t bits;
  memcpy(&bits, &h, 4);
  return bits;
}
/// The numbers of two halves, the lower one first.
__device__ inline float2 numbers_of(std::uint32_t halves) {
  __half2 h;
  memcpy(&h, &halves, 4);
  return __half22float2(h);
}
/// The largest size of a number in each half of words, as bits without the sign; `top`: of those so far. For bf16 as
/// for fp16, as numbers are in the order of these bits. Bits past 0x7C00, NaN in fp16, may become other such bits.
__device__ inline std::uint32_t largest_sizes(std::uint32_t top, std::uint32_t word) {
  asm("{.reg .b32 size;\n abs.f16x2 size, %1;\n max.NaN.f16x2 %0, %0, size;}" : "+r"(top) : "r"(word));
  return top;
}
/// The upper bit of each half that is at least `limit`, below 2^15, read as a number without its sign.
__device__ inline std::uint32_t at_least(std::uint32_t halves, std::uint32_t limit) {
  return ((halves & 0x7FFF'7FFFU) + (0x8000 - limit) * 0x1'0001U) & 0x8000'8000U;
}
/// Sets the upper bit of each half that is infinite or NaN.
__device__ inline std::uint32_t fp16_overflow(std::uint32_t halves) { return (halves & 0x7C00'7C00U) + 0x0400'0400U; }

}  // namespace smla::device
