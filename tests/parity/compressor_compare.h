#pragma once

// How records of the compressor are compared, for tests of any device.

#include <gtest/gtest.h>

#include "cache/row_codec.h"
#include "parity/compressor_cases.h"

namespace smla::compressor_cases {

inline int ordered(std::uint32_t bits, std::uint32_t sign) {
  return (bits & sign) != 0U ? -static_cast<int>(bits & (sign - 1U)) : static_cast<int>(bits);
}

/// Whether numbers are NaN, whose sign and payload are the machine's.
inline bool both_nan(std::uint32_t a, std::uint32_t b, std::uint32_t magnitude, std::uint32_t largest) {
  return (a & magnitude) > largest && (b & magnitude) > largest;
}

/// Whether e2m1 numbers are what NaN becomes: nothing but 6 and -6.
inline bool only_sixes(const std::uint8_t* codes, std::int64_t bytes) {
  return std::all_of(codes, codes + bytes, [](std::uint8_t b) { return (b & 0x77U) == 0x77U; });
}

/// Codes of `bytes` bytes at most one step apart.
inline void expect_codes(Element element, const std::uint8_t* want, const std::uint8_t* got, std::int64_t bytes) {
  if (element == Element::kE2M1 && only_sixes(want, bytes) && only_sixes(got, bytes)) return;
  for (std::int64_t i = 0; i < bytes; ++i) {
    if (element == Element::kE4M3) {
      if (both_nan(want[i], got[i], 0x7F, 0x7E)) continue;
      ASSERT_LE(std::abs(ordered(want[i], 0x80) - ordered(got[i], 0x80)), 1) << "byte " << i;
    } else if (element == Element::kE2M1) {
      ASSERT_LE(std::abs(ordered(want[i] & 15U, 8) - ordered(got[i] & 15U, 8)), 1) << "byte " << i;
      ASSERT_LE(std::abs(ordered(want[i] >> 4U, 8) - ordered(got[i] >> 4U, 8)), 1) << "byte " << i;
    } else if (element == Element::kBF16 && i % 2 == 0) {
      std::uint16_t w = 0;
      std::uint16_t g = 0;
      std::memcpy(&w, want + i, 2);
      std::memcpy(&g, got + i, 2);
      if (both_nan(w, g, 0x7FFF, 0x7F80)) continue;
      ASSERT_LE(std::abs(ordered(w, 0x8000) - ordered(g, 0x8000)), 1) << "byte " << i;
    }
  }
}

/// One record: F32 rows l2 1e-6; else scales equal, codes and bf16 numbers at most one step apart, or 1e-5 of the row's
/// largest for bf16 rows.
inline void expect_close_record(const CompressorInputs& want, const CompressorInputs& got, std::int64_t slot) {
  const RowFormat& f = *want.entries.cache.format;
  const std::int64_t bs = want.entries.cache.block_size;
  std::vector<float> w(static_cast<std::size_t>(f.dim));
  std::vector<float> g(w);
  decode_row(want.entries.cache, slot, w.data());
  decode_row(got.entries.cache, slot, g.data());
  double error = 0;
  double norm = 0;
  double largest = 0;
  double worst = 0;
  for (std::size_t i = 0; i < w.size(); ++i) {
    ASSERT_EQ(std::isnan(w[i]), std::isnan(g[i])) << "channel " << i;  // hostile tables lead to unwritten state
    if (std::isnan(w[i])) continue;
    error += (static_cast<double>(g[i]) - w[i]) * (static_cast<double>(g[i]) - w[i]);
    norm += static_cast<double>(w[i]) * w[i];
    largest = std::max(largest, std::fabs(static_cast<double>(w[i])));
    worst = std::max(worst, std::fabs(static_cast<double>(g[i]) - w[i]));
  }
  const std::uint8_t* want_data = row_data(want.entries.cache, slot / bs, slot % bs);
  const std::uint8_t* got_data = row_data(got.entries.cache, slot / bs, slot % bs);
  if (f.nope == Element::kF32) {
    ASSERT_LE(std::sqrt(error), 1e-6 * std::sqrt(norm));
    return;
  }
  if (f.nope == Element::kBF16 && worst <= 1e-5 * largest) return;
  const std::int64_t nope_bytes = f.data_bytes - (f.rope_dim() > 0 ? 2 * f.rope_dim() : 0);
  expect_codes(f.nope, want_data, got_data, nope_bytes);
  expect_codes(f.rope, want_data + nope_bytes, got_data + nope_bytes, f.data_bytes - nope_bytes);
  ASSERT_EQ(std::memcmp(row_scales(want.entries.cache, slot / bs, slot % bs),
                        row_scales(got.entries.cache, slot / bs, slot % bs), static_cast<std::size_t>(f.scale_bytes)),
            0)
      << "scales";
}

inline bool same_record(const PagedCache& a, const PagedCache& b, std::int64_t slot) {
  const std::int64_t bs = a.block_size;
  return std::memcmp(row_data(a, slot / bs, slot % bs), row_data(b, slot / bs, slot % bs),
                     static_cast<std::size_t>(a.format->data_bytes)) == 0;
}

/// Whether a byte differs from the poison somewhere in the record.
inline bool written(const PagedCache& cache, std::int64_t slot) {
  const std::uint8_t* data = row_data(cache, slot / cache.block_size, slot % cache.block_size);
  return std::any_of(data, data + cache.format->data_bytes, [](std::uint8_t b) { return b != kPoison; });
}

/// The cache with its written records poisoned again: nothing else may differ from an untouched one.
inline std::vector<std::uint8_t> without_records(const OwnedCache& owned) {
  std::vector<std::uint8_t> bytes = owned.bytes;
  PagedCache cache = owned.cache;
  cache.base = bytes.data();
  for (std::int64_t slot = 0; slot < cache.num_slots(); ++slot) {
    if (!written(cache, slot)) continue;
    std::memset(row_data(cache, slot / cache.block_size, slot % cache.block_size), kPoison,
                static_cast<std::size_t>(cache.format->data_bytes));
    std::memset(row_scales(cache, slot / cache.block_size, slot % cache.block_size), kPoison,
                static_cast<std::size_t>(cache.format->scale_bytes));
  }
  return bytes;
}

}  // namespace smla::compressor_cases
