// The numbers inside tensors that validate reads, op by op.
#include <algorithm>
#include <limits>

#include "ops/compressor/implementations.h"
#include "ops/validate_op.h"
#include "sparsemla/ops/compressor.h"

namespace smla {

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

// Slots, each once, and positions.
template <>
void validate<SaveState>(const SaveState::Problem& problem, const SaveState::Args& args) {
  constexpr std::string_view op = SaveState::kName;
  check_shapes<SaveState>(problem, args);
  const Numbers slots(op, "state_slots", args.state_slots);
  const Numbers positions(op, "positions", args.positions);
  check_written(slots, slots.rows(), args.state.num_slots());
  for (std::int64_t t = 0; t < slots.rows(); ++t) {
    if (slots(t) >= 0) positions.in(0, std::numeric_limits<std::int64_t>::max(), t);
  }
}

// Slots, each once; for tokens that close a group position, request and the blocks of its states.
template <>
void validate<CompressStore>(const CompressStore::Problem& problem, const CompressStore::Args& args) {
  check_shapes<CompressStore>(problem, args);
  check_entries(problem, args, "");
  if (problem.dim2 > 0) check_entries(second_problem(problem), second_args(args), "2");
}

}  // namespace smla
