// The numbers inside tensors that validate reads, op by op.
#include <set>
#include <string>

#include "core/check.h"
#include "ops/topk/implementations.h"
#include "ops/validate_op.h"
#include "sparsemla/ops/topk.h"

namespace smla {

void check_slot_rows(std::string_view op, std::int64_t rows, std::int64_t width, const TopK::Slots& slots,
                     const TopK::Slots::Args& args, const ConstTensorView& row_lens) {
  const Numbers lens(op, "lens", row_lens);
  const Numbers requests(op, "slots.token_to_req", args.token_to_req);
  const TableNumbers table(op, "slots.block_table", args.block_table, slots.storage_block);
  for (std::int64_t row = 0; row < rows; ++row) {
    if (!args.valid.as<bool>()[row]) continue;
    const std::int64_t n = lens.in(0, width, row);
    table.check(requests.in(0, args.block_table.size(0) - 1, row), 0, n,
                "the " + std::to_string(n) + " entries of row " + std::to_string(row));
  }
}

// Lengths; where slots are wanted also each valid row's request and the blocks of its entries.
template <>
void validate<TopK>(const TopK::Problem& problem, const TopK::Args& args) {
  check_shapes<TopK>(problem, args);
  const Numbers lens(TopK::kName, "lens", args.lens);
  for (std::int64_t row = 0; row < problem.rows; ++row) lens.in(0, problem.width, row);
  if (problem.slots) check_slot_rows(TopK::kName, problem.rows, problem.width, *problem.slots, args.slots, args.lens);
}

// Local entries whose global numbers fit 32 bits, each once.
template <>
void validate<MergeTopK>(const MergeTopK::Problem& problem, const MergeTopK::Args& args) {
  check_shapes<MergeTopK>(problem, args);
  for (std::int64_t rank = 0; rank < problem.share.ranks; ++rank) {
    const EntryShare share{.rank = rank, .ranks = problem.share.ranks, .interleave = problem.share.interleave};
    for (std::int64_t row = 0; row < problem.rows; ++row) {
      const auto* entries =
          args.indices.as<std::int32_t>() + rank * args.indices.stride[0] + row * args.indices.stride[1];
      std::set<std::int32_t> seen;
      for (std::int64_t c = 0; c < problem.k; ++c) {
        if (entries[c] < 0) continue;
        const std::string where =
            "candidate " + std::to_string(c) + " of row " + std::to_string(row) + " of rank " + std::to_string(rank);
        check_that(share.global(entries[c]) <= INT32_MAX, MergeTopK::kName, where, entries[c],
                   "an entry whose global number is at most 2^31-1");
        check_that(seen.insert(entries[c]).second, MergeTopK::kName, where, entries[c],
                   "an entry that the row does not have yet");
      }
    }
  }
}

}  // namespace smla
