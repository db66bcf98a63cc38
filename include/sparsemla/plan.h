#pragma once

#include <cstdint>
#include <span>

namespace smla {

/// How a batch, ordered decodes first, falls into its two parts (spec 6).
struct BatchSplit {
  std::int64_t decodes = 0;
  std::int64_t prefills = 0;
  std::int64_t decode_tokens = 0;
  std::int64_t prefill_tokens = 0;
  friend bool operator==(const BatchSplit&, const BatchSplit&) = default;
};

/// Requests with at most `threshold` query tokens at the head of the batch are decodes (zero-length padding requests too); the first longer one
/// starts the prefills. `require_uniform`: decodes must also have equal lengths (or 0).
/// @param query_start_loc [requests+1], ascending. @throws InvalidArgument when it descends.
BatchSplit split_batch(std::span<const std::int32_t> query_start_loc, std::int64_t threshold, bool require_uniform = false);

/// Entries of `ratio` tokens that a query at `position` may see: (position + 1) / ratio (spec 2).
constexpr std::int64_t visible_entries(std::int64_t position, std::int64_t ratio) { return (position + 1) / ratio; }

/// Columns of the C128A index matrix: cdiv(max_model_len, 128) rounded up to 128 (spec 6.5).
std::int64_t dense_width(std::int64_t max_model_len, std::int64_t ratio = 128);

/// Columns of a block table: blocks for max_model_len tokens, rounded up to a multiple of 128 / gcd(128, block_tokens) (spec 5.4).
std::int64_t block_table_width(std::int64_t max_model_len, std::int64_t block_tokens);

}  // namespace smla
