// The numbers inside tensors that validate reads, op by op.
#include <algorithm>
#include <limits>

#include "ops/validate_op.h"
#include "sparsemla/ops/index.h"

namespace smla {

namespace {

/// Entries of `ratio` tokens that a query at pos sees, at most `most`; 0 for a negative position.
std::int64_t entries_at(std::int64_t pos, std::int64_t ratio, std::int64_t most) {
  if (pos < 0) return 0;
  return pos / ratio >= most ? most : std::min((pos + 1) / ratio, most);
}

/// A batch as the builders of indices see it: checks starts and sequences, then knows each token's position.
class BatchNumbers {
 public:
  BatchNumbers(std::string_view op, const ConstTensorView& start, const ConstTensorView& seq, std::int64_t requests,
               std::int64_t tokens, bool from_zero = true)
      : start_(op, "query_start_loc", start), seq_(op, "seq_lens", seq) {
    check_starts(op, start_, requests, tokens, from_zero);
    for (std::int64_t r = 0; r < requests; ++r) {
      const std::int64_t query = start_(r + 1) - start_(r);
      if (seq_(r) < query) seq_.bad(r, kNoColumn, "at least its query of " + std::to_string(query));
    }
  }
  std::int64_t begin(std::int64_t r) const { return start_(r) - start_(0); }
  std::int64_t end(std::int64_t r) const { return start_(r + 1) - start_(0); }
  std::int64_t seq(std::int64_t r) const { return seq_(r); }
  std::int64_t position(std::int64_t r, std::int64_t t) const { return seq_(r) - end(r) + t; }
  bool holds(std::int64_t r, std::int64_t t) const { return begin(r) <= t && t < end(r); }

 private:
  Numbers start_;
  Numbers seq_;
};

std::string position_of(std::int64_t pos, std::int64_t t) {
  return "position " + std::to_string(pos) + " of token " + std::to_string(t);
}
std::string entry_of(std::int64_t j, std::int64_t t) {
  return "entry " + std::to_string(j) + " of row " + std::to_string(t);
}

/// The request of token t, which must hold it.
std::int64_t request_of(const Numbers& token_to_req, const BatchNumbers& batch, std::int64_t requests, std::int64_t t) {
  const std::int64_t r = token_to_req.in(0, requests - 1, t);
  if (!batch.holds(r, t)) token_to_req.bad(t, kNoColumn, "the request that query_start_loc gives the token to");
  return r;
}

}  // namespace

// Starts.
template <>
void validate<TokenToReq>(const TokenToReq::Problem& problem, const TokenToReq::Args& args) {
  check_shapes<TokenToReq>(problem, args);
  check_starts(TokenToReq::kName, Numbers(TokenToReq::kName, "query_start_loc", args.query_start_loc), problem.requests,
               problem.tokens);
}

// Starts, and for tokens that are no padding their request, position and block.
template <>
void validate<SlotMapping>(const SlotMapping::Problem& problem, const SlotMapping::Args& args) {
  constexpr std::string_view op = SlotMapping::kName;
  check_shapes<SlotMapping>(problem, args);
  const Numbers start(op, "query_start_loc", args.query_start_loc);
  check_starts(op, start, problem.requests, problem.tokens);
  const Numbers positions(op, "positions", args.positions);
  const Numbers requests(op, "token_to_req", args.token_to_req);
  const TableNumbers table(op, "block_table", args.block_table, problem.block_size);
  for (std::int64_t t = 0; t < start(problem.requests); ++t) {
    const std::int64_t pos = positions.in(0, std::numeric_limits<std::int64_t>::max() - 1, t);
    table.check(requests.in(0, problem.requests - 1, t), pos, pos + 1, position_of(pos, t));
  }
}

// Starts, sequences and the blocks of the entries that are closed.
template <>
void validate<CompressedSlotMapping>(const CompressedSlotMapping::Problem& problem,
                                     const CompressedSlotMapping::Args& args) {
  constexpr std::string_view op = CompressedSlotMapping::kName;
  check_shapes<CompressedSlotMapping>(problem, args);
  const BatchNumbers batch(op, args.query_start_loc, args.seq_lens, problem.requests, problem.tokens);
  const TableNumbers table(op, "block_table", args.block_table, problem.storage_block);
  for (std::int64_t r = 0; r < problem.requests; ++r) {
    for (std::int64_t t = batch.begin(r); t < batch.end(r); ++t) {
      const std::int64_t pos = batch.position(r, t);
      if ((pos + 1) % problem.ratio == 0)
        table.check(r, pos / problem.ratio, pos / problem.ratio + 1, entry_of(pos / problem.ratio, t));
    }
  }
}

// Starts, sequences, and for valid tokens their request and the blocks of the window.
template <>
void validate<WindowIndices>(const WindowIndices::Problem& problem, const WindowIndices::Args& args) {
  constexpr std::string_view op = WindowIndices::kName;
  check_shapes<WindowIndices>(problem, args);
  const BatchNumbers batch(op, args.query_start_loc, args.seq_lens, problem.requests, problem.tokens);
  const Numbers requests(op, "token_to_req", args.token_to_req);
  const Numbers slots(op, "slot_mapping", args.slot_mapping);
  const TableNumbers table(op, "block_table", args.block_table, problem.block_size);
  for (std::int64_t t = 0; t < problem.tokens; ++t) {
    if (slots.in(-1, std::numeric_limits<std::int64_t>::max(), t) < 0) continue;
    const std::int64_t r = request_of(requests, batch, problem.requests, t);
    if (t < problem.noncausal_tokens) {
      table.check(r, std::max<std::int64_t>(batch.position(r, batch.begin(r)) - problem.window, 0), batch.seq(r),
                  "the draft block of token " + std::to_string(t));
      continue;
    }
    const std::int64_t pos = batch.position(r, t);
    table.check(r, std::max<std::int64_t>(pos - problem.window + 1, 0), pos + 1,
                "the window of token " + std::to_string(t));
  }
}

// For valid tokens position, request and the blocks of the entries.
template <>
void validate<DenseCompressedIndices>(const DenseCompressedIndices::Problem& problem,
                                      const DenseCompressedIndices::Args& args) {
  constexpr std::string_view op = DenseCompressedIndices::kName;
  check_shapes<DenseCompressedIndices>(problem, args);
  const Numbers positions(op, "positions", args.positions);
  const Numbers requests(op, "token_to_req", args.token_to_req);
  const Numbers slots(op, "slot_mapping", args.slot_mapping);
  const TableNumbers table(op, "block_table", args.block_table, problem.storage_block);
  for (std::int64_t t = 0; t < problem.tokens; ++t) {
    if (slots.in(-1, std::numeric_limits<std::int64_t>::max(), t) < 0) continue;
    const std::int64_t n =
        entries_at(positions.in(0, std::numeric_limits<std::int64_t>::max() - 1, t), problem.ratio, problem.width);
    if (problem.global)
      table.check(requests.in(0, problem.requests - 1, t), 0, n,
                  "the " + std::to_string(n) + " entries of token " + std::to_string(t));
  }
}

// For valid tokens request, entries and their blocks.
template <>
void validate<GlobalTopk>(const GlobalTopk::Problem& problem, const GlobalTopk::Args& args) {
  constexpr std::string_view op = GlobalTopk::kName;
  check_shapes<GlobalTopk>(problem, args);
  const Numbers topk(op, "topk", args.topk);
  const Numbers requests(op, "token_to_req", args.token_to_req);
  const TableNumbers table(op, "block_table", args.block_table, problem.storage_block);
  for (std::int64_t t = 0; t < problem.tokens; ++t) {
    if (!args.valid.as<bool>()[t]) continue;
    const std::int64_t r = requests.in(0, problem.requests - 1, t);
    for (std::int64_t j = 0; j < problem.k; ++j) {
      const std::int64_t v = topk.index(std::int64_t{INT32_MAX} + 1, t, j);
      if (v >= 0) table.check(r, v, v + 1, entry_of(v, t));
    }
  }
}

// Shapes alone: any position has its row.
template <>
void validate<ShortContextTopk>(const ShortContextTopk::Problem& problem, const ShortContextTopk::Args& args) {
  check_shapes<ShortContextTopk>(problem, args);
}

// Shapes alone: every number has a meaning.
template <>
void validate<VisibleEntries>(const VisibleEntries::Problem& problem, const VisibleEntries::Args& args) {
  check_shapes<VisibleEntries>(problem, args);
}

// Starts, and sequences of at least their tokens.
template <>
void validate<PrefillLens>(const PrefillLens::Problem& problem, const PrefillLens::Args& args) {
  constexpr std::string_view op = PrefillLens::kName;
  check_shapes<PrefillLens>(problem, args);
  const Numbers start(op, "query_start_loc", args.query_start_loc);
  const Numbers seq(op, "seq_lens", args.seq_lens);
  for (std::int64_t r = problem.decodes; r < problem.requests; ++r) {
    start.in(start(r), INT32_MAX, r + 1);
    seq.in(start(r + 1) - start(r), INT32_MAX, r);
  }
}

// Shapes alone.
template <>
void validate<DraftPositions>(const DraftPositions::Problem& problem, const DraftPositions::Args& args) {
  check_shapes<DraftPositions>(problem, args);
}

// Starts, sequences, entries, and that the window was gathered and has room.
template <>
void validate<CombineTopkWindow>(const CombineTopkWindow::Problem& problem, const CombineTopkWindow::Args& args) {
  constexpr std::string_view op = CombineTopkWindow::kName;
  check_shapes<CombineTopkWindow>(problem, args);
  const BatchNumbers batch(op, args.query_start_loc, args.seq_lens, problem.requests, problem.tokens, false);
  const Numbers gather(op, "gather_lens", args.gather_lens);
  const Numbers topk(op, "topk", args.topk);
  for (std::int64_t r = 0; r < problem.requests; ++r) {
    if (batch.begin(r) == batch.end(r)) continue;
    // The first token's window must have been gathered, and all of it must have its place behind the entries.
    const std::int64_t first = std::max<std::int64_t>(batch.position(r, batch.begin(r)) - problem.window + 1, 0);
    gather.in(batch.seq(r) - first, problem.m - problem.n, r);
    for (std::int64_t t = batch.begin(r); t < batch.end(r); ++t) {
      const std::int64_t n = entries_at(batch.position(r, t), problem.ratio, problem.top_k);
      for (std::int64_t j = 0; j < n; ++j) topk.index(problem.n, t, j);
    }
  }
}

// Starts, sequences, lists, requests and blocks.
template <>
void validate<MixedSparseIndices>(const MixedSparseIndices::Problem& problem, const MixedSparseIndices::Args& args) {
  constexpr std::string_view op = MixedSparseIndices::kName;
  constexpr std::int64_t kAnySlot = std::int64_t{INT32_MAX} + 1;
  check_shapes<MixedSparseIndices>(problem, args);
  const BatchNumbers batch(op, args.query_start_loc, args.seq_lens, problem.requests, problem.tokens);
  const Numbers requests(op, "token_to_req", args.token_to_req);
  const TableNumbers windows(op, "window_table", args.window_table, problem.window_block);
  const TableNumbers compressed(op, "compressed_table", args.compressed_table, problem.compressed_block);
  const Numbers decode_window(op, "decode_window", args.decode_window);
  const Numbers decode_compressed(op, "decode_compressed", args.decode_compressed);
  const Numbers decode_lens(op, "decode_lens", args.decode_lens);
  const std::int64_t width =
      decode_compressed.absent() ? 0 : std::min(decode_compressed.columns(), problem.compressed_width);
  for (std::int64_t t = 0; t < problem.decode_tokens; ++t) {
    for (std::int64_t c = 0; c < problem.window_width; ++c) decode_window.index(kAnySlot, t, c);
    const bool look_up = problem.local && width > 0 && args.decode_valid.as<bool>()[t];
    const std::int64_t n = problem.local || decode_lens.absent() ? width : decode_lens.in(0, width, t);
    for (std::int64_t j = 0; j < n; ++j) {
      const std::int64_t v = decode_compressed.index(kAnySlot, t, j);
      if (look_up && v >= 0) compressed.check(requests.in(0, problem.requests - 1, t), v, v + 1, entry_of(v, t));
    }
  }
  const Numbers topk(op, "prefill_topk", args.prefill_topk);
  for (std::int64_t r = 0; r < problem.requests; ++r) {
    for (std::int64_t t = std::max(batch.begin(r), problem.decode_tokens); t < batch.end(r); ++t) {
      request_of(requests, batch, problem.requests, t);
      const std::int64_t pos = batch.position(r, t);
      windows.check(r, std::max<std::int64_t>(pos - problem.window + 1, 0), pos + 1,
                    "the window of token " + std::to_string(t));
      const std::int64_t n = entries_at(pos, problem.ratio, problem.top_k);
      for (std::int64_t j = 0; j < n; ++j) {
        const std::int64_t v = topk.index(kAnySlot, t - problem.decode_tokens, j);
        if (v >= 0) compressed.check(r, v, v + 1, entry_of(v, t));
      }
    }
  }
}

}  // namespace smla
