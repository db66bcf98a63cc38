#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "sparsemla/dtype.h"

namespace smla {

/// ceil(log2 v) of a positive normal float, by its bits: no approximation near powers of two (spec 13).
constexpr int ceil_log2(float v) {
  return static_cast<int>((std::bit_cast<std::uint32_t>(v) + 0x7F'FFFFU) >> 23) - 127;
}

/// 2^e for e in [-126, 127]; 2^-127 is the subnormal.
constexpr float exp2_int(int e) {
  return e >= -126 ? std::bit_cast<float>(static_cast<std::uint32_t>(e + 127) << 23)
                   : std::bit_cast<float>(0x0040'0000U);
}

/// UE8M0: byte b is 2^(b-127); 255 is NaN.
constexpr float from_ue8m0(std::uint8_t byte) {
  return byte == 255 ? std::bit_cast<float>(0x7FC0'0000U) : exp2_int(static_cast<int>(byte) - 127);
}

/// E4M3FN to float, exact.
constexpr float to_float(E4M3 x) {
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x80U) << 24;
  const std::uint32_t magnitude = x.bits & 0x7FU;
  if (magnitude == 0x7FU) return std::bit_cast<float>(sign | 0x7FC0'0000U);
  if (magnitude < 8U) {
    const float v = static_cast<float>(magnitude) * 0x1p-9F;
    return sign != 0U ? -v : v;
  }
  return std::bit_cast<float>(sign | ((magnitude << 20) + (120U << 23)));
}

/// Float to E4M3FN: round to nearest even, saturate to +-448 (infinities too), keep the sign of zero, NaN to 0x7F.
constexpr E4M3 to_e4m3(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint8_t>((u >> 24) & 0x80U);
  const std::uint32_t magnitude = u & 0x7FFF'FFFFU;
  if (magnitude > 0x7F80'0000U) return {static_cast<std::uint8_t>(sign | 0x7FU)};
  if (magnitude >= 0x43E8'0000U)
    return {static_cast<std::uint8_t>(sign | 0x7EU)};  // 464 and up: nearest would be past 448
  if (magnitude < 0x3C80'0000U) {                      // below 2^-6: steps of 2^-9
    // Adding 2^14 leaves a float whose last fraction bit is worth 2^-9: the addition itself rounds to nearest even.
    const float shifted = std::bit_cast<float>(magnitude) + 16384.0F;
    return {static_cast<std::uint8_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x4680'0000U))};
  }
  const std::uint32_t rounded = magnitude + 0x7'FFFFU + ((magnitude >> 20) & 1U);
  return {static_cast<std::uint8_t>(sign | ((rounded >> 20) - (120U << 3)))};
}

/// E2M1 code (0..15, bit 3 the sign) to float.
constexpr float from_e2m1(std::uint8_t code) {
  constexpr std::array<float, 8> kValues{0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
  const float v = kValues[code & 7U];
  return (code & 8U) != 0U ? -v : v;
}

/// Float to E2M1: round to nearest, ties to the even code, saturate at 6; the sign is kept for zero (spec 4.3). NaN
/// becomes +-6.
constexpr std::uint8_t to_e2m1(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint8_t>((u >> 28) & 8U);
  const float a = std::bit_cast<float>(u & 0x7FFF'FFFFU);
  std::uint8_t code = 7;
  if (a <= 0.25F) {
    code = 0;
  } else if (a < 0.75F) {
    code = 1;
  } else if (a <= 1.25F) {
    code = 2;
  } else if (a < 1.75F) {
    code = 3;
  } else if (a <= 2.5F) {
    code = 4;
  } else if (a < 3.5F) {
    code = 5;
  } else if (a <= 5.0F) {
    code = 6;
  }
  return static_cast<std::uint8_t>(sign | code);
}

/// Exponent of a power-of-two group scale for e4m3 values: ceil(log2(max(amax, 1e-4) / 448)), or of max(amax/448, 1e-4)
/// by the scale rule (spec 5.1).
constexpr int e4m3_group_exponent(float amax, bool clamp_scale) {
  constexpr float kFloor = 1e-4F;
  const float least = clamp_scale ? 0.0F : kFloor;
  const float v = amax > least ? amax : least;  // NaN is none
  // ceil_log2(v / 448) without the division, whose rounding never reaches a power of two that v does not: 448 is 1.75 *
  // 2^8.
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(v);
  const int e = v > std::numeric_limits<float>::max() ? 128 : static_cast<int>((bits + 0x1F'FFFFU) >> 23) - 135;
  return clamp_scale ? std::max(e, ceil_log2(kFloor)) : e;
}

/// Exponent of an MXFP4 group scale: clamp(ceil(log2(max(amax, 6*2^-126) / 6)), -127, 127) (spec 4.3).
constexpr int e2m1_group_exponent(float amax) {
  const float floor_value = 6.0F * 0x1p-126F;
  const int e = ceil_log2((amax > floor_value ? amax : floor_value) * (1.0F / 6.0F));
  return e < -127 ? -127 : (e > 127 ? 127 : e);
}

}  // namespace smla
