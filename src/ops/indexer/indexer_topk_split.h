#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/topk/topk_cluster_split.h"

namespace smla {

// How IndexerTopK's kernel of one launch (`sm90`) cuts a call: how many rows a cluster of blocks has, and how many
// blocks share their columns.

/// The shape of a call as its cut sees it.
struct SelectShape {
  std::int64_t rows = 0;
  std::int64_t sharing = 1;          ///< consecutive rows that may be of one request and so share keys
  std::int64_t width = 0;            ///< columns of the longest row
  std::int64_t unit_bytes = 0;       ///< shared memory of a row, its keys apart
  std::int64_t fixed_bytes = 0;      ///< and of a block
  std::int64_t shared_bytes = 0;     ///< what a block may have
  std::int64_t multiprocessors = 1;  ///< each runs one block

  constexpr bool uneven() const {
    return sharing > 8;
  }  ///< rows of one request (a prefill), each longer than the one before
};

struct SelectSplit {
  std::int64_t rows = 0;      ///< of a cluster; 0: the call cannot be computed in one launch
  std::int64_t together = 1;  ///< blocks of a cluster
  std::int64_t columns = 0;   ///< that a block has room for in each row
  double us = 0;              ///< estimated time
};

/// Microseconds of a call, by what was measured (docs/kernels/indexer_logits.md): a block takes 64 columns of its rows
/// in as many cycles as memory or products need; its beginning and the selection take 9 us and something for each
/// column.
constexpr double select_us(const SelectShape& s, std::int64_t rows, std::int64_t together) {
  constexpr double kCyclesPerUs = 1750;
  const std::int64_t groups = (s.rows + rows - 1) / rows;
  const std::int64_t at_once = std::max<std::int64_t>(clusters_at_once(s.multiprocessors, together), 1);
  const std::int64_t tiles = ((s.width + together - 1) / together + 63) / 64;
  const auto busy = static_cast<double>(std::min(groups, at_once) * together);
  const auto r = static_cast<double>(rows);
  const double tile = std::max(603 * busy / static_cast<double>(s.multiprocessors) + 241 * (r - 1), 100 + 370 * r);
  const double block = 9 + static_cast<double>(tiles) * (tile / kCyclesPerUs + 0.03 * r);
  const std::int64_t waves = (groups + at_once - 1) / at_once;
  return s.uneven() ? block * std::max(1.0, static_cast<double>(groups) / static_cast<double>(at_once) * 0.6)
                    : block * static_cast<double>(waves);
}

/// The cut with the shortest estimated time.
constexpr SelectSplit split_select(const SelectShape& s, std::int64_t most_rows, std::int64_t most_together) {
  SelectSplit best;
  for (std::int64_t rows = 1; rows <= std::min({s.sharing, most_rows, std::max<std::int64_t>(s.rows, 1)}); ++rows) {
    const std::int64_t left = s.shared_bytes - s.fixed_bytes - rows * s.unit_bytes;
    const std::int64_t room = left < 0 ? 0 : left / (4 * rows) / 64 * 64;
    for (std::int64_t together = 1; together <= most_together; together *= 2) {
      const std::int64_t columns = ((s.width + together - 1) / together + 63) / 64 * 64;
      if (columns > room || clusters_at_once(s.multiprocessors, together) < 1) continue;
      const double us = select_us(s, rows, together);
      if (best.rows == 0 || us < best.us) best = {.rows = rows, .together = together, .columns = columns, .us = us};
    }
  }
  return best;
}

}  // namespace smla
