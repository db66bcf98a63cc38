#include <algorithm>
#include <string>

#include "sparsemla/error.h"
#include "sparsemla/plan.h"

namespace smla {

namespace {

void check_request(std::size_t i, std::int64_t seq_len, std::int64_t query_len, std::int64_t entries,
                   std::int64_t key_rows) {
  const std::string row = "row " + std::to_string(i) + ": got ";
  if (query_len < 0 || query_len > seq_len) {
    throw InvalidArgument("logit chunks: query_lens: " + row + std::to_string(query_len) + ", expected 0 to " +
                          std::to_string(seq_len) + ", its sequence");
  }
  if (entries > key_rows) {
    throw InvalidArgument("logit chunks: seq_lens: " + row + std::to_string(entries) + " entries, expected at most " +
                          std::to_string(key_rows) + ", the rows for gathered keys");
  }
}

}  // namespace

std::vector<LogitChunk> plan_logit_chunks(std::span<const std::int32_t> seq_lens,
                                          std::span<const std::int32_t> query_lens, std::int64_t ratio,
                                          const LogitLimits& limits) {
  if (seq_lens.size() != query_lens.size()) {
    throw InvalidArgument("logit chunks: query_lens: got " + std::to_string(query_lens.size()) + ", expected " +
                          std::to_string(seq_lens.size()) + " as in seq_lens");
  }
  if (ratio < 1) throw InvalidArgument("logit chunks: ratio: got " + std::to_string(ratio) + ", expected 1 or more");
  const std::int64_t budget = std::max<std::int64_t>(limits.logit_bytes / 4, 0);  // scores
  std::vector<LogitChunk> chunks;
  LogitChunk open;
  const auto close = [&] {
    if (open.entries > 0 && open.query_end > open.query_begin) chunks.push_back(open);
    open = {.begin = open.end, .end = open.end, .query_begin = open.query_end, .query_end = open.query_end};
  };
  for (std::size_t i = 0; i < seq_lens.size(); ++i) {
    const std::int64_t queries = query_lens[i];
    const std::int64_t entries = seq_lens[i] / ratio;
    check_request(i, seq_lens[i], queries, entries, limits.key_rows);
    const auto fits = [&] {
      const std::int64_t columns = open.entries + entries;
      const std::int64_t rows = open.query_end - open.query_begin + queries;
      return columns <= limits.key_rows && (columns == 0 || rows <= budget / columns);
    };
    if (!fits()) close();
    if (fits()) {
      ++open.end;
      open.query_end += queries;
      open.entries += entries;
      continue;
    }
    // Alone and still too large: pieces of as many queries as the budget has room for.
    const std::int64_t piece = std::max<std::int64_t>(budget / entries, 1);
    const std::int64_t last = open.query_begin + queries;
    ++open.end;
    open.entries = entries;
    for (bool gather = true; open.query_begin < last; gather = false) {
      open.query_end = std::min(open.query_begin + piece, last);
      open.gather = gather;
      chunks.push_back(open);
      open.query_begin = open.query_end;
    }
    open = {.begin = open.end, .end = open.end, .query_begin = last, .query_end = last};
  }
  close();
  return chunks;
}

}  // namespace smla
