// The numbers inside tensors that validate reads, op by op.
#include <algorithm>
#include <limits>

#include "ops/compressor/implementations.h"
#include "ops/validate_op.h"
#include "sparsemla/ops/compressor.h"

namespace smla {

namespace {

/// Compressor i of a call.
void check_entries(const CompressorCall& c, int i) {
  constexpr std::string_view op = CompressStore::kName;
  const int ratio = c.problem.ratio;
  const std::string prefix = "compressors[" + std::to_string(i) + "].";
  const std::string state_slots = prefix + "state_slots";
  const std::string block_table = prefix + "block_table";
  const Numbers positions(op, "positions", c.args.positions);
  const Numbers requests(op, "token_to_req", c.args.token_to_req);
  const Numbers states(op, state_slots, c.own.state_slots);
  const Numbers entries(op, "entry_slots", c.args.entry_slots);
  const TableNumbers table(op, block_table, c.own.block_table, c.own.state.block_size, c.own.state.num_blocks);
  check_written(entries, entries.rows(), c.own.entries.num_slots());
  if (c.saves()) check_written(states, states.rows(), c.own.state.num_slots());
  const std::int64_t window = c.problem.coff() * static_cast<std::int64_t>(ratio);
  const std::int64_t rope_rows = c.args.cos_sin.size(0);
  for (std::int64_t t = 0; t < entries.rows(); ++t) {
    const bool saves = states.index(c.own.state.num_slots(), t) >= 0;
    const auto position = [&] { return positions.in(0, std::numeric_limits<std::int64_t>::max() - 1, t); };
    if (saves && c.saves()) (void)position();  // picks the row of ape
    if (!saves || entries(t) < 0) continue;
    const std::int64_t pos = position();
    if ((pos + 1) % ratio != 0) continue;
    if (pos / ratio * ratio >= rope_rows) {
      positions.bad(t, kNoColumn, "a group that begins within the " + std::to_string(rope_rows) + " rows of cos_sin");
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
  for (int i = 0; i < problem.compressors; ++i) check_entries({problem, args, i}, i);
}

}  // namespace smla
