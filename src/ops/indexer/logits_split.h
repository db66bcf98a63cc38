#pragma once

#include <algorithm>
#include <cstdint>

namespace smla {

/// The shape of a call of index scores as its cut sees it. A block computes the rows of a group over every parts-th run
/// of tiles of columns.
struct LogitsShape {
  std::int64_t groups = 0;    ///< groups of rows
  std::int64_t rows = 1;      ///< rows of a group
  std::int64_t runs = 0;      ///< runs of tiles in the longest row
  std::int64_t resident = 1;  ///< blocks that the GPU runs at once
  bool uneven = false;        ///< rows of one request (a prefill), each longer than the one before
};

/// The number of parts with the shortest estimated time. Blocks run in waves. A block lays out its queries and then,
/// for each run of tiles, widens the keys once and multiplies them with every row. Uneven rows get twice as many blocks
/// as run at once, so that short rows fill the gaps that long ones leave.
constexpr std::int64_t logits_parts(const LogitsShape& s) {
  constexpr std::int64_t kStart = 8;
  constexpr std::int64_t kStartRow = 2;
  constexpr std::int64_t kKeys = 4;
  constexpr std::int64_t kRow = 5;
  constexpr std::int64_t kMaxWaves = 4;
  constexpr std::int64_t kUnevenWaves = 2;
  if (s.groups <= 0 || s.runs <= 1) return 1;
  if (s.uneven) return std::clamp<std::int64_t>((kUnevenWaves * s.resident + s.groups - 1) / s.groups, 1, s.runs);
  std::int64_t best = 1;
  std::int64_t least = INT64_MAX;
  for (std::int64_t parts = 1; parts <= std::min(s.runs, kMaxWaves * s.resident / s.groups + 1); ++parts) {
    const std::int64_t waves = (s.groups * parts + s.resident - 1) / s.resident;
    const std::int64_t runs = (s.runs + parts - 1) / parts;
    const std::int64_t cost = waves * (kStart + kStartRow * s.rows + runs * (kKeys + kRow * s.rows));
    if (cost < least) best = parts, least = cost;
  }
  return best;
}

}  // namespace smla
