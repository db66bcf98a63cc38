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

/// What sums of widened NVFP4 weights are multiplied by: they are numbers times its reciprocal.
constexpr float kNvfp4Unit = 256;

/// The E4M3 scale in byte `i` of `scales`, times 2^118, as bf16 in both halves of a word.
__device__ inline std::uint32_t widen_nvfp4_scale(std::uint32_t scales, unsigned i) {
  const std::uint32_t code = __byte_perm(scales, 0, 0x4040U | i * 0x0101U);
  const std::uint32_t magnitude = code & 0x007F'007FU;
  const std::uint32_t nan = (magnitude + 0x0001'0001U) & 0x0080'0080U;
  std::uint32_t scale = magnitude << 4 | (code & 0x0080'0080U) << 8;                      // 2^-120 of the number
  for (const std::uint32_t factor : {0x7B80'7B80U, 0x7A80'7A80U})                         // times 2^120, times 2^118
    asm("fma.rn.bf16x2 %0, %0, %1, %2;" : "+r"(scale) : "r"(factor), "r"(0x8000'8000U));  // plus -0
  return scale | ((nan << 8) - (nan >> 1));
}

/// Widens eight e2m1 codes times a scale of widen_nvfp4_scale() to bf16, exactly: code 0 and 4 in x, then 1 and 5, 2
/// and 6, 3 and 7.
__device__ inline uint4 widen_nvfp4(std::uint32_t codes, std::uint32_t scale) {
  // At the bottom of the exponent a code is 2^-126 of its value, subnormals included.
  const auto pair = [&](std::uint32_t magnitudes, std::uint32_t signs) {
    const std::uint32_t bits = (magnitudes & 0x01C0'01C0U) | (signs & 0x8000'8000U);
    std::uint32_t out;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(bits), "r"(scale), "r"(0x8000'8000U));
    return out;
  };
  return make_uint4(pair(codes << 6, codes << 12), pair(codes << 2, codes << 8), pair(codes >> 2, codes << 4),
                    pair(codes >> 6, codes));
}
/// Eight bf16 inputs in the order of widen_nvfp4().
__device__ inline uint4 in_nvfp4_order(const uint4& x) {
  return make_uint4(__byte_perm(x.x, x.z, 0x5410), __byte_perm(x.x, x.z, 0x7632), __byte_perm(x.y, x.w, 0x5410),
                    __byte_perm(x.y, x.w, 0x7632));
}
/// Eight bf16 numbers of widen_nvfp4() in the order of their codes.
__device__ inline uint4 in_code_order(const uint4& w) {
  return make_uint4(__byte_perm(w.x, w.y, 0x5410), __byte_perm(w.z, w.w, 0x5410), __byte_perm(w.x, w.y, 0x7632),
                    __byte_perm(w.z, w.w, 0x7632));
}

}  // namespace smla::projection
