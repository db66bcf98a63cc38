// Tables and argument checks of the index family: seven small ops that share one shape of file.
#include "core/check.h"
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

}  // namespace

template <>
std::span<const Implementation<TokenToReq>> OpTable<TokenToReq>::implementations() {
  static constexpr Implementation<TokenToReq> kTable[] = {{.name = "ref", .machine = "any CPU", .run = token_to_req_ref}};
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
  static constexpr Implementation<SlotMapping> kTable[] = {{.name = "ref", .machine = "any CPU", .run = slot_mapping_ref}};
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
  static constexpr Implementation<CompressedSlotMapping> kTable[] = {{.name = "ref", .machine = "any CPU", .run = compressed_slot_mapping_ref}};
  return kTable;
}
template <>
void OpTable<CompressedSlotMapping>::check_problem(const CompressedSlotMapping::Problem& problem) {
  check_sizes(CompressedSlotMapping::kName, problem.requests, problem.tokens);
  check_positive(CompressedSlotMapping::kName, "problem.ratio", problem.ratio);
  check_positive(CompressedSlotMapping::kName, "problem.storage_block", problem.storage_block);
}
template <>
void OpTable<CompressedSlotMapping>::check_args(const CompressedSlotMapping::Problem& problem, const CompressedSlotMapping::Args& args) {
  check_tensor(CompressedSlotMapping::kName, "query_start_loc", args.query_start_loc, {problem.requests + 1}, {DType::kI32});
  check_tensor(CompressedSlotMapping::kName, "seq_lens", args.seq_lens, {problem.requests}, {DType::kI32});
  check_tensor(CompressedSlotMapping::kName, "block_table", args.block_table, {problem.requests, kAny}, {DType::kI32});
  check_tensor(CompressedSlotMapping::kName, "slots", args.slots, {problem.tokens}, {DType::kI64});
}

template <>
std::span<const Implementation<WindowIndices>> OpTable<WindowIndices>::implementations() {
  static constexpr Implementation<WindowIndices> kTable[] = {{.name = "ref", .machine = "any CPU", .run = window_indices_ref}};
  return kTable;
}
template <>
void OpTable<WindowIndices>::check_problem(const WindowIndices::Problem& problem) {
  check_sizes(WindowIndices::kName, problem.requests, problem.tokens);
  check_positive(WindowIndices::kName, "problem.window", problem.window);
  check_positive(WindowIndices::kName, "problem.block_size", problem.block_size);
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
             "at least the window of " + std::to_string(problem.window));
  check_tensor(WindowIndices::kName, "lens", args.lens, {problem.tokens}, {DType::kI32});
}

template <>
std::span<const Implementation<DenseCompressedIndices>> OpTable<DenseCompressedIndices>::implementations() {
  static constexpr Implementation<DenseCompressedIndices> kTable[] = {{.name = "ref", .machine = "any CPU", .run = dense_compressed_indices_ref}};
  return kTable;
}
template <>
void OpTable<DenseCompressedIndices>::check_problem(const DenseCompressedIndices::Problem& problem) {
  check_sizes(DenseCompressedIndices::kName, problem.requests, problem.tokens);
  check_positive(DenseCompressedIndices::kName, "problem.ratio", problem.ratio);
  check_positive(DenseCompressedIndices::kName, "problem.storage_block", problem.storage_block);
  check_that(problem.width >= 0 && problem.width <= INT32_MAX, DenseCompressedIndices::kName, "problem.width", problem.width, "0 to 2^31-1");
}
template <>
void OpTable<DenseCompressedIndices>::check_args(const DenseCompressedIndices::Problem& problem, const DenseCompressedIndices::Args& args) {
  check_tensor(DenseCompressedIndices::kName, "positions", args.positions, {problem.tokens}, {DType::kI64});
  check_tensor(DenseCompressedIndices::kName, "token_to_req", args.token_to_req, {problem.tokens}, {DType::kI32});
  check_tensor(DenseCompressedIndices::kName, "slot_mapping", args.slot_mapping, {problem.tokens}, {DType::kI64});
  if (problem.global || !args.block_table.absent()) {
    check_tensor(DenseCompressedIndices::kName, "block_table", args.block_table, {problem.requests, kAny}, {DType::kI32});
  }
  check_tensor(DenseCompressedIndices::kName, "indices", args.indices, {problem.tokens, problem.width}, {DType::kI32});
  check_tensor(DenseCompressedIndices::kName, "lens", args.lens, {problem.tokens}, {DType::kI32});
}

template <>
std::span<const Implementation<GlobalTopk>> OpTable<GlobalTopk>::implementations() {
  static constexpr Implementation<GlobalTopk> kTable[] = {{.name = "ref", .machine = "any CPU", .run = global_topk_ref}};
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
  static constexpr Implementation<ShortContextTopk> kTable[] = {{.name = "ref", .machine = "any CPU", .run = short_context_topk_ref}};
  return kTable;
}
template <>
void OpTable<ShortContextTopk>::check_problem(const ShortContextTopk::Problem& problem) {
  check_sizes(ShortContextTopk::kName, 0, problem.tokens);
  check_positive(ShortContextTopk::kName, "problem.ratio", problem.ratio);
  check_that(problem.k >= 0 && problem.k <= INT32_MAX, ShortContextTopk::kName, "problem.k", problem.k, "0 to 2^31-1");
}
template <>
void OpTable<ShortContextTopk>::check_args(const ShortContextTopk::Problem& problem, const ShortContextTopk::Args& args) {
  check_tensor(ShortContextTopk::kName, "positions", args.positions, {problem.tokens}, {DType::kI64});
  check_tensor(ShortContextTopk::kName, "indices", args.indices, {problem.tokens, problem.k}, {DType::kI32});
}

SMLA_DEFINE_OP(TokenToReq);
SMLA_DEFINE_OP(SlotMapping);
SMLA_DEFINE_OP(CompressedSlotMapping);
SMLA_DEFINE_OP(WindowIndices);
SMLA_DEFINE_OP(DenseCompressedIndices);
SMLA_DEFINE_OP(GlobalTopk);
SMLA_DEFINE_OP(ShortContextTopk);

}  // namespace smla
