#include "ops/compressor/window.h"

#include <algorithm>

#include "cache/row_codec.h"

namespace smla {

Closing closing_token(const CompressorCall& c, std::int64_t t) {
  const CompressStore::Args& args = c.args;
  const int ratio = c.problem.ratio;
  const std::int64_t pos = static_cast<const std::int64_t*>(args.positions.data)[t];
  const std::int64_t entry = static_cast<const std::int64_t*>(args.entry_slots.data)[t];
  if (static_cast<const std::int64_t*>(c.own.state_slots.data)[t] < 0 || pos < 0 || pos % ratio != ratio - 1) return {};
  if (entry < 0 || entry >= c.own.entries.num_slots()) return {};
  const std::int64_t request = static_cast<const std::int32_t*>(args.token_to_req.data)[t];
  if (request < 0 || request >= c.own.block_table.size(0)) return {};
  const std::int64_t first = pos - (ratio - 1);  // the entry's position is its first source token's, not the last's
  if (first >= args.cos_sin.size(0)) return {};
  return {.acts = true,
          .position = pos,
          .request = request,
          .entry_slot = entry,
          .cos_sin = static_cast<const float*>(args.cos_sin.data) + first * args.cos_sin.stride[0]};
}

void find_window(const CompressorCall& c, const Closing& token, Window& window) {
  const PagedCache& state = c.own.state;
  const ConstTensorView& block_table = c.own.block_table;
  const int coff = c.problem.coff();
  const int dim = c.shape.dim;
  const auto* table = static_cast<const std::int32_t*>(block_table.data) + token.request * block_table.stride[0];
  const int width = coff * c.problem.ratio;
  window.rows = 0;
  for (int j = 0; j < width; ++j) {
    const std::int64_t pos = token.position - (width - 1) + j;
    if (pos < 0 || pos / state.block_size >= block_table.size(1)) continue;
    const std::int64_t block = std::max(table[pos / state.block_size], 0);
    if (block >= state.num_blocks) continue;
    // Overlap: a row gives its first half of channels to the next group's entry, its second half to its own group's.
    const int half = j / c.problem.ratio;
    const auto* row = reinterpret_cast<const float*>(row_data(state, block, pos % state.block_size));
    window.values[window.rows] = row + static_cast<std::ptrdiff_t>(half) * dim;
    window.logits[window.rows] = row + static_cast<std::ptrdiff_t>(coff + half) * dim;
    ++window.rows;
  }
}

void store_entry(const CompressorCall& c, std::int64_t slot, float* row) {
  const bool exact = c.own.entries.format->nope == Element::kF32;
  const auto round = [&] {
    for (int i = 0; i < c.shape.dim && !exact; ++i) row[i] = to_float(to_bf16(row[i]));
  };
  round();
  if (c.shape.hadamard) {
    hadamard(row, c.shape.dim);
    round();
  }
  encode_row(c.own.entries, slot, row, c.problem.clamp);
}

}  // namespace smla
