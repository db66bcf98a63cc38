// InverseRopeQuant and InsertRows: bytes are promised, so every implementation is compared bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/row_codec.h"
#include "core/codecs.h"
#include "parity/insert_cases.h"
#include "parity/inverse_rope_cases.h"

namespace smla {
namespace {

using namespace norm_rope_cases;

bool same_bytes(const HostTensor& a, const HostTensor& b) {
  return a.bytes() == b.bytes() && std::memcmp(a.data(), b.data(), a.bytes()) == 0;
}

TEST(InverseRopeQuantParity, EveryImplementationEqualsRefInEveryBit) {
  for (const QuantCase& c : quant_cases()) {
    QuantRun want(c);
    want.run(c, "ref", 1);
    for (const Candidate& candidate : explain<InverseRopeQuant>(c.problem())) {
      if (!candidate.refusal.empty()) continue;
      for (const int threads : {1, 3}) {
        QuantRun got(c);
        got.run(c, candidate.name, threads);
        ASSERT_TRUE(same_bytes(got.values, want.values) && same_bytes(got.scales, want.scales))
            << candidate.name << " tokens " << c.tokens;
      }
    }
  }
}

TEST(InverseRopeQuant, DecodesToTheRotatedRow) {
  for (const QuantCase& c : quant_cases()) {
    QuantRun r(c);
    r.run(c, "", 2);
    HostTensor y(DType::kF32, {c.tokens, c.heads, c.dim});
    Plan<InverseRope>({.tokens = c.tokens, .heads = c.heads, .dim = c.dim, .in = c.in, .out = DType::kF32})
        .run({.x = std::as_const(r.x).view().slice(1, 0, c.heads),
              .positions = r.positions.view(),
              .cos_sin = r.cos_sin.view(),
              .y = y.view()});
    for (std::int64_t g = 0; g < c.groups; ++g) {
      for (std::int64_t t = 0; t < c.padded(); ++t) {
        const bool skipped = t == 2 || t == 4;
        for (std::int64_t k = 0; k < c.chunks(); ++k) {
          float scale = 0;
          if (c.scale == OutputScale::kF32) {
            scale = r.scales.as<float>()[(g * c.chunks() + k) * c.padded() + t];
            if (t >= c.tokens) {
              ASSERT_EQ(scale, 0.0F) << "padding";
            }
          } else {
            const auto word =
                static_cast<std::uint32_t>(r.scales.as<std::int32_t>()[(g * c.scale_rows() + k / 4) * c.padded() + t]);
            if (t >= c.tokens) {
              ASSERT_EQ(word, 0U) << "padding";
            }
            if (k + 1 == c.chunks() && c.chunks() % 4 != 0 && t < c.tokens && !skipped) {
              ASSERT_EQ(word >> (8 * (c.chunks() % 4)), 0U);
            }
            scale = from_ue8m0(static_cast<std::uint8_t>(word >> (8 * (k % 4))));
          }
          if (t >= c.tokens || skipped) continue;
          float amax = 0;
          for (std::int64_t i = 0; i < 128; ++i) {
            const float want = y.as<float>()[t * c.heads * c.dim + g * c.width() + k * 128 + i];
            const float got = scale * to_float(r.values.as<E4M3>()[(g * c.tokens + t) * c.width() + k * 128 + i]);
            amax = std::max(amax, std::fabs(want));
            ASSERT_LE(std::fabs(got - want), std::max(std::fabs(want) / 16.0F, scale * 0x1p-10F))
                << "t " << t << " chunk " << k;
          }
          // The smallest power of two that holds the largest number.
          if (amax > 1e-9F) {
            ASSERT_TRUE(amax <= 448.001F * scale && amax > 223.99F * scale) << amax << " " << scale;
          }
          if (amax == 0.0F) {  // ceil(log2(1e-10 / 448))
            ASSERT_EQ(scale, std::ldexp(1.0F, -42));
          }
        }
      }
    }
  }
}

TEST(InsertRows, EncodesEachRowAtItsSlot) {
  for (const RowFormat* format : all_row_formats()) {
    for (const DType in : {DType::kBF16, DType::kF32}) {
      std::mt19937_64 random(9);
      HostTensor rows(in, {6, format->dim + 8});
      fill_activations(rows, random);
      const std::vector<std::int64_t> slots{5, -1, 0, std::numeric_limits<std::int64_t>::max(),
                                            8};  // 8 is the first slot past the cache
      OwnedCache want;
      want.allocate(*format, 2, 4, 32);
      OwnedCache got = want;
      got.cache.base = got.bytes.data();
      std::vector<float> row(static_cast<std::size_t>(format->dim));
      for (const std::int64_t t : {0, 2}) {
        for (int d = 0; d < format->dim; ++d) {
          const std::int64_t at = t * (format->dim + 8) + 8 + d;
          row[static_cast<std::size_t>(d)] = in == DType::kF32 ? rows.as<float>()[at] : to_float(rows.as<BF16>()[at]);
        }
        encode_row(want.cache, slots[static_cast<std::size_t>(t)], row.data());
      }
      for (const Candidate& candidate : explain<InsertRows>({.tokens = 6, .in = in, .format = format})) {
        if (!candidate.refusal.empty()) continue;
        Plan<InsertRows>({.tokens = 6, .in = in, .format = format}, {.implementation = candidate.name})
            .run({.rows = std::as_const(rows).view().slice(1, 8, 8 + format->dim),
                  .slot_mapping = view_of(slots.data(), {5}),
                  .cache = got.cache});
        ASSERT_TRUE(got.bytes == want.bytes) << format->name;
      }
    }
  }
}

TEST(InsertRows, GoldenG2AndG3) {
  // G2: zeros give scale byte 105; G3: 0.01 gives byte 112 and code 0x7a by the amax rule, 114 and 0x6a by the scale
  // rule.
  for (const auto& [value, rule, scale, code] :
       {std::tuple{0.0F, ClampRule::kAmax, 105, 0x00}, std::tuple{0.01F, ClampRule::kAmax, 112, 0x7A},
        std::tuple{0.01F, ClampRule::kScale, 114, 0x6A}}) {
    const std::vector<BF16> row(512, to_bf16(value));
    const std::int64_t slot = 1;
    OwnedCache cache;
    cache.allocate(fp8_ds_mla_rows(), 1, 2, 0);
    Plan<InsertRows>({.tokens = 1, .format = &fp8_ds_mla_rows(), .clamp = rule})
        .run({.rows = view_of(row.data(), {1, 512}), .slot_mapping = view_of(&slot, {1}), .cache = cache.cache});
    EXPECT_EQ(row_data(cache.cache, 0, 1)[0], code);
    EXPECT_EQ(row_scales(cache.cache, 0, 1)[0], scale);
    EXPECT_EQ(row_scales(cache.cache, 0, 1)[7], 0);
    EXPECT_EQ(row_data(cache.cache, 0, 0)[0], kPoison);
  }
}

}  // namespace
}  // namespace smla
