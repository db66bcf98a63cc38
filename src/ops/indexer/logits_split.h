#pragma once

#include <algorithm>
#include <cstdint>

namespace smla {

/// How the index scores of a call are cut: blocks have `rows` rows each and every parts-th run of tiles of their
/// columns.
struct LogitsShape {
  std::int64_t groups = 0;    ///< of rows
  std::int64_t rows = 1;      ///< of a group
  std::int64_t runs = 0;      ///< of tiles, in the longest row
  std::int64_t resident = 1;  ///< blocks that the machine holds at once
  bool uneven = false;        ///< rows of one request's keys, each longer than the one before
};

/// Parts that take the least time by a simple model: blocks go in waves, and one takes as long as laying its queries
/// out and its runs of tiles, for each of which keys are widened once and multiplied with every row. Uneven rows need
/// more blocks than places, so that short ones even out what long ones take.
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
