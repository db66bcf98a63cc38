#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "cases/tolerance.h"
#include "sparsemla/error.h"
#include "sparsemla/model_config.h"

namespace smla {
namespace {

const RopeConfig kPlain{.theta = 10000.0};
const RopeConfig kCompress{.theta = 160000.0, .yarn = YarnConfig{}};

// The pinned rule of the specification, bit for bit.
constexpr std::array<std::uint32_t, 32> kPlainBits{
    0x3f800000, 0x3f3ff911, 0x3f0ff59a, 0x3ed7e89b, 0x3ea1e89b, 0x3e72d424, 0x3e361887, 0x3e088d77,
    0x3dcccccd, 0x3d99940e, 0x3d6655c3, 0x3d2cba15, 0x3d0186e2, 0x3cc24350, 0x3c91ad39, 0x3c5a7bf1,
    0x3c23d70a, 0x3bf5b9b0, 0x3bb8449c, 0x3b8a2e77, 0x3b4f3e37, 0x3b1b690d, 0x3ae91528, 0x3aaec98e,
    0x3a83126f, 0x3a44948c, 0x3a136a16, 0x39dd1726, 0x39a5cb5f, 0x3978a814, 0x393a7753, 0x390bd472};
constexpr std::array<std::uint32_t, 32> kCompressBits{
    0x3f800000, 0x3f300a3a, 0x3ef21c1f, 0x3ea67d01, 0x3e64f92e, 0x3e1d7475, 0x3dd88cb5, 0x3d94e963,
    0x3d4ccccd, 0x3d0cd4fb, 0x3cc1b019, 0x3c8530ce, 0x3c372dbf, 0x3bfbed88, 0x3bad3d5d, 0x3b6e4237,
    0x3b147ae1, 0x3ab714e0, 0x3a5ebdb6, 0x3a0530ce, 0x399bb3af, 0x39305978, 0x38be904d, 0x383e9b5e,
    0x37a3d70c, 0x36b443d1, 0x3677eba5, 0x362a7be9, 0x35ea77fe, 0x35a13bdc, 0x355dbf30, 0x35187c4c};

void expect_bits(const RopeConfig& config, const std::array<std::uint32_t, 32>& bits) {
  const std::vector<float> frequencies = rope_frequencies(config);
  ASSERT_EQ(frequencies.size(), bits.size());
  for (std::size_t i = 0; i < bits.size(); ++i)
    EXPECT_EQ(std::bit_cast<std::uint32_t>(frequencies[i]), bits[i]) << "pair " << i;
}

TEST(RopeTable, PlainFrequenciesAreThePinnedBits) { expect_bits(kPlain, kPlainBits); }
TEST(RopeTable, CompressFrequenciesAreThePinnedBits) { expect_bits(kCompress, kCompressBits); }

// The golden numbers of the YaRN ramp: pairs below 15 are unscaled, pairs from 25 on are divided by 16.
TEST(RopeTable, YarnRampRunsFrom15To25) {
  const std::vector<float> scaled = rope_frequencies(kCompress);
  const std::vector<float> plain = rope_frequencies({.theta = 160000.0});
  for (std::size_t i = 0; i <= 15; ++i) EXPECT_EQ(scaled[i], plain[i]) << i;
  EXPECT_NE(scaled[16], plain[16]);
  EXPECT_NE(scaled[24], plain[24] / 16.0F);
  for (std::size_t i = 25; i < 32; ++i) EXPECT_EQ(scaled[i], plain[i] / 16.0F) << i;
  for (const auto& [pair, value] : {std::pair{1, 0.687656022F},
                                    {2, 0.472870805F},
                                    {15, 0.00363553858F},
                                    {20, 0.000296977778F},
                                    {31, 5.68052904e-07F}}) {
    EXPECT_LE(ulp_distance(scaled[static_cast<std::size_t>(pair)], value), 1) << pair;
  }
}

// G5: the row of a compressed entry at position 4.
TEST(RopeTable, GoldenRowAtPosition4) {
  const std::vector<float> table = rope_table(kCompress, 5);
  const float* row = table.data() + 4 * 64;
  const auto expect = [&](int pair, float cosine, float sine) {
    EXPECT_LE(ulp_distance(row[pair], cosine), 1) << pair;
    EXPECT_LE(ulp_distance(row[32 + pair], sine), 1) << pair;
  };
  expect(0, -0.653643621F, -0.756802495F);
  expect(5, 0.816739842F, 0.577006093F);
  expect(16, 0.999958936F, 0.00906237575F);
  expect(31, 1.0F, 2.27221176e-06F);
  EXPECT_LE(ulp_distance(rope_frequencies(kCompress)[16], 0.00226562495F), 1);
}

// The angle is the fp32 product: at a million a double-precision angle is another number.
TEST(RopeTable, AngleIsTheFp32Product) {
  constexpr std::int64_t kPosition = 1'000'003;
  const std::vector<float> table = rope_table(kCompress, kPosition + 1);
  const std::vector<float> frequencies = rope_frequencies(kCompress);
  double drift = 0.0;
  for (std::size_t i = 0; i < 32; ++i) {
    const float angle = static_cast<float>(kPosition) * frequencies[i];
    const float* row = table.data() + kPosition * 64;
    EXPECT_EQ(row[i], static_cast<float>(std::cos(static_cast<double>(angle))));
    EXPECT_EQ(row[32 + i], static_cast<float>(std::sin(static_cast<double>(angle))));
    drift = std::max(drift, std::fabs(static_cast<double>(angle) -
                                      static_cast<double>(kPosition) * static_cast<double>(frequencies[i])));
  }
  EXPECT_GT(drift, 1e-3);
}

TEST(RopeTable, RowsDoNotDependOnTheLength) {
  const std::vector<float> a = rope_table(kPlain, 7);
  const std::vector<float> b = rope_table(kPlain, 300);
  EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin()));
  EXPECT_TRUE(rope_table(kPlain, 0).empty());
}

TEST(RopeTable, ImpossibleParametersAreRefused) {
  EXPECT_THROW(rope_table(kPlain, -1), InvalidArgument);
  EXPECT_THROW(rope_table(kPlain, std::int64_t{1} << 40), InvalidArgument);
  for (const double theta : {0.0, 1.0, -5.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_THROW(rope_frequencies({.theta = theta}), InvalidArgument) << theta;
  }
  for (const int dim : {0, -2, 3, 1 << 20})
    EXPECT_THROW(rope_frequencies({.theta = 10000.0, .dim = dim}), InvalidArgument) << dim;
  const auto yarn = [](YarnConfig y) { return RopeConfig{.theta = 160000.0, .yarn = y}; };
  EXPECT_THROW(rope_frequencies(yarn({.factor = 0.0})), InvalidArgument);
  EXPECT_THROW(rope_frequencies(yarn({.factor = std::nan("")})), InvalidArgument);
  EXPECT_THROW(rope_frequencies(yarn({.original_max_position = 0})), InvalidArgument);
  EXPECT_THROW(rope_frequencies(yarn({.beta_fast = 0.0})), InvalidArgument);
  EXPECT_THROW(rope_frequencies(yarn({.beta_slow = -1.0})), InvalidArgument);
}

}  // namespace
}  // namespace smla
