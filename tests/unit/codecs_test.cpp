#include "core/codecs.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

namespace smla {
namespace {

float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }
std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }

/// The finite values of a format by its definition: sign, exponent field, fraction field.
double value_by_definition(unsigned magnitude, int fraction_bits, int bias) {
  const unsigned exponent = magnitude >> fraction_bits;
  const unsigned fraction = magnitude & ((1U << fraction_bits) - 1U);
  const double unit = std::ldexp(1.0, -fraction_bits);
  if (exponent == 0) return std::ldexp(fraction * unit, 1 - bias);
  return std::ldexp(1.0 + fraction * unit, static_cast<int>(exponent) - bias);
}

/// Nearest of the ascending `values`, ties to the even index; past the last one saturates.
unsigned nearest_even(const std::vector<double>& values, double x) {
  if (x >= values.back()) return static_cast<unsigned>(values.size() - 1);
  unsigned best = 0;
  for (unsigned i = 1; i < values.size(); ++i) {
    const double gain = std::fabs(values[best] - x) - std::fabs(values[i] - x);
    if (gain > 0 || (gain == 0 && i % 2 == 0)) best = i;
  }
  return best;
}

std::vector<double> e4m3_values() {
  std::vector<double> values;
  for (unsigned m = 0; m < 0x7F; ++m) values.push_back(value_by_definition(m, 3, 7));
  return values;
}

std::vector<double> e2m1_values() {
  std::vector<double> values;
  for (unsigned m = 0; m < 8; ++m) values.push_back(value_by_definition(m, 1, 1));
  return values;
}

/// Every value and every midpoint, each with two floats on either side, and floats spread over the whole range of bits.
std::vector<float> probes(const std::vector<double>& values) {
  std::vector<float> xs;
  const auto around = [&](double x) {
    const std::uint32_t bits = bits_of(static_cast<float>(x));
    for (int d = -2; d <= 2; ++d) {
      if (d < 0 && bits < static_cast<std::uint32_t>(-d)) continue;
      xs.push_back(float_of(bits + static_cast<std::uint32_t>(d)));
    }
  };
  for (std::size_t i = 0; i < values.size(); ++i) {
    around(values[i]);
    if (i > 0) around((values[i] + values[i - 1]) / 2);
  }
  around(values.back() + (values.back() - values[values.size() - 2]) / 2);
  // An odd stride visits every residue of the low bits and every exponent.
  for (std::uint32_t bits = 0; bits < 0x7F80'0000U; bits += 104729U) xs.push_back(float_of(bits));
  xs.push_back(std::numeric_limits<float>::max());
  xs.push_back(std::numeric_limits<float>::infinity());
  return xs;
}

TEST(Codecs, E4m3DecodesAll256) {
  for (unsigned byte = 0; byte < 256; ++byte) {
    const float got = to_float(E4M3{static_cast<std::uint8_t>(byte)});
    if ((byte & 0x7FU) == 0x7FU) {
      EXPECT_TRUE(std::isnan(got)) << byte;
    } else {
      const double want =
          (byte & 0x80U) != 0 ? -value_by_definition(byte & 0x7FU, 3, 7) : value_by_definition(byte, 3, 7);
      EXPECT_EQ(got, want) << byte;
      EXPECT_EQ(std::signbit(got), (byte & 0x80U) != 0) << byte;
    }
  }
  EXPECT_EQ(to_float(E4M3{0x7E}), 448.0F);
  EXPECT_EQ(to_float(E4M3{0x01}), 0x1p-9F);
}

TEST(Codecs, E4m3EncodesToTheNearestEven) {
  const std::vector<double> values = e4m3_values();
  for (const float x : probes(values)) {
    const unsigned want = std::isinf(x) ? 0x7EU : nearest_even(values, x);
    ASSERT_EQ(to_e4m3(x).bits, want) << x;
    ASSERT_EQ(to_e4m3(-x).bits, want | 0x80U) << -x;
  }
}

TEST(Codecs, E4m3RoundTripsAndKeepsNan) {
  for (unsigned byte = 0; byte < 256; ++byte) {
    const E4M3 x{static_cast<std::uint8_t>(byte)};
    if ((byte & 0x7FU) != 0x7FU) {
      EXPECT_EQ(to_e4m3(to_float(x)), x);
    } else {
      EXPECT_EQ(to_e4m3(to_float(x)).bits & 0x7FU, 0x7FU);
    }
  }
  EXPECT_EQ(to_e4m3(-0.0F).bits, 0x80);
}

TEST(Codecs, Bf16DecodesAll65536AndRoundTrips) {
  for (unsigned bits = 0; bits < 65536; ++bits) {
    const BF16 x{static_cast<std::uint16_t>(bits)};
    const float got = to_float(x);
    EXPECT_EQ(bits_of(got), bits << 16);
    if (std::isnan(got)) {
      EXPECT_TRUE(std::isnan(to_float(to_bf16(got))));
    } else {
      EXPECT_EQ(to_bf16(got), x);
    }
  }
}

TEST(Codecs, Bf16EncodesToTheNearestEven) {
  for (unsigned bits = 0; bits < 0x7F80; ++bits) {
    const std::uint32_t low = bits << 16;
    // Below, at and above the midpoint to the next value; the last midpoint rounds to infinity.
    EXPECT_EQ(to_bf16(float_of(low + 0x7FFFU)).bits, bits);
    EXPECT_EQ(to_bf16(float_of(low + 0x8000U)).bits, bits + (bits & 1U));
    EXPECT_EQ(to_bf16(float_of(low + 0x8001U)).bits, bits + 1);
    EXPECT_EQ(to_bf16(float_of(0x8000'0000U + low + 0x8000U)).bits, 0x8000U + bits + (bits & 1U));
  }
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::infinity()).bits, 0x7F80);
  EXPECT_EQ(to_bf16(-std::numeric_limits<float>::infinity()).bits, 0xFF80);
  // A NaN whose payload lies in the dropped half must not become infinity.
  EXPECT_TRUE(std::isnan(to_float(to_bf16(float_of(0x7F80'0001U)))));
  EXPECT_TRUE(std::isnan(to_float(to_bf16(float_of(0xFFFF'FFFFU)))));
}

TEST(Codecs, E2m1DecodesAll16AndEncodesToTheNearestEven) {
  const std::vector<double> values = e2m1_values();
  for (unsigned code = 0; code < 16; ++code) {
    EXPECT_EQ(from_e2m1(static_cast<std::uint8_t>(code)), code < 8 ? values[code] : -values[code - 8]);
    EXPECT_EQ(to_e2m1(from_e2m1(static_cast<std::uint8_t>(code))), code);
  }
  for (const float x : probes(values)) {
    const unsigned want = std::isinf(x) ? 7U : nearest_even(values, x);
    ASSERT_EQ(to_e2m1(x), want) << x;
    ASSERT_EQ(to_e2m1(-x), want | 8U) << -x;
  }
}

TEST(Codecs, Ue8m0DecodesAll256) {
  for (int byte = 0; byte < 255; ++byte)
    EXPECT_EQ(from_ue8m0(static_cast<std::uint8_t>(byte)), std::ldexp(1.0, byte - 127)) << byte;
  EXPECT_TRUE(std::isnan(from_ue8m0(255)));
  for (int e = -127; e <= 127; ++e) EXPECT_EQ(exp2_int(e), std::ldexp(1.0, e)) << e;
}

TEST(Codecs, CeilLog2IsExactForEveryMantissa) {
  for (const std::uint32_t exponent : {1U, 118U, 127U, 254U}) {
    std::uint64_t wrong = 0;
    for (std::uint32_t mantissa = 0; mantissa < (1U << 23); ++mantissa) {
      const int want = static_cast<int>(exponent) - 127 + (mantissa != 0 ? 1 : 0);
      wrong += ceil_log2(float_of((exponent << 23) | mantissa)) != want ? 1U : 0U;
    }
    EXPECT_EQ(wrong, 0U) << "exponent field " << exponent;
  }
}

/// Smallest e with a <= limit * 2^e, found without logarithms; both sides are exact in double.
int exact_exponent(double a, double limit) {
  int e = -160;
  while (a > std::ldexp(limit, e)) ++e;
  return e;
}

TEST(Codecs, OneExponentRoutineServesAllQuantisers) {
  // Spec 4.3: for bf16 magnitudes, dividing, multiplying by the rounded reciprocal and exact arithmetic give the same
  // exponent.
  for (unsigned bits = 0x0080; bits < 0x7F80; ++bits) {
    const float a = to_float(BF16{static_cast<std::uint16_t>(bits)});
    const int want448 = exact_exponent(a, 448.0);
    if (a / 448.0F >= std::numeric_limits<float>::min()) {
      ASSERT_EQ(ceil_log2(a / 448.0F), want448) << a;
      ASSERT_EQ(ceil_log2(a * (1.0F / 448.0F)), want448) << a;
    }
    if (a / 6.0F >= std::numeric_limits<float>::min()) {
      ASSERT_EQ(ceil_log2(a / 6.0F), exact_exponent(a, 6.0)) << a;
      ASSERT_EQ(ceil_log2(a * (1.0F / 6.0F)), exact_exponent(a, 6.0)) << a;
    }
    // The rules with their floors; a value divided by its scale never passes the format's largest number.
    ASSERT_EQ(e4m3_group_exponent(a, false), a > 1e-4F ? want448 : -22) << a;
    ASSERT_EQ(e4m3_group_exponent(a, true), a / 448.0F > 1e-4F ? want448 : -13) << a;
    ASSERT_LE(std::ldexp(static_cast<double>(a), -e4m3_group_exponent(a, false)), 448.0) << a;
    ASSERT_EQ(e2m1_group_exponent(a), std::max(-126, exact_exponent(a, 6.0))) << a;
  }
  EXPECT_EQ(e4m3_group_exponent(0.0F, false), -22);
  EXPECT_EQ(e4m3_group_exponent(0.0F, true), -13);
  EXPECT_EQ(e2m1_group_exponent(0.0F), -126);
}

TEST(Codecs, TheExponentOfE4M3GroupsIsThatOfTheQuotient) {
  // Around every power of two and every 1.75 of one, where ceil(log2) of v / 448 steps.
  for (std::uint32_t exponent = 1; exponent < 255; ++exponent) {
    for (const std::uint32_t fraction :
         {0U, 1U, 2U, 0x5F'FFFEU, 0x5F'FFFFU, 0x60'0000U, 0x60'0001U, 0x60'0002U, 0x7F'FFFEU, 0x7F'FFFFU}) {
      const auto v = std::bit_cast<float>(exponent << 23 | fraction);
      ASSERT_EQ(e4m3_group_exponent(v, false), ceil_log2(std::max(v, 1e-4F) / 448.0F)) << v;
      ASSERT_EQ(e4m3_group_exponent(v, true), ceil_log2(std::max(v / 448.0F, 1e-4F))) << v;
    }
  }
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const bool clamp : {false, true}) {
    EXPECT_EQ(e4m3_group_exponent(inf, clamp), 128);
    EXPECT_EQ(e4m3_group_exponent(nan, clamp), e4m3_group_exponent(0.0F, clamp));
  }
}

/// tests/golden/codec_tables.txt was made by another implementation (tools/make_codec_tables.py).
TEST(Codecs, AgreesWithTheTablesOfMlDtypes) {
  std::ifstream file(SMLA_SOURCE_DIR "/tests/golden/codec_tables.txt");
  ASSERT_TRUE(file.is_open());
  int checked = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    std::string task;
    std::string format;
    std::uint32_t bits = 0;
    words >> task >> format >> std::hex;
    if (task == "decode") {
      for (unsigned code = 0; words >> bits; ++code, ++checked) {
        const auto byte = static_cast<std::uint8_t>(code);
        const float got = format == "e4m3"   ? to_float(E4M3{byte})
                          : format == "e2m1" ? from_e2m1(byte)
                                             : from_ue8m0(byte);
        if (std::isnan(float_of(bits))) {
          EXPECT_TRUE(std::isnan(got)) << format << " " << code;
        } else {
          EXPECT_EQ(bits_of(got), bits) << format << " " << code;
        }
      }
    } else {
      unsigned code = 0;
      words >> bits >> code;
      const unsigned sign = format == "e4m3" ? 0x80U : 8U;
      const auto encode = [&](float x) {
        return static_cast<unsigned>(format == "e4m3" ? to_e4m3(x).bits : to_e2m1(x));
      };
      EXPECT_EQ(encode(float_of(bits)), code) << format << " " << float_of(bits);
      EXPECT_EQ(encode(-float_of(bits)), code | sign) << format << " " << -float_of(bits);
      ++checked;
    }
  }
  EXPECT_GT(checked, 528 + 800);
}

}  // namespace
}  // namespace smla
