// Index matrices over window and compressed rows together (spec 7.2, 7.3).
#include <algorithm>
#include <limits>

#include "ops/index/block_lookup.h"
#include "ops/index/implementations.h"
#include "ops/index/visible.h"

namespace smla {

namespace {

std::int32_t* row_of(const TensorView& rows, std::int64_t t) { return rows.as<std::int32_t>() + t * rows.stride[0]; }
const std::int32_t* row_of(const ConstTensorView& rows, std::int64_t t) {
  return rows.as<std::int32_t>() + t * rows.stride[0];
}

/// -1 for what an index row cannot hold.
std::int32_t as_index(std::int64_t v) {
  return v < 0 || v > std::numeric_limits<std::int32_t>::max() ? -1 : static_cast<std::int32_t>(v);
}

/// Slots as a kernel with a flat token axis counts them: `span` tokens from a block to the next.
class Remap {
 public:
  Remap(std::int64_t block, std::int64_t span) : block_(block), span_(span == 0 ? block : span) {}
  std::int32_t operator()(std::int64_t slot) const {
    // Both factors stay below 2^31 for every slot of an int32 row; larger ones cannot be held anyway.
    if (slot < 0 || slot / block_ > std::numeric_limits<std::int32_t>::max()) return -1;
    return as_index(slot / block_ * span_ + slot % block_);
  }

 private:
  std::int64_t block_;
  std::int64_t span_;
};

}  // namespace

void combine_topk_window_ref(const CombineTopkWindow::Problem& problem, const CombineTopkWindow::Args& args,
                             const RunContext& /*context*/) {
  const std::int32_t* start = args.query_start_loc.as<std::int32_t>();
  const std::int32_t* seq_lens = args.seq_lens.as<std::int32_t>();
  const std::int32_t* gather_lens = args.gather_lens.as<std::int32_t>();
  std::int32_t* lens = args.lens.as<std::int32_t>();
  std::fill_n(lens, problem.tokens, 0);
  for (std::int64_t t = 0; problem.clear_rest && t < problem.tokens; ++t) {
    std::fill_n(row_of(args.indices, t), args.indices.size(1), -1);
  }
  for (std::int64_t b = 0; b < problem.requests; ++b) {
    const std::int64_t seq = seq_lens[b];
    const std::int64_t end = static_cast<std::int64_t>(start[b + 1]) - start[0];
    const std::int64_t begin = std::max<std::int64_t>(static_cast<std::int64_t>(start[b]) - start[0], 0);
    for (std::int64_t t = begin; t < std::min(end, problem.tokens); ++t) {
      const std::int64_t pos = seq - end + t;  // seq - qlen + (t - begin)
      if (pos < 0) continue;
      std::int32_t* row = row_of(args.indices, t);
      const std::int64_t entries = visible_entries(pos, problem.ratio, problem.top_k);
      for (std::int64_t j = 0; j < entries; ++j) {
        const std::int64_t local = row_of(args.topk, t)[j];
        row[j] = local < 0 ? -1 : as_index(local + problem.m * b);
      }
      const std::int64_t seen = std::min(pos + 1, problem.window);
      const std::int64_t first = problem.m * b + problem.n + (pos - seen + 1) - (seq - gather_lens[b]);
      for (std::int64_t i = 0; i < seen; ++i) row[entries + i] = as_index(first + i);
      lens[t] = static_cast<std::int32_t>(entries + seen);
    }
  }
}

void mixed_sparse_indices_ref(const MixedSparseIndices::Problem& problem, const MixedSparseIndices::Args& args,
                              const RunContext& /*context*/) {
  const BlockLookup window_blocks(args.window_table, problem.window_block);
  const BlockLookup compressed_blocks(args.compressed_table, problem.compressed_block);
  const Remap window_slot(problem.window_block, problem.window_span);
  const Remap compressed_slot(problem.compressed_block, problem.compressed_span);
  const std::int32_t* start = args.query_start_loc.as<std::int32_t>();
  const std::int32_t* seq_lens = args.seq_lens.as<std::int32_t>();
  const std::int32_t* request = args.token_to_req.as<std::int32_t>();
  std::int32_t* lens = args.lens.as<std::int32_t>();
  const std::int64_t decode_width =
      args.decode_compressed.absent() ? 0 : std::min(args.decode_compressed.size(1), problem.compressed_width);
  for (std::int64_t t = 0; t < problem.tokens; ++t) {
    std::int32_t* row = row_of(args.indices, t);
    std::int32_t* entries = row + problem.window_width;
    std::fill_n(row, problem.window_width + problem.compressed_width, -1);
    const std::int64_t r = request[t];
    if (t < problem.decode_tokens) {
      for (std::int64_t i = 0; i < problem.window_width; ++i) row[i] = window_slot(row_of(args.decode_window, t)[i]);
      std::int64_t count = 0;
      for (std::int64_t j = 0; j < decode_width; ++j) {
        const std::int32_t v = row_of(args.decode_compressed, t)[j];
        count += v >= 0 ? 1 : 0;
        entries[j] = compressed_slot(problem.local ? compressed_blocks.slot(r, v) : v);
      }
      if (problem.local) {
        count = decode_width > 0 && args.decode_valid.as<bool>()[t] ? count : 0;
      } else {
        count = args.decode_lens.absent()
                    ? decode_width
                    : std::clamp<std::int64_t>(args.decode_lens.as<std::int32_t>()[t], 0, decode_width);
      }
      lens[t] = static_cast<std::int32_t>(problem.window_width + count);
      continue;
    }
    lens[t] = 0;
    if (r < 0 || r >= problem.requests || t < start[r] || t >= start[r + 1]) continue;
    const std::int64_t pos = static_cast<std::int64_t>(seq_lens[r]) - start[r + 1] + t;
    if (pos < 0) continue;
    const std::int64_t seen = std::min(pos + 1, problem.window);
    for (std::int64_t i = 0; i < seen; ++i) row[i] = window_slot(window_blocks.slot(r, pos - seen + 1 + i));
    const std::int64_t visible = visible_entries(pos, problem.ratio, problem.top_k);
    for (std::int64_t j = 0; j < visible; ++j) {
      entries[j] = compressed_slot(compressed_blocks.slot(r, row_of(args.prefill_topk, t - problem.decode_tokens)[j]));
    }
    lens[t] = static_cast<std::int32_t>(problem.window_width + visible);
  }
}

}  // namespace smla
