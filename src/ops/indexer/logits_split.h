#pragma once

#include <algorithm>
#include <cstdint>

namespace smla {

/// What a block's work takes, one against the other.
struct LogitsCosts {
  std::int64_t start = 8;      ///< of a block
  std::int64_t start_row = 2;  ///< of a row's queries
  std::int64_t keys = 4;       ///< to bring a run's keys
  std::int64_t row = 5;        ///< to multiply a run's keys with a row
};
/// Of the Hopper kernel, in units of 500 cycles (docs/kernels/indexer_logits.md).
constexpr LogitsCosts kHopperLogitsCosts{.start = 8, .start_row = 1, .keys = 5, .row = 1};

/// The shape of a call of index scores as its cut sees it. A block computes the rows of a group over every parts-th run
/// of tiles of columns.
struct LogitsShape {
  std::int64_t groups = 0;    ///< groups of rows
  std::int64_t rows = 1;      ///< rows of a group
  std::int64_t runs = 0;      ///< runs of tiles in the longest row
  std::int64_t resident = 1;  ///< blocks that the GPU runs at once
  bool uneven = false;        ///< rows of one request (a prefill), each longer than the one before
  LogitsCosts costs;          ///< of the kernel
};

/// The number of parts with the shortest estimated time. Blocks run in waves. A block lays out its queries and then,
/// for each run of tiles, widens the keys once and multiplies them with every row. Uneven rows get about twice as many
/// blocks as run at once, so that short rows fill the gaps that long ones leave: more rather than fewer, unless a wave
/// more takes longer than a part less.
constexpr std::int64_t logits_parts(const LogitsShape& s) {
  constexpr std::int64_t kMaxWaves = 4;
  constexpr std::int64_t kUnevenWaves = 2;
  if (s.groups <= 0 || s.runs <= 1) return 1;
  if (s.uneven) {
    const std::int64_t more = (kUnevenWaves * s.resident + s.groups - 1) / s.groups;
    const std::int64_t fewer = std::max<std::int64_t>(more - 1, 1);
    const auto waves = [&s](std::int64_t parts) { return (s.groups * parts + s.resident - 1) / s.resident; };
    return std::clamp<std::int64_t>(waves(fewer) * more < waves(more) * fewer ? fewer : more, 1, s.runs);
  }
  std::int64_t best = 1;
  std::int64_t least = INT64_MAX;
  for (std::int64_t parts = 1; parts <= std::min(s.runs, kMaxWaves * s.resident / s.groups + 1); ++parts) {
    const std::int64_t waves = (s.groups * parts + s.resident - 1) / s.resident;
    const std::int64_t runs = (s.runs + parts - 1) / parts;
    const std::int64_t cost =
        waves * (s.costs.start + s.costs.start_row * s.rows + runs * (s.costs.keys + s.costs.row * s.rows));
    if (cost < least) best = parts, least = cost;
  }
  return best;
}

}  // namespace smla
