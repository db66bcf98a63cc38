#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace smla::projection {

// How many blocks of a cluster share the inputs of a tile in `sm90_stream`: a pure function of a weight's shape and of
// what runs at once, so that a weight's results depend neither on the rows nor on the other weights of a call.

/// Blocks of a cluster: 1, 2, 4, 8.
constexpr int kStreamClusters = 4;

/// Clusters of 1, 2, 4 and 8 blocks that run at once. 0: none does.
using ClustersAtOnce = std::array<std::int64_t, kStreamClusters>;

/// A weight of a call.
struct StreamedWeight {
  std::int64_t tiles = 0;       ///< of all groups, for one block of rows
  std::int64_t tile_bytes = 0;  ///< of a whole tile
};

/// What a launch would take, in ns, were the weight alone and 2^split blocks to share each tile. A block streams up to
/// 45 GB/s, all of them 4 TB/s; a tile's beginning and end cost 300 ns, and adding the sums of several blocks 600.
constexpr std::int64_t stream_time(const StreamedWeight& w, int split, std::int64_t clusters) {
  const std::int64_t rounds = (w.tiles + clusters - 1) / clusters;
  return std::max(w.tiles * w.tile_bytes / 4000, rounds * (w.tile_bytes >> split) / 45) +
         rounds * (split > 0 ? 900 : 300);
}

/// The `split` of a weight.
constexpr int stream_split(const StreamedWeight& w, const ClustersAtOnce& at_once) {
  int best = 0;
  const auto clusters = [&](int split) { return at_once[static_cast<std::size_t>(split)]; };
  for (int split = 1; split < kStreamClusters; ++split) {
    if (clusters(split) > 0 && stream_time(w, split, clusters(split)) < stream_time(w, best, clusters(best)))
      best = split;
  }
  return best;
}

}  // namespace smla::projection
