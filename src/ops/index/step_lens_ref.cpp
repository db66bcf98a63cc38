#include <algorithm>

#include "ops/index/implementations.h"
#include "ops/index/visible.h"

namespace smla {

void visible_entries_ref(const VisibleEntries::Problem& problem, const VisibleEntries::Args& args,
                         const RunContext& /*context*/) {
  const auto* positions = args.positions.as<std::int64_t>();
  const auto* slots = args.slot_mapping.as<std::int64_t>();
  for (std::int64_t t = 0; t < problem.tokens; ++t) {
    const bool valid = slots[t] >= 0;
    const std::int64_t seen = valid ? problem.share.count(visible_entries(positions[t], problem.ratio, INT32_MAX)) : 0;
    if (!args.valid.absent()) args.valid.as<bool>()[t] = valid;
    if (!args.lens.absent()) args.lens.as<std::int32_t>()[t] = static_cast<std::int32_t>(seen);
    if (!args.topk_lens.absent())
      args.topk_lens.as<std::int32_t>()[t] = static_cast<std::int32_t>(std::min(seen, problem.top_k));
  }
}

void prefill_lens_ref(const PrefillLens::Problem& problem, const PrefillLens::Args& args,
                      const RunContext& /*context*/) {
  const auto* start = args.query_start_loc.as<std::int32_t>();
  const auto* seq_lens = args.seq_lens.as<std::int32_t>();
  for (std::int64_t r = problem.decodes; r < problem.requests; ++r) {
    const std::int64_t query = std::max<std::int64_t>(static_cast<std::int64_t>(start[r + 1]) - start[r], 0);
    const std::int64_t seq = seq_lens[r];
    const std::int64_t gathered = query + std::clamp<std::int64_t>(seq - query, 0, problem.window - 1);
    const std::int64_t at = r - problem.decodes;
    if (!args.gather_lens.absent())
      args.gather_lens.as<std::int32_t>()[at] = static_cast<std::int32_t>(std::min<std::int64_t>(gathered, INT32_MAX));
    if (!args.entry_counts.absent()) {
      args.entry_counts.as<std::int32_t>()[at] =
          static_cast<std::int32_t>(std::max<std::int64_t>(seq, 0) / problem.ratio);
    }
  }
}

void draft_positions_ref(const DraftPositions::Problem& problem, const DraftPositions::Args& args,
                         const RunContext& /*context*/) {
  for (std::int64_t r = 0; r < problem.requests; ++r) {
    const std::int64_t length = args.seq_lens.as<std::int32_t>()[r];
    const std::int64_t next = length > 0 ? std::min<std::int64_t>(length + problem.longer, INT32_MAX) : length;
    args.positions.as<std::int64_t>()[r] = next - 1;
    if (!args.next_lens.absent()) args.next_lens.as<std::int32_t>()[r] = static_cast<std::int32_t>(next);
  }
}

}  // namespace smla
