#include "ops/compressor/window.h"

#include "cache/row_codec.h"

namespace smla {

Closing closing_token(const CompressStore::Problem& problem, const CompressStore::Args& args, std::int64_t t) {
  const std::int64_t pos = static_cast<const std::int64_t*>(args.positions.data)[t];
  const std::int64_t entry = static_cast<const std::int64_t*>(args.entry_slots.data)[t];
  if (static_cast<const std::int64_t*>(args.state_slots.data)[t] < 0 || pos < 0 ||
      pos % problem.ratio != problem.ratio - 1)
    return {};
  if (entry < 0 || entry >= args.entries.num_slots()) return {};
  const std::int64_t request = static_cast<const std::int32_t*>(args.token_to_req.data)[t];
  if (request < 0 || request >= args.block_table.size(0)) return {};
  const std::int64_t first =
      pos - (problem.ratio - 1);  // the entry's position is its first source token's, not the last's
  if (first >= args.cos_sin.size(0)) return {};
  return {.acts = true,
          .position = pos,
          .request = request,
          .entry_slot = entry,
          .cos_sin = static_cast<const float*>(args.cos_sin.data) + first * args.cos_sin.stride[0]};
}

void find_window(const CompressStore::Problem& problem, const CompressStore::Args& args, const Closing& token,
                 Window& window) {
  const std::int64_t bs = args.state.block_size;
  const auto* table =
      static_cast<const std::int32_t*>(args.block_table.data) + token.request * args.block_table.stride[0];
  const int width = problem.coff() * problem.ratio;
  window.rows = 0;
  for (int j = 0; j < width; ++j) {
    const std::int64_t pos = token.position - (width - 1) + j;
    if (pos < 0 || pos / bs >= args.block_table.size(1)) continue;
    const std::int64_t block = table[pos / bs] < 0 ? 0 : table[pos / bs];
    if (block >= args.state.num_blocks) continue;
    // Overlap: a row gives its first half of channels to the next group's entry, its second half to its own group's.
    const int half = j / problem.ratio;
    const auto* row = reinterpret_cast<const float*>(row_data(args.state, block, pos % bs));
    window.values[window.rows] = row + static_cast<std::ptrdiff_t>(half) * problem.dim;
    window.logits[window.rows] = row + static_cast<std::ptrdiff_t>(problem.coff() + half) * problem.dim;
    ++window.rows;
  }
}

void store_entry(const CompressStore::Problem& problem, const PagedCache& entries, std::int64_t slot, float* row) {
  const bool exact = entries.format->nope == Element::kF32;
  const auto round = [&] {
    for (int i = 0; i < problem.dim && !exact; ++i) row[i] = to_float(to_bf16(row[i]));
  };
  round();
  if (problem.hadamard) {
    hadamard(row, problem.dim);
    round();
  }
  encode_row(entries, slot, row, problem.clamp);
}

}  // namespace smla
