// Index rows of sparse attention (spec 6.3, 6.5, 7.1, 4.7).
#include <algorithm>

#include "ops/index/block_lookup.h"
#include "ops/index/implementations.h"
#include "ops/index/visible.h"

namespace smla {

namespace {

std::int32_t* row_of(const TensorView& rows, std::int64_t t) { return rows.as<std::int32_t>() + t * rows.stride[0]; }

}  // namespace

void window_indices_ref(const WindowIndices::Problem& problem, const WindowIndices::Args& args,
                        const RunContext& /*context*/) {
  const BlockLookup blocks(args.block_table, problem.block_size);
  const std::int32_t* start_loc = args.query_start_loc.as<std::int32_t>();
  const std::int32_t* seq_lens = args.seq_lens.as<std::int32_t>();
  const std::int32_t* request = args.token_to_req.as<std::int32_t>();
  const std::int64_t* slots = args.slot_mapping.as<std::int64_t>();
  std::int32_t* lens = args.lens.as<std::int32_t>();
  const std::int64_t width = args.indices.size(1);
  for (std::int64_t t = 0; t < problem.tokens; ++t) {
    std::int32_t* row = row_of(args.indices, t);
    const std::int64_t r = request[t];
    std::int64_t pos = -1;
    if (slots[t] >= 0 && r >= 0 && r < problem.requests)
      pos = static_cast<std::int64_t>(seq_lens[r]) - start_loc[r + 1] + t;
    std::int64_t first = std::max<std::int64_t>(pos - problem.window + 1, 0);
    std::int64_t n = pos < 0 ? 0 : pos + 1 - first;
    if (pos >= 0 && t < problem.noncausal_tokens) {
      const std::int64_t prefix = static_cast<std::int64_t>(seq_lens[r]) - start_loc[r + 1] + start_loc[r];
      first = std::max<std::int64_t>(prefix - problem.window, 0);
      n = std::clamp<std::int64_t>(seq_lens[r] - first, 0, width);
    }
    for (std::int64_t i = 0; i < n; ++i) row[i] = blocks.index(r, first + i);
    std::fill(row + n, row + width, -1);
    lens[t] = static_cast<std::int32_t>(n);
  }
}

void dense_compressed_indices_ref(const DenseCompressedIndices::Problem& problem,
                                  const DenseCompressedIndices::Args& args, const RunContext& /*context*/) {
  const BlockLookup blocks(args.block_table, problem.storage_block);
  const std::int64_t* positions = args.positions.as<std::int64_t>();
  const std::int32_t* request = args.token_to_req.as<std::int32_t>();
  const std::int64_t* slots = args.slot_mapping.as<std::int64_t>();
  std::int32_t* lens = args.lens.as<std::int32_t>();
  for (std::int64_t t = 0; t < problem.tokens; ++t) {
    std::int32_t* row = row_of(args.indices, t);
    const std::int64_t seen = slots[t] < 0 ? 0 : visible_entries(positions[t], problem.ratio, INT64_MAX);
    const std::int64_t n = std::min(problem.share.count(seen), problem.width);
    for (std::int64_t j = 0; j < n; ++j)
      row[j] = problem.global ? blocks.index(request[t], j) : static_cast<std::int32_t>(j);
    std::fill(row + n, row + problem.width, -1);
    lens[t] = static_cast<std::int32_t>(n);
  }
}

void global_topk_ref(const GlobalTopk::Problem& problem, const GlobalTopk::Args& args, const RunContext& /*context*/) {
  const BlockLookup blocks(args.block_table, problem.storage_block);
  const std::int32_t* topk = args.topk.as<std::int32_t>();
  const std::int32_t* request = args.token_to_req.as<std::int32_t>();
  const bool* valid = args.valid.as<bool>();
  std::int32_t* lens = args.lens.as<std::int32_t>();
  for (std::int64_t t = 0; t < problem.tokens; ++t) {
    const std::int32_t* local = topk + t * args.topk.stride[0];
    std::int32_t* row = row_of(args.indices, t);
    std::int32_t survivors = 0;
    for (std::int64_t j = 0; j < problem.k; ++j) {
      const std::int32_t index = blocks.index(request[t], local[j]);
      if (!problem.compact) row[j] = index;
      if (index < 0) continue;
      if (problem.compact) row[survivors] = index;  // survivors <= j: may share memory with `local`
      ++survivors;
    }
    if (problem.compact) std::fill(row + survivors, row + problem.k, -1);
    lens[t] = valid[t] ? survivors : 0;
  }
}

void short_context_topk_ref(const ShortContextTopk::Problem& problem, const ShortContextTopk::Args& args,
                            const RunContext& /*context*/) {
  const std::int64_t* positions = args.positions.as<std::int64_t>();
  for (std::int64_t t = 0; t < problem.tokens; ++t) {
    std::int32_t* row = row_of(args.indices, t);
    const std::int64_t n = visible_entries(positions[t], problem.ratio, problem.k);
    for (std::int64_t j = 0; j < n; ++j) row[j] = static_cast<std::int32_t>(j);
    std::fill(row + n, row + problem.k, -1);
  }
}

}  // namespace smla
