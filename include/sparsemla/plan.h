#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sparsemla/export.h"

namespace SMLA_API smla {

/// How a batch, ordered decodes first, falls into its two parts (spec 6).
struct BatchSplit {
  std::int64_t decodes = 0;         ///< requests
  std::int64_t prefills = 0;        ///< requests
  std::int64_t decode_tokens = 0;   ///< tokens of those requests
  std::int64_t prefill_tokens = 0;  ///< tokens of those requests
  friend bool operator==(const BatchSplit&, const BatchSplit&) = default;
};

/// Splits a batch. Requests with at most `threshold` query tokens at its head are decodes (zero-length padding requests
/// too); the first longer one starts the prefills. `require_uniform`: decodes must also have equal lengths (or 0).
/// @param query_start_loc [requests+1], ascending. @throws InvalidArgument when it descends.
BatchSplit split_batch(std::span<const std::int32_t> query_start_loc, std::int64_t threshold,
                       bool require_uniform = false);

/// Entries of `ratio` tokens that a query at `position` may see: (position + 1) / ratio (spec 2).
constexpr std::int64_t visible_entries(std::int64_t position, std::int64_t ratio) { return (position + 1) / ratio; }

/// Columns of the C128A index matrix: cdiv(max_model_len, 128) rounded up to 128 (spec 6.5).
std::int64_t dense_width(std::int64_t max_model_len, std::int64_t ratio = 128);

/// Columns of a block table: blocks for max_model_len tokens, rounded up to a multiple of 128 / gcd(128, block_tokens)
/// (spec 5.4).
std::int64_t block_table_width(std::int64_t max_model_len, std::int64_t block_tokens);

/// Requests [begin, end) of a batch's prefills whose rows are gathered into one workspace [end - begin, m, 512]
/// (spec 6.8).
struct PrefillChunk {
  std::int64_t begin = 0;  ///< first request
  std::int64_t end = 0;    ///< one past the last request
  std::int64_t n = 0;  ///< compressed rows of a request: the chunk's maximum of seq / ratio, 0 for window-only layers
  std::int64_t m = 0;  ///< rows of a request: n plus the chunk's maximum of gather_length
  friend bool operator==(const PrefillChunk&, const PrefillChunk&) = default;
};

/// Window rows that a prefill gathers: query_len + min(seq_len - query_len, window - 1) (spec 6.4).
std::int64_t gather_length(std::int64_t seq_len, std::int64_t query_len, std::int64_t window = 128);

/// The limits of a chunk: count * (max n + max gather) <= requests * (entries of max_model_len + window +
/// max_batched_tokens).
struct ChunkLimits {
  std::int64_t requests = 4;            ///< the constant C of spec 6.8
  std::int64_t window = 128;            ///< tokens that a query sees, itself included
  std::int64_t max_model_len = 0;       ///< longest sequence
  std::int64_t max_batched_tokens = 0;  ///< tokens of a step
};

/// Puts prefills into chunks greedily, in order. A request that alone exceeds the limit gets a chunk of its own. ratio
/// 1: window-only.
/// @throws InvalidArgument when the lists differ in length or a query is longer than its sequence.
std::vector<PrefillChunk> plan_prefill_chunks(std::span<const std::int32_t> seq_lens,
                                              std::span<const std::int32_t> query_lens, std::int64_t ratio,
                                              const ChunkLimits& limits);

/// Rows of a score matrix that fit `budget_bytes` at `width` fp32 columns, at least 1 (spec 4.8).
std::int64_t score_rows(std::int64_t width, std::int64_t budget_bytes);

/// Queries [query_begin, query_end) of a batch's prefill tokens whose scores are computed at once, over the entries of
/// requests [begin, end) (spec 4.8).
struct LogitChunk {
  std::int64_t begin = 0;        ///< first request
  std::int64_t end = 0;          ///< one past the last request
  std::int64_t query_begin = 0;  ///< first query
  std::int64_t query_end = 0;    ///< one past the last query
  std::int64_t entries =
      0;  ///< columns: entries of its requests together, and rows of the buffer that their keys are gathered into
  bool gather = true;  ///< false: the keys of the chunk before, a piece of the same request, are still there
  friend bool operator==(const LogitChunk&, const LogitChunk&) = default;
};

/// What bounds a chunk.
struct LogitLimits {
  std::int64_t key_rows = 0;                                   ///< rows that the buffer of gathered keys really has
  std::int64_t logit_bytes = std::int64_t{512} * 1024 * 1024;  ///< of the fp32 score matrix
};

/// Greedy chunks over prefills, in order: as many requests as fit both limits. A request whose scores alone exceed
/// logit_bytes is cut along its queries, one query at least; the later pieces do not gather again. Requests without an
/// entry or a query make no chunk of their own. For hosts that score prefills from gathered index rows
/// (GatherIndexRows, RaggedIndexerLogits); layers score rows where they lie and cut the matrix by score_rows.
/// @throws InvalidArgument when the lists differ in length, a query is longer than its sequence, or a request has more
/// entries than key_rows.
std::vector<LogitChunk> plan_logit_chunks(std::span<const std::int32_t> seq_lens,
                                          std::span<const std::int32_t> query_lens, std::int64_t ratio,
                                          const LogitLimits& limits);

/// Entries of a sequence of `length` that rank `rank` of `ranks` owns when they are dealt in runs of `interleave` (spec
/// 9). For hosts that share a sequence out to ranks and merge their results with MergePartials; layers do not.
/// @throws InvalidArgument for a rank outside the ranks or sizes below 1.
std::int64_t local_length(std::int64_t length, std::int64_t rank, std::int64_t ranks, std::int64_t interleave);

/// Columns of a window row of a DSpark draft block of `draft_tokens`, whose tokens see each other: window + drafts
/// rounded up to 64; the window alone without drafts (spec 6.3).
std::int64_t draft_window_width(std::int64_t window, std::int64_t draft_tokens);

}  // namespace smla
