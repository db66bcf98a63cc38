// What validate reads of each op's tensors, in the order of sparsemla/ops/validate.h. Over 300 lines: one short
// function an op.
#include "sparsemla/ops/validate.h"

#include <algorithm>
#include <cmath>

#include "ops/compressor/implementations.h"
#include "ops/numbers.h"
#include "ops/registry.h"
#include "ops/staging.h"

namespace smla {

namespace {

/// Entries of `ratio` tokens that a query at pos sees, at most `most`; 0 for a negative position.
std::int64_t entries_at(std::int64_t pos, std::int64_t ratio, std::int64_t most) {
  if (pos < 0) return 0;
  return pos / ratio >= most ? most : std::min((pos + 1) / ratio, most);
}

template <class Op>
void check_shapes(const typename Op::Problem& problem, const typename Op::Args& args) {
  OpTable<Op>::check_problem(problem);
  OpTable<Op>::check_args(problem, args);
}

void check_sink(std::string_view op, const ConstTensorView& sink, std::int64_t heads) {
  for (std::int64_t h = 0; !sink.absent() && h < heads; ++h) {
    if (std::isnan(sink.as<float>()[h * sink.stride[0]]))
      bad_number(op, "sink", h, kNoColumn, "nan", "a number or an infinity");
  }
}

/// Positions of rows that an op rotates.
void check_positions(std::string_view op, const ConstTensorView& positions, std::int64_t rows,
                     const ConstTensorView& cos_sin) {
  const Numbers numbers(op, "positions", positions);
  for (std::int64_t t = 0; t < rows; ++t) numbers.in(0, cos_sin.size(0) - 1, t);
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

/// Requests of a rectangle of max_len rows each.
void check_packed(std::string_view op, const PackSequences::Problem& problem, const ConstTensorView& query_start_loc) {
  const Numbers start(op, "query_start_loc", query_start_loc);
  check_starts(op, start, problem.requests, problem.tokens);
  for (std::int64_t r = 0; r < problem.requests; ++r) {
    if (start(r + 1) - start(r) > problem.max_len)
      start.bad(r + 1, kNoColumn,
                "at most max_len " + std::to_string(problem.max_len) + " past row " + std::to_string(r));
  }
}

}  // namespace

void validate(const SparseAttention::Problem& problem, const SparseAttention::Args& args) {
  constexpr std::string_view op = SparseAttention::kName;
  check_shapes<SparseAttention>(problem, args);
  for (int i = 0; i < problem.scopes; ++i) {
    const SparseAttention::Scope& scope = args.scopes.at(static_cast<std::size_t>(i));
    const std::int64_t width = problem.scope.at(static_cast<std::size_t>(i)).width;
    if (width == 0) continue;
    const std::string prefix = "scopes[" + std::to_string(i) + "].";
    const std::string lens_name = prefix + "lens";
    const std::string indices_name = prefix + "indices";
    const Numbers lens(op, lens_name, scope.lens);
    const Numbers indices(op, indices_name, scope.indices);
    for (std::int64_t t = 0; t < problem.tokens; ++t) {
      const std::int64_t n = lens.absent() ? width : lens.in(0, width, t);
      for (std::int64_t c = 0; c < n; ++c) indices.index(scope.cache.num_slots(), t, c);
    }
  }
  check_sink(op, args.sink, problem.heads);
  if (problem.rope_dim > 0 || problem.q_rope_dim > 0) check_positions(op, args.positions, problem.tokens, args.cos_sin);
}

void validate(const MergePartials::Problem& problem, const MergePartials::Args& args) {
  check_shapes<MergePartials>(problem, args);
  check_sink(MergePartials::kName, args.sink, problem.heads);
}

void validate(const GatherRows::Problem& problem, const GatherRows::Args& args) {
  constexpr std::string_view op = GatherRows::kName;
  check_shapes<GatherRows>(problem, args);
  const Numbers seq_lens(op, "seq_lens", args.seq_lens);
  const Numbers gather_lens(op, "gather_lens", args.gather_lens);
  const TableNumbers table(op, "block_table", args.block_table, args.cache.block_size, args.cache.num_blocks);
  for (std::int64_t b = 0; b < problem.requests; ++b) {
    const std::int64_t seq = seq_lens.in(0, INT32_MAX, b);
    const std::int64_t n = gather_lens.absent() ? seq : gather_lens.in(0, seq, b);
    if (n > problem.rows - problem.offset) {
      (gather_lens.absent() ? seq_lens : gather_lens)
          .bad(b, kNoColumn, "at most the " + std::to_string(problem.rows - problem.offset) + " rows of out");
    }
    table.check(b, seq - n, seq, "rows " + range_of(seq - n, seq - 1));
  }
}

void validate(const IndexerQ::Problem& problem, const IndexerQ::Args& args) {
  check_shapes<IndexerQ>(problem, args);
  check_positions(IndexerQ::kName, args.positions, problem.tokens, args.cos_sin);
}

void validate(const IndexerLogits::Problem& problem, const IndexerLogits::Args& args) {
  constexpr std::string_view op = IndexerLogits::kName;
  check_shapes<IndexerLogits>(problem, args);
  const Numbers lens(op, "lens", args.lens);
  const Numbers requests(op, "row_to_req", args.row_to_req);
  const TableNumbers table(op, "block_table", args.block_table, args.cache.block_size, args.cache.num_blocks);
  for (std::int64_t row = 0; row < problem.rows; ++row) {
    const std::int64_t n = lens.in(0, problem.width, row);
    if (n > 0)
      table.check(requests.in(0, table.requests() - 1, row), 0, n,
                  "the " + std::to_string(n) + " entries of row " + std::to_string(row));
  }
}

void validate(const GatherIndexRows::Problem& problem, const GatherIndexRows::Args& args) {
  constexpr std::string_view op = GatherIndexRows::kName;
  check_shapes<GatherIndexRows>(problem, args);
  const Numbers starts(op, "cu_seq_lens", args.cu_seq_lens);
  const TableNumbers table(op, "block_table", args.block_table, args.cache.block_size, args.cache.num_blocks);
  starts.in(0, problem.rows, 0);
  for (std::int64_t b = 0; b < problem.requests; ++b) {
    const std::int64_t n = starts.in(starts(b), problem.rows, b + 1) - starts(b);
    table.check(b, 0, n, "the " + std::to_string(n) + " rows of request " + std::to_string(b));
  }
}

void validate(const RaggedIndexerLogits::Problem& problem, const RaggedIndexerLogits::Args& args) {
  constexpr std::string_view op = RaggedIndexerLogits::kName;
  check_shapes<RaggedIndexerLogits>(problem, args);
  const Numbers starts(op, "starts", args.starts);
  const Numbers ends(op, "ends", args.ends);
  for (std::int64_t row = 0; row < problem.rows; ++row) ends.in(starts.in(0, problem.keys, row), problem.keys, row);
}

void validate(const TopK::Problem& problem, const TopK::Args& args) {
  check_shapes<TopK>(problem, args);
  const Numbers lens(TopK::kName, "lens", args.lens);
  for (std::int64_t row = 0; row < problem.rows; ++row) lens.in(0, problem.width, row);
  if (problem.storage_block == 0) return;
  const Numbers requests(TopK::kName, "token_to_req", args.token_to_req);
  const TableNumbers table(TopK::kName, "block_table", args.block_table, problem.storage_block);
  for (std::int64_t row = 0; row < problem.rows; ++row) {
    if (!args.valid.as<bool>()[row]) continue;
    const std::int64_t n = lens(row);
    table.check(requests.in(0, args.block_table.size(0) - 1, row), 0, n,
                "the " + std::to_string(n) + " entries of row " + std::to_string(row));
  }
}

void validate(const TokenToReq::Problem& problem, const TokenToReq::Args& args) {
  check_shapes<TokenToReq>(problem, args);
  check_starts(TokenToReq::kName, Numbers(TokenToReq::kName, "query_start_loc", args.query_start_loc), problem.requests,
               problem.tokens);
}

void validate(const SlotMapping::Problem& problem, const SlotMapping::Args& args) {
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

void validate(const CompressedSlotMapping::Problem& problem, const CompressedSlotMapping::Args& args) {
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

void validate(const WindowIndices::Problem& problem, const WindowIndices::Args& args) {
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

void validate(const DenseCompressedIndices::Problem& problem, const DenseCompressedIndices::Args& args) {
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

void validate(const GlobalTopk::Problem& problem, const GlobalTopk::Args& args) {
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

void validate(const ShortContextTopk::Problem& problem, const ShortContextTopk::Args& args) {
  check_shapes<ShortContextTopk>(problem, args);
}

void validate(const VisibleEntries::Problem& problem, const VisibleEntries::Args& args) {
  check_shapes<VisibleEntries>(problem, args);
}

void validate(const PrefillLens::Problem& problem, const PrefillLens::Args& args) {
  constexpr std::string_view op = PrefillLens::kName;
  check_shapes<PrefillLens>(problem, args);
  const Numbers start(op, "query_start_loc", args.query_start_loc);
  const Numbers seq(op, "seq_lens", args.seq_lens);
  for (std::int64_t r = problem.decodes; r < problem.requests; ++r) {
    start.in(start(r), INT32_MAX, r + 1);
    seq.in(start(r + 1) - start(r), INT32_MAX, r);
  }
}

void validate(const DraftPositions::Problem& problem, const DraftPositions::Args& args) {
  check_shapes<DraftPositions>(problem, args);
}

void validate(const AddRows::Problem& problem, const AddRows::Args& args) { check_shapes<AddRows>(problem, args); }

void validate(const QuantizeRows::Problem& problem, const QuantizeRows::Args& args) {
  check_shapes<QuantizeRows>(problem, args);
}

void validate(const CombineTopkWindow::Problem& problem, const CombineTopkWindow::Args& args) {
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

void validate(const MixedSparseIndices::Problem& problem, const MixedSparseIndices::Args& args) {
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

void validate(const SaveState::Problem& problem, const SaveState::Args& args) {
  constexpr std::string_view op = SaveState::kName;
  check_shapes<SaveState>(problem, args);
  const Numbers slots(op, "state_slots", args.state_slots);
  const Numbers positions(op, "positions", args.positions);
  check_written(slots, slots.rows(), args.state.num_slots());
  for (std::int64_t t = 0; t < slots.rows(); ++t) {
    if (slots(t) >= 0) positions.in(0, std::numeric_limits<std::int64_t>::max(), t);
  }
}

namespace {

/// One compressor of a call; `suffix`: of its names.
void check_entries(const CompressStore::Problem& problem, const CompressStore::Args& args, const std::string& suffix) {
  constexpr std::string_view op = CompressStore::kName;
  const std::string state_slots = "state_slots" + suffix;
  const std::string block_table = "block_table" + suffix;
  const Numbers positions(op, "positions", args.positions);
  const Numbers requests(op, "token_to_req", args.token_to_req);
  const Numbers states(op, state_slots, args.state_slots);
  const Numbers entries(op, "entry_slots", args.entry_slots);
  const TableNumbers table(op, block_table, args.block_table, args.state.block_size, args.state.num_blocks);
  check_written(entries, entries.rows(), args.entries.num_slots());
  if (!args.kv_score.absent()) check_written(states, states.rows(), args.state.num_slots());
  const std::int64_t window = problem.coff() * static_cast<std::int64_t>(problem.ratio);
  for (std::int64_t t = 0; t < entries.rows(); ++t) {
    if (states.index(args.state.num_slots(), t) < 0 || entries(t) < 0) continue;
    const std::int64_t pos = positions.in(0, std::numeric_limits<std::int64_t>::max() - 1, t);
    if ((pos + 1) % problem.ratio != 0) continue;
    if (pos / problem.ratio * problem.ratio >= args.cos_sin.size(0)) {
      positions.bad(t, kNoColumn,
                    "a group that begins within the " + std::to_string(args.cos_sin.size(0)) + " rows of cos_sin");
    }
    const std::int64_t r = requests.in(0, table.requests() - 1, t);
    table.check(r, std::max<std::int64_t>(pos - window + 1, 0), pos + 1, "the states of token " + std::to_string(t));
  }
}

}  // namespace

void validate(const CompressStore::Problem& problem, const CompressStore::Args& args) {
  check_shapes<CompressStore>(problem, args);
  check_entries(problem, args, "");
  if (problem.dim2 > 0) check_entries(second_problem(problem), second_args(args), "2");
}

void validate(const QNormRopeInsert::Problem& problem, const QNormRopeInsert::Args& args) {
  constexpr std::string_view op = QNormRopeInsert::kName;
  check_shapes<QNormRopeInsert>(problem, args);
  check_positions(op, args.positions, problem.tokens, args.cos_sin);
  if (problem.format == nullptr) return;
  const Numbers slots(op, "slot_mapping", args.slot_mapping);
  check_written(slots, slots.rows(), args.cache.num_slots());
}

void validate(const InsertRows::Problem& problem, const InsertRows::Args& args) {
  check_shapes<InsertRows>(problem, args);
  const Numbers slots(InsertRows::kName, "slot_mapping", args.slot_mapping);
  check_written(slots, slots.rows(), args.cache.num_slots());
}

void validate(const InverseRope::Problem& problem, const InverseRope::Args& args) {
  check_shapes<InverseRope>(problem, args);
  check_positions(InverseRope::kName, args.positions, problem.tokens, args.cos_sin);
}

void validate(const InverseRopeQuant::Problem& problem, const InverseRopeQuant::Args& args) {
  check_shapes<InverseRopeQuant>(problem, args);
  check_positions(InverseRopeQuant::kName, args.positions, problem.tokens, args.cos_sin);
}

void validate(const RmsNorm::Problem& problem, const RmsNorm::Args& args) {
  check_shapes<RmsNorm>(problem, args);
  if (problem.format == nullptr) return;
  check_positions(RmsNorm::kName, args.positions, problem.rows, args.cos_sin);
  const Numbers slots(RmsNorm::kName, "slot_mapping", args.slot_mapping);
  check_written(slots, slots.rows(), args.cache.num_slots());
}

void validate(const Projection::Problem& problem, const Projection::Args& args) {
  check_shapes<Projection>(problem, args);
}

void validate(const PackSequences::Problem& problem, const PackSequences::Args& args) {
  check_shapes<PackSequences>(problem, args);
  check_packed(PackSequences::kName, problem, args.query_start_loc);
}

void validate(const UnpackSequences::Problem& problem, const UnpackSequences::Args& args) {
  check_shapes<UnpackSequences>(problem, args);
  check_packed(UnpackSequences::kName, problem, args.query_start_loc);
}

namespace {

template <class Op>
void validate_then_run(const typename Op::Problem& problem, const typename Op::Args& args, const CallPlace& place,
                       const std::function<void()>& run) {
  if (place.device == DeviceKind::kCpu) {
    validate(problem, args);
  } else {
    StagedTensors copies(DeviceKind::kCpu, place.stream);
    validate(problem, copies.bring(args));
  }
  run();
}

template <class... Ops>
void watch(bool on) {
  (call_observer<Ops>.store(on ? validate_then_run<Ops> : nullptr), ...);
}

}  // namespace

void validate_calls(bool on) {
  watch<SparseAttention, MergePartials, GatherRows, IndexerQ, IndexerLogits, GatherIndexRows, RaggedIndexerLogits, TopK,
        TokenToReq, SlotMapping, CompressedSlotMapping, WindowIndices, DenseCompressedIndices, GlobalTopk,
        ShortContextTopk, VisibleEntries, PrefillLens, DraftPositions, CombineTopkWindow, MixedSparseIndices, SaveState,
        CompressStore, QNormRopeInsert, InsertRows, InverseRope, InverseRopeQuant, RmsNorm, AddRows, QuantizeRows,
        Projection, PackSequences, UnpackSequences>(on);
}

}  // namespace smla
