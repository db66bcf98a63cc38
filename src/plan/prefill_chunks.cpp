#include <algorithm>
#include <string>

#include "sparsemla/entry_share.h"
#include "sparsemla/error.h"
#include "sparsemla/plan.h"

namespace smla {

std::int64_t gather_length(std::int64_t seq_len, std::int64_t query_len, std::int64_t window) {
  return query_len + std::min(seq_len - query_len, window - 1);
}

std::vector<PrefillChunk> plan_prefill_chunks(std::span<const std::int32_t> seq_lens,
                                              std::span<const std::int32_t> query_lens, std::int64_t ratio,
                                              const ChunkLimits& limits) {
  if (seq_lens.size() != query_lens.size()) {
    throw InvalidArgument("prefill chunks: query_lens: got " + std::to_string(query_lens.size()) + ", expected " +
                          std::to_string(seq_lens.size()) + " as in seq_lens");
  }
  const std::int64_t entries = ratio > 1 ? (limits.max_model_len + ratio - 1) / ratio : 0;
  const std::int64_t area = limits.requests * (entries + limits.window + limits.max_batched_tokens);
  std::vector<PrefillChunk> chunks;
  PrefillChunk open;
  std::int64_t gather = 0;
  for (std::size_t i = 0; i < seq_lens.size(); ++i) {
    if (query_lens[i] < 0 || query_lens[i] > seq_lens[i]) {
      throw InvalidArgument("prefill chunks: query_lens: row " + std::to_string(i) + ": got " +
                            std::to_string(query_lens[i]) + ", expected 0 to " + std::to_string(seq_lens[i]) +
                            ", its sequence");
    }
    const std::int64_t compressed = ratio > 1 ? seq_lens[i] / ratio : 0;
    const std::int64_t n = std::max(open.n, compressed);
    const std::int64_t g = std::max(gather, gather_length(seq_lens[i], query_lens[i], limits.window));
    if (open.end > open.begin && (open.end - open.begin + 1) * (n + g) > area) {
      open.m = open.n + gather;
      chunks.push_back(open);
      open = {.begin = open.end, .end = open.end, .n = 0, .m = 0};
      gather = 0;
    }
    ++open.end;
    open.n = std::max(open.n, compressed);
    gather = std::max(gather, gather_length(seq_lens[i], query_lens[i], limits.window));
  }
  if (open.end > open.begin) {
    open.m = open.n + gather;
    chunks.push_back(open);
  }
  return chunks;
}

std::int64_t score_rows(std::int64_t width, std::int64_t budget_bytes) {
  return std::max<std::int64_t>(1, budget_bytes / (4 * std::max<std::int64_t>(width, 1)));
}

std::int64_t local_length(std::int64_t length, std::int64_t rank, std::int64_t ranks, std::int64_t interleave) {
  if (ranks < 1 || rank < 0 || rank >= ranks || interleave < 1 || length < 0) {
    throw InvalidArgument("local length: got length " + std::to_string(length) + ", rank " + std::to_string(rank) +
                          " of " + std::to_string(ranks) + ", interleave " + std::to_string(interleave) +
                          ", expected length >= 0, 0 <= rank < ranks and interleave >= 1");
  }
  return EntryShare{.rank = rank, .ranks = ranks, .interleave = interleave}.count(length);
}

std::int64_t draft_window_width(std::int64_t window, std::int64_t draft_tokens) {
  return draft_tokens == 0 ? window : (window + draft_tokens + 63) / 64 * 64;
}

}  // namespace smla
