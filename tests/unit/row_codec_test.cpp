#include "cache/row_codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/codecs.h"

namespace smla {
namespace {

/// A cache of three strided blocks whose every byte is `fill`.
struct Memory {
  std::vector<std::uint8_t> bytes;
  PagedCache cache;

  Memory(const RowFormat& format, std::int64_t block_size, std::uint8_t fill = 0xEE) {
    const std::int64_t stride = page_bytes(format, block_size) + 192;
    bytes.assign(static_cast<std::size_t>(3 * stride), fill);
    cache = {.format = &format,
             .base = bytes.data(),
             .num_blocks = 3,
             .block_size = block_size,
             .block_stride_bytes = stride,
             .scale = 1.0F};
  }
  const std::uint8_t* data(std::int64_t slot) const {
    return row_data(cache, slot / cache.block_size, slot % cache.block_size);
  }
  const std::uint8_t* scales(std::int64_t slot) const {
    return row_scales(cache, slot / cache.block_size, slot % cache.block_size);
  }
};

std::string hex(const std::uint8_t* bytes, int n) {
  std::string text;
  for (int i = 0; i < n; ++i) {
    constexpr const char* kDigits = "0123456789abcdef";
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 15];
  }
  return text;
}

std::vector<float> random_row(int dim, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> row(static_cast<std::size_t>(dim));
  // Magnitudes over many octaves, so that groups get different scales.
  for (std::size_t i = 0; i < row.size(); ++i)
    row[i] = normal(engine) * std::exp2(static_cast<float>(i / 37 % 9) - 4.0F);
  return row;
}

TEST(RowCodecGolden, G1OneBlockOfTheFp8Record) {
  Memory m(fp8_ds_mla_rows(), 4);
  std::vector<float> row(512, 0.0F);
  for (int i = 0; i < 64; ++i) row[static_cast<std::size_t>(i)] = static_cast<float>(i - 32) / 8.0F;
  encode_row(m.cache, 6, row.data());
  EXPECT_EQ(m.scales(6)[0], 0x79);
  EXPECT_EQ(hex(m.data(6), 64),
            "f8f8f7f6f6f6f5f4f4f4f3f2f2f2f1f0f0efeeedecebeae9e8e6e4e2e0dcd8d00050585c6062646668696a6b6c6d6e6f7070717272"
            "7273747474757676767778");
}

TEST(RowCodecGolden, G2ZeroBlock) {
  Memory m(fp8_ds_mla_rows(), 4);
  const std::vector<float> row(512, 0.0F);
  encode_row(m.cache, 0, row.data());
  for (int g = 0; g < 7; ++g) EXPECT_EQ(m.scales(0)[g], 105);
  EXPECT_EQ(m.scales(0)[7], 0) << "the pad byte of the scale slot";
  for (int i = 0; i < 448; ++i) EXPECT_EQ(m.data(0)[i], 0);
}

TEST(RowCodecGolden, G3BothClampRules) {
  Memory m(fp8_ds_mla_rows(), 4);
  const std::vector<float> row(512, 0.01F);
  ASSERT_EQ(to_float(to_bf16(0.01F)), 0.010009765625F);
  encode_row(m.cache, 1, row.data(), ClampRule::kAmax);
  EXPECT_EQ(m.scales(1)[3], 112);
  EXPECT_EQ(m.data(1)[200], 0x7A);
  encode_row(m.cache, 1, row.data(), ClampRule::kScale);
  EXPECT_EQ(m.scales(1)[3], 114);
  EXPECT_EQ(m.data(1)[200], 0x6A);
}

TEST(RowCodecGolden, G4Mxfp4Block) {
  Memory m(index_mxfp4_rows(), 4);
  std::vector<float> row(128, 0.0F);
  for (int i = 0; i < 32; ++i) row[static_cast<std::size_t>(i)] = static_cast<float>(i - 16) / 4.0F;
  encode_row(m.cache, 2, row.data());
  EXPECT_EQ(m.scales(2)[0], 127);
  EXPECT_EQ(hex(m.data(2), 16), "eededdccccabaa890021224344545566");
}

TEST(RowCodec, QuantisersSeeBf16) {
  // Just above the midpoint of 1 and 1.125: e4m3 of it is 1.125, but bf16 puts it on the midpoint, whose even neighbour
  // is 1.
  for (const RowFormat* f : {&fp8_ds_mla_rows(), &index_fp8_rows()}) {
    Memory m(*f, 4);
    std::vector<float> row(static_cast<std::size_t>(f->dim), 0.0F);
    row[0] = 448.0F;  // the group's scale is 1
    row[1] = 1.0625F + 0x1p-20F;
    ASSERT_EQ(to_e4m3(row[1]), to_e4m3(1.125F));
    encode_row(m.cache, 5, row.data());
    EXPECT_EQ(m.data(5)[1], to_e4m3(1.0F).bits) << f->name;
  }
}

TEST(RowCodec, DecodeOfEncodeIsWithinTheFormatsStep) {
  for (const RowFormat* f : all_row_formats()) {
    Memory m(*f, 5);
    m.cache.scale = 0.25F;
    std::vector<float> row = random_row(f->dim, 7);
    // Per-tensor rows saturate at 448 * scale.
    if (f->scale == ScaleKind::kPerTensor) {
      for (float& x : row) x = std::fmin(std::fmax(x, -112.0F), 112.0F);
    }
    encode_row(m.cache, 11, row.data());
    std::vector<float> back(row.size());
    decode_row(m.cache, 11, back.data());
    for (int i = 0; i < f->dim; ++i) {
      const Element element = i < f->nope_dim ? f->nope : f->rope;
      double relative = element == Element::kF32    ? 0.0
                        : element == Element::kBF16 ? 0x1p-8
                        : element == Element::kE4M3 ? 0x1p-4
                                                    : 0x1p-2;
      double absolute = 0;
      if (f->group > 0 && i < f->nope_dim) {
        // bf16 first; then half a step of the group's smallest numbers, whose scale is at most 2 * amax / largest.
        relative += 0x1p-8;
        double amax = 0;
        for (int j = i / f->group * f->group; j < (i / f->group + 1) * f->group; ++j) {
          amax = std::fmax(amax, std::fabs(row[static_cast<std::size_t>(j)]));
        }
        absolute = amax * (element == Element::kE2M1 ? 0.26 * 2 / 6 : 0x1p-10 * 2.1 / 448);
      } else if (f->scale == ScaleKind::kPerTensor) {
        absolute = 0x1p-10 * 0.25;
      }
      const double x = row[static_cast<std::size_t>(i)];
      ASSERT_NEAR(back[static_cast<std::size_t>(i)], x, std::fabs(x) * relative + absolute) << f->name << " dim " << i;
    }
  }
}

TEST(RowCodec, DecodedRowsEncodeToTheSameValues) {
  for (const RowFormat* f : all_row_formats()) {
    Memory m(*f, 5);
    m.cache.scale = 0.5F;
    const std::vector<float> row = random_row(f->dim, 8);
    encode_row(m.cache, 4, row.data());
    std::vector<float> once(row.size());
    std::vector<float> twice(row.size());
    decode_row(m.cache, 4, once.data());
    encode_row(m.cache, 9, once.data());
    decode_row(m.cache, 9, twice.data());
    EXPECT_EQ(once, twice) << f->name;
  }
}

TEST(RowCodec, WritesItsOwnBytesAndNoOther) {
  for (const RowFormat* f : all_row_formats()) {
    Memory m(*f, 3);
    const std::int64_t slot = 4;
    const std::vector<float> row = random_row(f->dim, 9);
    encode_row(m.cache, slot, row.data());
    const std::ptrdiff_t data = m.data(slot) - m.bytes.data();
    const std::ptrdiff_t scales = m.scales(slot) - m.bytes.data();
    for (std::ptrdiff_t i = 0; i < std::ssize(m.bytes); ++i) {
      const bool mine = (i >= data && i < data + f->data_bytes) || (i >= scales && i < scales + f->scale_bytes);
      if (!mine) {
        ASSERT_EQ(m.bytes[static_cast<std::size_t>(i)], 0xEE) << f->name << " byte " << i;
      }
    }
    // And every byte of its own: a row written over other garbage is the same row.
    Memory other(*f, 3, 0x11);
    encode_row(other.cache, slot, row.data());
    EXPECT_EQ(std::memcmp(m.data(slot), other.data(slot), static_cast<std::size_t>(f->data_bytes)), 0) << f->name;
    EXPECT_EQ(std::memcmp(m.scales(slot), other.scales(slot), static_cast<std::size_t>(f->scale_bytes)), 0) << f->name;
  }
}

// DeepSeek-V3.2: 512 codes, four fp32 scales, 64 bf16 numbers, row after row.
TEST(RowCodec, V32RowsKeepTheirScalesInside) {
  Memory m(fp8_v32_rows(), 3, 0);
  std::vector<float> row(576);
  for (int i = 0; i < 576; ++i)
    row[static_cast<std::size_t>(i)] =
        static_cast<float>(i % 7 - 3) * (i < 512 ? std::ldexp(1.0F, i / 128 * 4 - 8) : 0.5F);
  encode_row(m.cache, 4, row.data());
  const std::uint8_t* bytes = m.cache.block(1) + 656;
  for (int g = 0; g < 4; ++g) {
    float scale = 0;
    std::memcpy(&scale, bytes + 512 + 4 * g, 4);
    EXPECT_EQ(scale, std::ldexp(1.0F, 4 * g - 8 - 7)) << g;  // 3 / 448 rounded up to a power of two is 2^-7
    EXPECT_EQ(to_float(E4M3{bytes[128 * g + 6]}) * scale, row[static_cast<std::size_t>(128 * g + 6)]);
  }
  BF16 rope;
  std::memcpy(&rope, bytes + 528 + 2 * 63, 2);
  EXPECT_EQ(to_float(rope), row[575]);
  std::vector<float> back(576);
  decode_row(m.cache, 4, back.data());
  EXPECT_EQ(back, row);
  // Writers elsewhere use any fp32 scale.
  const float third = 1.0F / 3.0F;
  std::memcpy(m.cache.block(1) + 656 + 512, &third, 4);
  decode_row(m.cache, 4, back.data());
  EXPECT_EQ(back[6], to_float(E4M3{bytes[6]}) * third);
}

TEST(RowCodec, PerTensorScaleMultipliesOnTheWayOut) {
  Memory m(fp8_per_tensor_rows(), 2);
  m.cache.scale = 0.125F;
  std::vector<float> row(512, 3.0F);
  row[511] = 1e6F;
  row[510] = -1e6F;
  encode_row(m.cache, 3, row.data());
  EXPECT_EQ(m.data(3)[0], to_e4m3(24.0F).bits);
  std::vector<float> back(512);
  decode_row(m.cache, 3, back.data());
  EXPECT_EQ(back[0], 3.0F);
  EXPECT_EQ(back[511], 448.0F * 0.125F);
  EXPECT_EQ(back[510], -448.0F * 0.125F);
}

TEST(RowCodec, HadamardIsItsOwnInverse) {
  std::vector<float> x = random_row(128, 10);
  const std::vector<float> before = x;
  hadamard(x.data(), 128);
  double sum = 0;
  for (const float v : before) sum += v;
  EXPECT_NEAR(x[0], sum / std::sqrt(128.0), 1e-3);
  double norm_before = 0;
  double norm_after = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    norm_before += static_cast<double>(before[i]) * before[i];
    norm_after += static_cast<double>(x[i]) * x[i];
  }
  EXPECT_NEAR(norm_after / norm_before, 1.0, 1e-5);
  hadamard(x.data(), 128);
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x[i], before[i], 1e-3);
  // Sylvester order: row k of the matrix has sign (-1)^popcount(k & i).
  std::vector<float> unit(8, 0.0F);
  unit[5] = 1.0F;
  hadamard(unit.data(), 8);
  for (unsigned i = 0; i < 8; ++i)
    EXPECT_NEAR(unit[i], (std::popcount(i & 5U) % 2 == 0 ? 1.0 : -1.0) / std::sqrt(8.0), 1e-6) << i;
}

}  // namespace
}  // namespace smla
