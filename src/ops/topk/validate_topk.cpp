// The numbers inside tensors that validate reads, op by op.
#include "ops/validate_op.h"
#include "sparsemla/ops/topk.h"

namespace smla {

// Lengths; where slots are wanted also each valid row's request and the blocks of its entries.
template <>
void validate<TopK>(const TopK::Problem& problem, const TopK::Args& args) {
  check_shapes<TopK>(problem, args);
  const Numbers lens(TopK::kName, "lens", args.lens);
  for (std::int64_t row = 0; row < problem.rows; ++row) lens.in(0, problem.width, row);
  if (!problem.slots) return;
  const TopK::Slots::Args& slots = args.slots;
  const Numbers requests(TopK::kName, "slots.token_to_req", slots.token_to_req);
  const TableNumbers table(TopK::kName, "slots.block_table", slots.block_table, problem.slots->storage_block);
  for (std::int64_t row = 0; row < problem.rows; ++row) {
    if (!slots.valid.as<bool>()[row]) continue;
    const std::int64_t n = lens(row);
    table.check(requests.in(0, slots.block_table.size(0) - 1, row), 0, n,
                "the " + std::to_string(n) + " entries of row " + std::to_string(row));
  }
}

}  // namespace smla
