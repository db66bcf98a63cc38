#pragma once

#include <cstdint>

namespace smla::projection {

/// Widens four E4M3 codes to bf16, exactly but for NaN, which become 480: codes 0 and 2 in x, 1 and 3 in y, which takes
/// fewer instructions than neighbours. `nans` gets the high bit of a NaN's byte.
__device__ inline uint2 widen_e4m3(std::uint32_t codes, std::uint32_t& nans) {
  nans |= (codes & 0x7F7F'7F7FU) + 0x0101'0101U;
  // Shifted to the bits of bf16, a code is 2^-120 of its value, subnormals included.
  const auto pair = [](std::uint32_t magnitudes, std::uint32_t signs) {
    const std::uint32_t bits = (magnitudes & 0x07F0'07F0U) | (signs & 0x8000'8000U);
    std::uint32_t out;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;"
        : "=r"(out)
        : "r"(bits), "r"(0x7B80'7B80U), "r"(0x8000'8000U));  // times 2^120, plus -0
    return out;
  };
  return make_uint2(pair(codes << 4, codes << 8), pair(codes >> 4, codes));
}

}  // namespace smla::projection
