// Tables and argument checks of the index family: small ops that share one shape of file.
#include "core/check.h"
#include "ops/define_op.h"
#include "ops/index/implementations.h"

namespace smla {

namespace {

void check_sizes(std::string_view op, std::int64_t requests, std::int64_t tokens) {
  check_that(requests >= 0, op, "problem.requests", requests, "0 or more");
  check_that(tokens >= 0, op, "problem.tokens", tokens, "0 or more");
}

/// Block sizes, ratios and windows; the upper bound keeps block * block_size inside 64 bits.
void check_positive(std::string_view op, std::string_view what, std::int64_t got) {
  check_that(got >= 1 && got <= INT32_MAX, op, what, got, "1 to 2^31-1");
}

/// `lens` counts them in int32.
void check_columns(std::string_view op, const TensorView& indices) {
  check_that(indices.size(1) <= INT32_MAX, op, "columns of indices", indices.size(1), "at most 2^31-1");
}

}  // namespace

template <>
std::span<const Implementation<TokenToReq>> OpTable<TokenToReq>::implementations() {
  static const Implementation<TokenToReq> kTable[] = {cuda_row<TokenToReq>(),
                                                      {.name = "ref", .machine = "any CPU", .run = token_to_req_ref}};
  return kTable;
}
template <>
void OpTable<TokenToReq>::check_problem(const TokenToReq::Problem& problem) {
  check_sizes(TokenToReq::kName, problem.requests, problem.tokens);
}
template <>
void OpTable<TokenToReq>::check_args(const TokenToReq::Problem& problem, const TokenToReq::Args& args) {
  check_tensor(TokenToReq::kName, "query_start_loc", args.query_start_loc, {problem.requests + 1}, {DType::kI32});
  check_tensor(TokenToReq::kName, "token_to_req", args.token_to_req, {problem.tokens}, {DType::kI32});
}

template <>
std::span<const Implementation<SlotMapping>> OpTable<SlotMapping>::implementations() {
  static const Implementation<SlotMapping> kTable[] = {cuda_row<SlotMapping>(),
                                                       {.name = "ref", .machine = "any CPU", .run = slot_mapping_ref}};
  return kTable;
}
template <>
void OpTable<SlotMapping>::check_problem(const SlotMapping::Problem& problem) {
  check_sizes(SlotMapping::kName, problem.requests, problem.tokens);
  check_positive(SlotMapping::kName, "problem.block_size", problem.block_size);
}
template <>
void OpTable<SlotMapping>::check_args(const SlotMapping::Problem& problem, const SlotMapping::Args& args) {
  check_tensor(SlotMapping::kName, "query_start_loc", args.query_start_loc, {problem.requests + 1}, {DType::kI32});
  check_tensor(SlotMapping::kName, "positions", args.positions, {problem.tokens}, {DType::kI64});
  check_tensor(SlotMapping::kName, "token_to_req", args.token_to_req, {problem.tokens}, {DType::kI32});
  check_tensor(SlotMapping::kName, "block_table", args.block_table, {problem.requests, kAny}, {DType::kI32});
  check_tensor(SlotMapping::kName, "slots", args.slots, {problem.tokens}, {DType::kI64});
}

template <>
std::span<const Implementation<CompressedSlotMapping>> OpTable<CompressedSlotMapping>::implementations() {
  static const Implementation<CompressedSlotMapping> kTable[] = {
      cuda_row<CompressedSlotMapping>(), {.name = "ref", .machine = "any CPU", .run = compressed_slot_mapping_ref}};
  return kTable;
}
template <>
void OpTable<CompressedSlotMapping>::check_problem(const CompressedSlotMapping::Problem& problem) {
  check_sizes(CompressedSlotMapping::kName, problem.requests, problem.tokens);
  check_positive(CompressedSlotMapping::kName, "problem.ratio", problem.ratio);
  check_positive(CompressedSlotMapping::kName, "problem.storage_block", problem.storage_block);
  check_entry_share(problem.share);
}
template <>
void OpTable<CompressedSlotMapping>::check_args(const CompressedSlotMapping::Problem& problem,
                                                const CompressedSlotMapping::Args& args) {
  check_tensor(CompressedSlotMapping::kName, "query_start_loc", args.query_start_loc, {problem.requests + 1},
               {DType::kI32});
  check_tensor(CompressedSlotMapping::kName, "seq_lens", args.seq_lens, {problem.requests}, {DType::kI32});
  check_tensor(CompressedSlotMapping::kName, "block_table", args.block_table, {problem.requests, kAny}, {DType::kI32});
  check_tensor(CompressedSlotMapping::kName, "slots", args.slots, {problem.tokens}, {DType::kI64});
}

template <>
std::span<const Implementation<WindowIndices>> OpTable<WindowIndices>::implementations() {
  static const Implementation<WindowIndices> kTable[] = {
      cuda_row<WindowIndices>(), {.name = "ref", .machine = "any CPU", .run = window_indices_ref}};
  return kTable;
}
template <>
void OpTable<WindowIndices>::check_problem(const WindowIndices::Problem& problem) {
  check_sizes(WindowIndices::kName, problem.requests, problem.tokens);
  check_positive(WindowIndices::kName, "problem.window", problem.window);
  check_positive(WindowIndices::kName, "problem.block_size", problem.block_size);
  check_that(problem.noncausal_tokens >= 0 && problem.noncausal_tokens <= problem.tokens, WindowIndices::kName,
             "problem.noncausal_tokens", problem.noncausal_tokens,
             "0 to " + std::to_string(problem.tokens) + ", the tokens");
}
template <>
void OpTable<WindowIndices>::check_args(const WindowIndices::Problem& problem, const WindowIndices::Args& args) {
  check_tensor(WindowIndices::kName, "query_start_loc", args.query_start_loc, {problem.requests + 1}, {DType::kI32});
  check_tensor(WindowIndices::kName, "seq_lens", args.seq_lens, {problem.requests}, {DType::kI32});
  check_tensor(WindowIndices::kName, "token_to_req", args.token_to_req, {problem.tokens}, {DType::kI32});
  check_tensor(WindowIndices::kName, "slot_mapping", args.slot_mapping, {problem.tokens}, {DType::kI64});
  check_tensor(WindowIndices::kName, "block_table", args.block_table, {problem.requests, kAny}, {DType::kI32});
  check_tensor(WindowIndices::kName, "indices", args.indices, {problem.tokens, kAny}, {DType::kI32});
  check_that(args.indices.size(1) >= problem.window, WindowIndices::kName, "columns of indices", args.indices.size(1),
             words("at least the window of ", problem.window));
  check_tensor(WindowIndices::kName, "lens", args.lens, {problem.tokens}, {DType::kI32});
}

template <>
std::span<const Implementation<DenseCompressedIndices>> OpTable<DenseCompressedIndices>::implementations() {
  static const Implementation<DenseCompressedIndices> kTable[] = {
      cuda_row<DenseCompressedIndices>(), {.name = "ref", .machine = "any CPU", .run = dense_compressed_indices_ref}};
  return kTable;
}
template <>
void OpTable<DenseCompressedIndices>::check_problem(const DenseCompressedIndices::Problem& problem) {
  check_sizes(DenseCompressedIndices::kName, problem.requests, problem.tokens);
  check_positive(DenseCompressedIndices::kName, "problem.ratio", problem.ratio);
  check_positive(DenseCompressedIndices::kName, "problem.storage_block", problem.storage_block);
  check_that(problem.width >= 0 && problem.width <= INT32_MAX, DenseCompressedIndices::kName, "problem.width",
             problem.width, "0 to 2^31-1");
  check_entry_share(problem.share);
}
template <>
void OpTable<DenseCompressedIndices>::check_args(const DenseCompressedIndices::Problem& problem,
                                                 const DenseCompressedIndices::Args& args) {
  check_tensor(DenseCompressedIndices::kName, "positions", args.positions, {problem.tokens}, {DType::kI64});
  check_tensor(DenseCompressedIndices::kName, "token_to_req", args.token_to_req, {problem.tokens}, {DType::kI32});
  check_tensor(DenseCompressedIndices::kName, "slot_mapping", args.slot_mapping, {problem.tokens}, {DType::kI64});
  if (problem.global || !args.block_table.absent()) {
    check_tensor(DenseCompressedIndices::kName, "block_table", args.block_table, {problem.requests, kAny},
                 {DType::kI32});
  }
  check_tensor(DenseCompressedIndices::kName, "indices", args.indices, {problem.tokens, problem.width}, {DType::kI32});
  check_tensor(DenseCompressedIndices::kName, "lens", args.lens, {problem.tokens}, {DType::kI32});
}

template <>
std::span<const Implementation<GlobalTopk>> OpTable<GlobalTopk>::implementations() {
  static const Implementation<GlobalTopk> kTable[] = {cuda_row<GlobalTopk>(),
                                                      {.name = "ref", .machine = "any CPU", .run = global_topk_ref}};
  return kTable;
}
template <>
void OpTable<GlobalTopk>::check_problem(const GlobalTopk::Problem& problem) {
  check_sizes(GlobalTopk::kName, problem.requests, problem.tokens);
  check_positive(GlobalTopk::kName, "problem.storage_block", problem.storage_block);
  check_that(problem.k >= 0 && problem.k <= INT32_MAX, GlobalTopk::kName, "problem.k", problem.k, "0 to 2^31-1");
}
template <>
void OpTable<GlobalTopk>::check_args(const GlobalTopk::Problem& problem, const GlobalTopk::Args& args) {
  check_tensor(GlobalTopk::kName, "topk", args.topk, {problem.tokens, problem.k}, {DType::kI32});
  check_tensor(GlobalTopk::kName, "token_to_req", args.token_to_req, {problem.tokens}, {DType::kI32});
  check_tensor(GlobalTopk::kName, "block_table", args.block_table, {problem.requests, kAny}, {DType::kI32});
  check_tensor(GlobalTopk::kName, "valid", args.valid, {problem.tokens}, {DType::kBool});
  check_tensor(GlobalTopk::kName, "indices", args.indices, {problem.tokens, problem.k}, {DType::kI32});
  check_tensor(GlobalTopk::kName, "lens", args.lens, {problem.tokens}, {DType::kI32});
}

template <>
std::span<const Implementation<ShortContextTopk>> OpTable<ShortContextTopk>::implementations() {
  static const Implementation<ShortContextTopk> kTable[] = {
      cuda_row<ShortContextTopk>(), {.name = "ref", .machine = "any CPU", .run = short_context_topk_ref}};
  return kTable;
}
template <>
void OpTable<ShortContextTopk>::check_problem(const ShortContextTopk::Problem& problem) {
  check_sizes(ShortContextTopk::kName, 0, problem.tokens);
  check_positive(ShortContextTopk::kName, "problem.ratio", problem.ratio);
  check_that(problem.k >= 0 && problem.k <= INT32_MAX, ShortContextTopk::kName, "problem.k", problem.k, "0 to 2^31-1");
}
template <>
void OpTable<ShortContextTopk>::check_args(const ShortContextTopk::Problem& problem,
                                           const ShortContextTopk::Args& args) {
  check_tensor(ShortContextTopk::kName, "positions", args.positions, {problem.tokens}, {DType::kI64});
  check_tensor(ShortContextTopk::kName, "indices", args.indices, {problem.tokens, problem.k}, {DType::kI32});
}

template <>
std::span<const Implementation<VisibleEntries>> OpTable<VisibleEntries>::implementations() {
  static const Implementation<VisibleEntries> kTable[] = {
      cuda_row<VisibleEntries>(), {.name = "ref", .machine = "any CPU", .run = visible_entries_ref}};
  return kTable;
}
template <>
void OpTable<VisibleEntries>::check_problem(const VisibleEntries::Problem& problem) {
  check_sizes(VisibleEntries::kName, 0, problem.tokens);
  check_positive(VisibleEntries::kName, "problem.ratio", problem.ratio);
  check_that(problem.top_k >= 0 && problem.top_k <= INT32_MAX, VisibleEntries::kName, "problem.top_k", problem.top_k,
             "0 to 2^31-1");
  check_entry_share(problem.share);
}
template <>
void OpTable<VisibleEntries>::check_args(const VisibleEntries::Problem& problem, const VisibleEntries::Args& args) {
  check_tensor(VisibleEntries::kName, "positions", args.positions, {problem.tokens}, {DType::kI64});
  check_tensor(VisibleEntries::kName, "slot_mapping", args.slot_mapping, {problem.tokens}, {DType::kI64});
  if (!args.valid.absent()) check_tensor(VisibleEntries::kName, "valid", args.valid, {problem.tokens}, {DType::kBool});
  if (!args.lens.absent()) check_tensor(VisibleEntries::kName, "lens", args.lens, {problem.tokens}, {DType::kI32});
  if (!args.topk_lens.absent())
    check_tensor(VisibleEntries::kName, "topk_lens", args.topk_lens, {problem.tokens}, {DType::kI32});
}

template <>
std::span<const Implementation<PrefillLens>> OpTable<PrefillLens>::implementations() {
  static const Implementation<PrefillLens> kTable[] = {cuda_row<PrefillLens>(),
                                                       {.name = "ref", .machine = "any CPU", .run = prefill_lens_ref}};
  return kTable;
}
template <>
void OpTable<PrefillLens>::check_problem(const PrefillLens::Problem& problem) {
  check_sizes(PrefillLens::kName, problem.requests, 0);
  check_that(problem.decodes >= 0 && problem.decodes <= problem.requests, PrefillLens::kName, "problem.decodes",
             problem.decodes, "0 to " + std::to_string(problem.requests) + ", the requests");
  check_positive(PrefillLens::kName, "problem.window", problem.window);
  check_positive(PrefillLens::kName, "problem.ratio", problem.ratio);
}
template <>
void OpTable<PrefillLens>::check_args(const PrefillLens::Problem& problem, const PrefillLens::Args& args) {
  const std::int64_t prefills = problem.requests - problem.decodes;
  check_tensor(PrefillLens::kName, "query_start_loc", args.query_start_loc, {problem.requests + 1}, {DType::kI32});
  check_tensor(PrefillLens::kName, "seq_lens", args.seq_lens, {problem.requests}, {DType::kI32});
  if (!args.gather_lens.absent())
    check_tensor(PrefillLens::kName, "gather_lens", args.gather_lens, {prefills}, {DType::kI32});
  if (!args.entry_counts.absent())
    check_tensor(PrefillLens::kName, "entry_counts", args.entry_counts, {prefills}, {DType::kI32});
}

template <>
std::span<const Implementation<DraftPositions>> OpTable<DraftPositions>::implementations() {
  static const Implementation<DraftPositions> kTable[] = {
      cuda_row<DraftPositions>(), {.name = "ref", .machine = "any CPU", .run = draft_positions_ref}};
  return kTable;
}
template <>
void OpTable<DraftPositions>::check_problem(const DraftPositions::Problem& problem) {
  check_sizes(DraftPositions::kName, problem.requests, 0);
  check_that(problem.longer >= 0 && problem.longer <= INT32_MAX, DraftPositions::kName, "longer", problem.longer,
             "0 to 2^31 - 1");
}
template <>
void OpTable<DraftPositions>::check_args(const DraftPositions::Problem& problem, const DraftPositions::Args& args) {
  check_tensor(DraftPositions::kName, "seq_lens", args.seq_lens, {problem.requests}, {DType::kI32});
  check_tensor(DraftPositions::kName, "positions", args.positions, {problem.requests}, {DType::kI64});
  if (!args.next_lens.absent())
    check_tensor(DraftPositions::kName, "next_lens", args.next_lens, {problem.requests}, {DType::kI32});
}

template <>
std::span<const Implementation<CombineTopkWindow>> OpTable<CombineTopkWindow>::implementations() {
  static const Implementation<CombineTopkWindow> kTable[] = {
      cuda_row<CombineTopkWindow>(), {.name = "ref", .machine = "any CPU", .run = combine_topk_window_ref}};
  return kTable;
}
template <>
void OpTable<CombineTopkWindow>::check_problem(const CombineTopkWindow::Problem& problem) {
  constexpr std::string_view op = CombineTopkWindow::kName;
  check_sizes(op, problem.requests, problem.tokens);
  check_that(problem.requests <= INT32_MAX, op, "problem.requests", problem.requests, "0 to 2^31-1");
  check_positive(op, "problem.window", problem.window);
  check_positive(op, "problem.ratio", problem.ratio);
  check_that(problem.top_k >= 0 && problem.top_k <= INT32_MAX, op, "problem.top_k", problem.top_k, "0 to 2^31-1");
  check_that(problem.m >= 0 && problem.m <= INT32_MAX, op, "problem.m", problem.m, "0 to 2^31-1");
  check_that(problem.n >= 0 && problem.n <= INT32_MAX, op, "problem.n", problem.n, "0 to 2^31-1");
}
template <>
void OpTable<CombineTopkWindow>::check_args(const CombineTopkWindow::Problem& problem,
                                            const CombineTopkWindow::Args& args) {
  constexpr std::string_view op = CombineTopkWindow::kName;
  if (problem.top_k > 0) {
    check_tensor(op, "topk", args.topk, {problem.tokens, kAny}, {DType::kI32});
    check_that(args.topk.size(1) >= problem.top_k, op, "columns of topk", args.topk.size(1),
               words("at least ", problem.top_k));
  }
  check_tensor(op, "query_start_loc", args.query_start_loc, {problem.requests + 1}, {DType::kI32});
  check_tensor(op, "seq_lens", args.seq_lens, {problem.requests}, {DType::kI32});
  check_tensor(op, "gather_lens", args.gather_lens, {problem.requests}, {DType::kI32});
  check_tensor(op, "indices", args.indices, {problem.tokens, kAny}, {DType::kI32});
  check_that(args.indices.size(1) >= problem.top_k + problem.window, op, "columns of indices", args.indices.size(1),
             words("at least ", problem.top_k + problem.window, ", top_k + window"));
  check_columns(op, args.indices);
  check_tensor(op, "lens", args.lens, {problem.tokens}, {DType::kI32});
}

template <>
std::span<const Implementation<MixedSparseIndices>> OpTable<MixedSparseIndices>::implementations() {
  static const Implementation<MixedSparseIndices> kTable[] = {
      cuda_row<MixedSparseIndices>(), {.name = "ref", .machine = "any CPU", .run = mixed_sparse_indices_ref}};
  return kTable;
}
template <>
void OpTable<MixedSparseIndices>::check_problem(const MixedSparseIndices::Problem& problem) {
  constexpr std::string_view op = MixedSparseIndices::kName;
  check_sizes(op, problem.requests, problem.tokens);
  check_that(problem.decode_tokens >= 0 && problem.decode_tokens <= problem.tokens, op, "problem.decode_tokens",
             problem.decode_tokens, "0 to " + std::to_string(problem.tokens));
  check_positive(op, "problem.window", problem.window);
  check_positive(op, "problem.ratio", problem.ratio);
  check_positive(op, "problem.window_block", problem.window_block);
  check_positive(op, "problem.compressed_block", problem.compressed_block);
  const auto at_least = [&](std::string_view what, std::int64_t got, std::int64_t least) {
    check_that(got >= least && got <= INT32_MAX, op, what, got, std::to_string(least) + " to 2^31-1");
  };
  at_least("problem.window_width", problem.window_width, problem.window);
  at_least("problem.top_k", problem.top_k, 0);
  at_least("problem.compressed_width", problem.compressed_width, problem.top_k);
  if (problem.window_span != 0) at_least("problem.window_span", problem.window_span, problem.window_block);
  if (problem.compressed_span != 0)
    at_least("problem.compressed_span", problem.compressed_span, problem.compressed_block);
}
template <>
void OpTable<MixedSparseIndices>::check_args(const MixedSparseIndices::Problem& problem,
                                             const MixedSparseIndices::Args& args) {
  constexpr std::string_view op = MixedSparseIndices::kName;
  const std::int64_t prefill = problem.tokens - problem.decode_tokens;
  const bool decode_part = !args.decode_compressed.absent() && problem.decode_tokens > 0;
  const bool prefill_part = problem.top_k > 0 && prefill > 0;
  if (problem.decode_tokens > 0) {
    check_tensor(op, "decode_window", args.decode_window, {problem.decode_tokens, problem.window_width}, {DType::kI32});
  }
  if (!args.decode_compressed.absent()) {
    check_tensor(op, "decode_compressed", args.decode_compressed, {problem.decode_tokens, kAny}, {DType::kI32});
  }
  if (decode_part && problem.local)
    check_tensor(op, "decode_valid", args.decode_valid, {problem.decode_tokens}, {DType::kBool});
  if (!args.decode_lens.absent())
    check_tensor(op, "decode_lens", args.decode_lens, {problem.decode_tokens}, {DType::kI32});
  if (prefill_part) {
    check_tensor(op, "prefill_topk", args.prefill_topk, {prefill, kAny}, {DType::kI32});
    check_that(args.prefill_topk.size(1) >= problem.top_k, op, "columns of prefill_topk", args.prefill_topk.size(1),
               words("at least ", problem.top_k));
  }
  check_tensor(op, "query_start_loc", args.query_start_loc, {problem.requests + 1}, {DType::kI32});
  check_tensor(op, "seq_lens", args.seq_lens, {problem.requests}, {DType::kI32});
  check_tensor(op, "token_to_req", args.token_to_req, {problem.tokens}, {DType::kI32});
  check_tensor(op, "window_table", args.window_table, {problem.requests, kAny}, {DType::kI32});
  if ((decode_part && problem.local) || prefill_part || !args.compressed_table.absent()) {
    check_tensor(op, "compressed_table", args.compressed_table, {problem.requests, kAny}, {DType::kI32});
  }
  check_tensor(op, "indices", args.indices, {problem.tokens, problem.window_width + problem.compressed_width},
               {DType::kI32});
  check_columns(op, args.indices);
  check_tensor(op, "lens", args.lens, {problem.tokens}, {DType::kI32});
}

SMLA_DEFINE_OP(TokenToReq);
SMLA_DEFINE_OP(SlotMapping);
SMLA_DEFINE_OP(CompressedSlotMapping);
SMLA_DEFINE_OP(WindowIndices);
SMLA_DEFINE_OP(DenseCompressedIndices);
SMLA_DEFINE_OP(GlobalTopk);
SMLA_DEFINE_OP(ShortContextTopk);
SMLA_DEFINE_OP(VisibleEntries);
SMLA_DEFINE_OP(PrefillLens);
SMLA_DEFINE_OP(DraftPositions);
SMLA_DEFINE_OP(CombineTopkWindow);
SMLA_DEFINE_OP(MixedSparseIndices);

}  // namespace smla
