// The fused insert over upstream's grid of heads, blocks and padding (spec 5.3, 10), against a plain computation that
// shares no kernel.
#include <gtest/gtest.h>

#include "cache/row_codec.h"
#include "core/codecs.h"
#include "parity/insert_cases.h"

namespace smla {
namespace {

using namespace norm_rope_cases;

std::vector<double> row_of(const HostTensor& tensor, std::int64_t begin, std::int64_t count) {
  std::vector<double> out;
  for (std::int64_t i = begin; i < begin + count; ++i)
    out.push_back(static_cast<double>(to_float(tensor.as<BF16>()[i])));
  return out;
}

/// Rotates the last 64 numbers at row `position` of the table, each operation rounded to T.
template <class T>
void rotate(std::vector<T>& row, const HostTensor& table, std::int64_t position) {
  const std::size_t nope = row.size() - 64;
  for (std::size_t i = 0; i < 32; ++i) {
    const auto c = static_cast<T>(table.as<float>()[position * 64 + static_cast<std::int64_t>(i)]);
    const auto s = static_cast<T>(table.as<float>()[position * 64 + 32 + static_cast<std::int64_t>(i)]);
    const T even = row[nope + 2 * i];
    const T odd = row[nope + 2 * i + 1];
    row[nope + 2 * i] = even * c - odd * s;
    row[nope + 2 * i + 1] = odd * c + even * s;
  }
}

std::vector<double> expected_q(const InsertInputs& in, const InsertCase& c, std::int64_t t, std::int64_t h) {
  std::vector<double> row = row_of(in.q, (t * c.heads + h) * 512, 512);
  double squares = 0;
  for (const double x : row) squares += x * x;
  const double factor = 1.0 / std::sqrt(squares / 512 + 1e-6);
  for (double& x : row) x *= factor;
  rotate(row, in.cos_sin, in.positions.as<std::int64_t>()[t]);
  return row;
}

/// Steps between two bf16 or e4m3 numbers on their number line.
template <class Bits>
int steps(Bits a, Bits b, int sign) {
  const auto line = [&](Bits x) { return (x & sign) != 0 ? -static_cast<int>(x & (sign - 1)) : static_cast<int>(x); };
  return std::abs(line(a) - line(b));
}

void check_q(const InsertInputs& in, const InsertCase& c) {
  for (std::int64_t t = 0; t < c.tokens; ++t) {
    for (std::int64_t h = 0; h < c.out_heads; ++h) {
      const std::int64_t at = (t * c.out_heads + h) * 512;
      if (h >= c.heads) {
        for (std::int64_t d = 0; d < 512; ++d) ASSERT_EQ(in.q_out.as<BF16>()[at + d].bits, 0) << "padded head " << h;
        continue;
      }
      const std::vector<double> want = expected_q(in, c, t, h);
      for (std::int64_t d = 0; d < 512; ++d) {
        const auto w = static_cast<float>(want[static_cast<std::size_t>(d)]);
        if (c.q_out == DType::kBF16) {
          ASSERT_LE(std::fabs(to_float(in.q_out.as<BF16>()[at + d]) - w), 1e-2F + 1e-2F * std::fabs(w))
              << t << " " << h << " " << d;
        } else {
          ASSERT_LE(steps(in.q_out.as<E4M3>()[at + d].bits, to_e4m3(w / c.scale).bits, 0x80), 1)
              << t << " " << h << " " << d;
        }
      }
    }
  }
}

/// Every byte of the cache: written rows by number, all others untouched.
void check_cache_rows(const InsertInputs& in, const InsertCase& c) {
  OwnedCache want;
  want.allocate(*c.format, in.cache.cache.num_blocks, c.block_size, 48);
  want.cache.scale = c.scale;
  std::vector<std::int64_t> token_of(static_cast<std::size_t>(want.cache.num_slots()), -1);
  for (std::int64_t t = 0; t < c.inserted; ++t) {
    const std::int64_t slot = in.slots.as<std::int64_t>()[t];
    if (slot < 0) continue;
    token_of[static_cast<std::size_t>(slot)] = t;
    const std::vector<double> row = row_of(in.kv, t * 552 + 8, 512);
    std::vector<float> numbers(row.begin(), row.end());
    rotate(numbers, in.cos_sin, in.positions.as<std::int64_t>()[t]);
    encode_row(want.cache, slot, numbers.data());
  }
  std::vector<bool> rope(want.bytes.size(), false);  // bytes of rotated numbers: the order of roundings may show there
  for (std::int64_t slot = 0; slot < want.cache.num_slots(); ++slot) {
    if (token_of[static_cast<std::size_t>(slot)] < 0) continue;
    const std::uint8_t* got = row_data(in.cache.cache, slot / c.block_size, slot % c.block_size);
    const std::uint8_t* expected = row_data(want.cache, slot / c.block_size, slot % c.block_size);
    const bool bf16 = c.format->rope == Element::kBF16;
    const std::ptrdiff_t begin = c.format == &fp8_ds_mla_rows() ? 448 : bf16 ? 2 * 448 : 448;
    for (std::ptrdiff_t d = 0; d < 64; ++d) {
      const std::ptrdiff_t at = begin + d * (bf16 ? 2 : 1);
      if (bf16) {
        BF16 g;
        BF16 w;
        std::memcpy(&g, got + at, 2);
        std::memcpy(&w, expected + at, 2);
        ASSERT_LE(steps(g.bits, w.bits, 0x8000), 1) << "slot " << slot << " rope dim " << d;
      } else {
        ASSERT_LE(steps(got[at], expected[at], 0x80), 1) << "slot " << slot << " rope dim " << d;
      }
      for (std::ptrdiff_t b = 0; b < (bf16 ? 2 : 1); ++b)
        rope[static_cast<std::size_t>(expected + at + b - want.bytes.data())] = true;
    }
  }
  for (std::size_t i = 0; i < want.bytes.size(); ++i) {
    ASSERT_TRUE(rope[i] || in.cache.bytes[i] == want.bytes[i]) << "byte " << i;
  }
}

void check(const InsertCase& c, bool in_place = false) {
  for (const Candidate& candidate : explain<QNormRopeInsert>(c.problem())) {
    if (!candidate.refusal.empty()) continue;
    InsertInputs in = make_inputs(c, 11);
    const HostTensor q = in.q.clone();
    if (in_place) in.args.q_out = in.q.view();
    Plan<QNormRopeInsert>(c.problem(), {.implementation = candidate.name, .threads = 2}).run(in.args);
    if (in_place) {
      in.q_out = in.q.clone();
      in.q = q.clone();
    }
    EXPECT_EQ(std::memcmp(in.q.data(), q.data(), q.bytes()), 0) << "q was changed";
    check_q(in, c);
    check_cache_rows(in, c);
    ASSERT_FALSE(testing::Test::HasFatalFailure()) << candidate.name << ": " << c;
  }
}

TEST(InsertGrid, PaddedHeadsAndQuantisedRows) {
  const std::pair<std::int64_t, std::int64_t> heads[] = {{1, 8},   {8, 8},  {8, 16},  {16, 16}, {16, 32},
                                                         {32, 32}, {8, 64}, {64, 64}, {64, 128}};
  for (const auto& [h, padded] : heads) {
    for (const std::int64_t block : {16, 64}) {
      for (const std::int64_t pad : {1, 5}) {  // the slot mapping is shorter than q
        for (const std::int64_t inserted : {1, 17}) {
          check({.tokens = inserted + pad,
                 .inserted = inserted,
                 .heads = h,
                 .out_heads = padded,
                 .format = &fp8_ds_mla_rows(),
                 .block_size = block});
        }
      }
    }
  }
  check({.tokens = 69, .inserted = 64, .heads = 8, .out_heads = 8, .format = &fp8_ds_mla_rows()});
  check({.tokens = 4, .inserted = 4, .heads = 8, .out_heads = 8, .format = &fp8_ds_mla_rows()});
}

TEST(InsertGrid, Bf16RowsWithQInPlace) {
  for (const std::int64_t heads : {1, 8, 64}) {
    for (const std::int64_t tokens : {1, 4, 17, 64}) {
      const InsertCase c{.tokens = tokens,
                         .inserted = tokens - tokens / 5,
                         .heads = heads,
                         .out_heads = heads,
                         .format = &bf16_rows()};
      check(c);
      check(c, true);
    }
  }
}

TEST(InsertGrid, Fp8RowsWithFp8Q) {
  for (const std::int64_t heads : {1, 8, 64}) {
    for (const std::int64_t tokens : {1, 4, 17, 64}) {
      for (const float scale : {1.0F, 0.5F}) {
        check({.tokens = tokens,
               .inserted = tokens - tokens / 5,
               .heads = heads,
               .out_heads = heads,
               .format = &fp8_per_tensor_rows(),
               .q_out = DType::kE4M3,
               .scale = scale});
      }
    }
  }
}

}  // namespace
}  // namespace smla
