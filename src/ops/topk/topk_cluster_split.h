#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "device/gpu.h"
#include "sparsemla/ops/topk.h"

namespace smla {

/// How many blocks of a cluster share a row in TopK's `sm90`.
struct TopkClusters {
  std::int64_t together = 0;  ///< 0: a row does not fit
  std::int64_t columns = 0;   ///< that a block has room for

  static constexpr std::int64_t kMost = 16;
  static constexpr std::int64_t kEnough = 4096;  ///< columns of a block, below which more blocks do not help
  // Where clusters are faster than one block or several without a cluster (docs/kernels/topk.md).
  static constexpr std::int64_t kShortest = 32'769;
  static constexpr std::int64_t kLongest = 65'536;
  static constexpr std::int64_t kMostRows = 16;
};

/// Clusters of so many blocks that run at once where each block takes a multiprocessor: measured 66, 30, 15 and 7 on
/// 132 multiprocessors.
constexpr std::int64_t clusters_at_once(std::int64_t multiprocessors, std::int64_t together) {
  return together <= 2 ? multiprocessors / together : multiprocessors * 10 / (11 * together);
}

/// `fixed_bytes`: shared memory of a block, its columns apart.
constexpr TopkClusters topk_clusters(const TopK::Problem& p, const device::Gpu& gpu, std::int64_t fixed_bytes) {
  TopkClusters best;
  for (std::int64_t together = 1; together <= TopkClusters::kMost; together *= 2) {
    if (clusters_at_once(gpu.multiprocessors, together) < 1) break;
    const std::int64_t columns = ((p.width + together - 1) / together + 31) / 32 * 32;
    if (fixed_bytes + 4 * columns > static_cast<std::int64_t>(gpu.shared_bytes)) continue;
    // More blocks as long as all rows run at once and blocks have more columns than enough.
    const bool worthwhile =
        p.rows <= clusters_at_once(gpu.multiprocessors, together) &&
        (p.width + together / 2 - 1) / std::max<std::int64_t>(together / 2, 1) > TopkClusters::kEnough;
    if (best.together == 0 || worthwhile) best = {.together = together, .columns = columns};
  }
  return best;
}

/// Why another implementation is faster; empty where none is.
inline std::string shorter_way(const TopK::Problem& p) {
  if (p.width < TopkClusters::kShortest || p.width > TopkClusters::kLongest) {
    return std::to_string(p.width) + " columns; it is chosen for " + std::to_string(TopkClusters::kShortest) + " to " +
           std::to_string(TopkClusters::kLongest);
  }
  if (p.rows > TopkClusters::kMostRows) {
    return std::to_string(p.rows) + " rows; it is chosen for up to " + std::to_string(TopkClusters::kMostRows);
  }
  return "";
}

}  // namespace smla
