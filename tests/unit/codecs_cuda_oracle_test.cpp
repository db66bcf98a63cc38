// The codecs against the host conversions of the CUDA toolkit's headers, compiled by the plain C++ compiler.
#include <gtest/gtest.h>

#if __has_include(<cuda_fp8.h>)
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#if __has_include(<cuda_fp4.h>)
#include <cuda_fp4.h>
#define SMLA_ORACLE_HAS_FP4 1
#endif

#include <cmath>
#include <cstdint>

#include "core/codecs.h"

#if defined(__SANITIZE_ADDRESS__) || !defined(__OPTIMIZE__)
#define SMLA_SLOW_BUILD 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SMLA_SLOW_BUILD 1
#endif
#endif

namespace smla {
namespace {

/// Which codes differ for the float with these bits; empty when none do.
std::string difference(std::uint32_t bits) {
  const auto x = std::bit_cast<float>(bits);
  const auto report = [&](const char* format, unsigned got, unsigned want) {
    return std::string(format) + " of float bits " + std::to_string(bits) + ": got " + std::to_string(got) +
           ", expected " + std::to_string(want);
  };
  const unsigned bf16 = __nv_bfloat16_raw(__float2bfloat16_rn(x)).x;
  if (std::isnan(x)) {
    // NaN is kept; which NaN is not promised.
    if (!std::isnan(to_float(to_bf16(x)))) return report("bf16", to_bf16(x).bits, bf16);
    if ((to_e4m3(x).bits & 0x7FU) != 0x7FU) return report("e4m3", to_e4m3(x).bits, 0x7F);
    return {};
  }
  if (to_bf16(x).bits != bf16) return report("bf16", to_bf16(x).bits, bf16);
  const unsigned e4m3 = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
  if (to_e4m3(x).bits != e4m3) return report("e4m3", to_e4m3(x).bits, e4m3);
#ifdef SMLA_ORACLE_HAS_FP4
  const unsigned e2m1 = __nv_cvt_float_to_fp4(x, __NV_E2M1, cudaRoundNearest);
  if (to_e2m1(x) != e2m1) return report("e2m1", to_e2m1(x), e2m1);
#endif
  return {};
}

TEST(CodecsCudaOracle, DecodesLikeTheToolkit) {
  for (unsigned byte = 0; byte < 256; ++byte) {
    const auto code = static_cast<std::uint8_t>(byte);
    const float want = __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3)));
    const float got = to_float(E4M3{code});
    EXPECT_TRUE(got == want || (std::isnan(got) && std::isnan(want))) << byte;
    if (!std::isnan(want)) {
      EXPECT_EQ(std::signbit(got), std::signbit(want)) << byte;
    }
  }
  for (unsigned bits = 0; bits < 65536; ++bits) {
    __nv_bfloat16_raw raw{};
    raw.x = static_cast<unsigned short>(bits);
    const float want = __bfloat162float(__nv_bfloat16(raw));
    const float got = to_float(BF16{static_cast<std::uint16_t>(bits)});
    EXPECT_TRUE(got == want || (std::isnan(got) && std::isnan(want))) << bits;
  }
#ifdef SMLA_ORACLE_HAS_FP4
  for (unsigned code = 0; code < 16; ++code) {
    const float want = __half2float(__half(__nv_cvt_fp4_to_halfraw(static_cast<__nv_fp4_storage_t>(code), __NV_E2M1)));
    EXPECT_EQ(from_e2m1(static_cast<std::uint8_t>(code)), want) << code;
  }
#endif
}

TEST(CodecsCudaOracle, EncodesLikeTheToolkit) {
  // The 15 bits below a bf16 boundary are where rounding decides: each exponent and upper fraction, with every kind of
  // lower part.
  for (std::uint32_t high = 0; high < 0x1'0000U; ++high) {
    for (const std::uint32_t low :
         {0x0000U, 0x0001U, 0x2B67U, 0x7FFEU, 0x7FFFU, 0x8000U, 0x8001U, 0xA5A5U, 0xFFFEU, 0xFFFFU}) {
      ASSERT_EQ(difference((high << 16) | low), "");
    }
  }
}

/// All 2^32 floats: about 20 s of one core, minutes without optimisation.
TEST(CodecsCudaOracle, EncodesLikeTheToolkitForEveryFloat) {
#ifdef SMLA_SLOW_BUILD
  GTEST_SKIP() << "too slow in this build; the Release build runs it";
#endif
  bool good = true;
#pragma omp parallel for schedule(static) reduction(&& : good)
  for (std::int64_t bits = 0; bits < (std::int64_t{1} << 32); ++bits)
    good = good && difference(static_cast<std::uint32_t>(bits)).empty();
  EXPECT_TRUE(good);
}

}  // namespace
}  // namespace smla

#else

TEST(CodecsCudaOracle, EncodesLikeTheToolkit) { GTEST_SKIP() << "no cuda_fp8.h: no CUDA toolkit on this machine"; }

#endif
