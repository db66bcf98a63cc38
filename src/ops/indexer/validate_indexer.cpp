// The numbers inside tensors that validate reads, op by op.
#include "ops/topk/implementations.h"
#include "ops/validate_op.h"
#include "sparsemla/ops/indexer.h"

namespace smla {

namespace {

template <class Op>
void check_scored_rows(const typename Op::Problem& problem, const typename Op::Args& args) {
  const Numbers lens(Op::kName, "lens", args.lens);
  const Numbers requests(Op::kName, "row_to_req", args.row_to_req);
  const TableNumbers table(Op::kName, "block_table", args.block_table, args.cache.block_size, args.cache.num_blocks);
  for (std::int64_t row = 0; row < problem.rows; ++row) {
    const std::int64_t n = lens.in(0, problem.width, row);
    if (n > 0)
      table.check(requests.in(0, table.requests() - 1, row), 0, n,
                  "the " + std::to_string(n) + " entries of row " + std::to_string(row));
  }
}

}  // namespace

// Positions.
template <>
void validate<IndexerQ>(const IndexerQ::Problem& problem, const IndexerQ::Args& args) {
  check_shapes<IndexerQ>(problem, args);
  check_positions(IndexerQ::kName, args.positions, problem.tokens, args.cos_sin);
}

// Lengths, and for rows with entries their request and its blocks.
template <>
void validate<IndexerLogits>(const IndexerLogits::Problem& problem, const IndexerLogits::Args& args) {
  check_shapes<IndexerLogits>(problem, args);
  check_scored_rows<IndexerLogits>(problem, args);
}

// The same, and where slots are wanted what TopK reads for them.
template <>
void validate<IndexerTopK>(const IndexerTopK::Problem& problem, const IndexerTopK::Args& args) {
  check_shapes<IndexerTopK>(problem, args);
  check_scored_rows<IndexerTopK>(problem, args);
  if (problem.slots)
    check_slot_rows(IndexerTopK::kName, problem.rows, problem.width, *problem.slots, args.slots, args.lens);
}

// Starts and the blocks of every row.
template <>
void validate<GatherIndexRows>(const GatherIndexRows::Problem& problem, const GatherIndexRows::Args& args) {
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

// Bounds of every row.
template <>
void validate<RaggedIndexerLogits>(const RaggedIndexerLogits::Problem& problem, const RaggedIndexerLogits::Args& args) {
  constexpr std::string_view op = RaggedIndexerLogits::kName;
  check_shapes<RaggedIndexerLogits>(problem, args);
  const Numbers starts(op, "starts", args.starts);
  const Numbers ends(op, "ends", args.ends);
  for (std::int64_t row = 0; row < problem.rows; ++row) ends.in(starts.in(0, problem.keys, row), problem.keys, row);
}

}  // namespace smla
