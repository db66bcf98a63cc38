#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace smla::projection {

// How many blocks of a cluster share the inputs of a tile in `sm90_stream`: a pure function of a weight's shape and of
// what runs at once, so that a weight's results depend neither on the rows nor on the other weights of a call.

/// Most blocks of a cluster.
constexpr int kMostSharing = 8;

/// Clusters of 1, 2, ... 8 blocks that run at once. 0: none does.
using ClustersAtOnce = std::array<std::int64_t, kMostSharing>;

/// A weight of a call.
struct StreamedWeight {
  std::int64_t tiles = 0;       ///< of all groups, for one block of rows
  std::int64_t tile_bytes = 0;  ///< of a whole tile
};

/// What a launch would take, in ns, were the weight alone and `sharing` blocks to share each tile. A block streams up
/// to 18 GB/s (measured with 64 rows), all of them 4 TB/s; a tile's beginning and end cost 300 ns, and adding the sums
/// of several blocks 1,200.
constexpr std::int64_t stream_time(const StreamedWeight& w, int sharing, std::int64_t clusters) {
  const std::int64_t rounds = (w.tiles + clusters - 1) / clusters;
  const std::int64_t of_block = (w.tile_bytes + sharing - 1) / sharing;
  return std::max(w.tiles * w.tile_bytes / 4000, rounds * of_block / 18) + rounds * (sharing > 1 ? 1500 : 300);
}

/// How many blocks share a tile of the weight.
constexpr int blocks_of_tile(const StreamedWeight& w, const ClustersAtOnce& at_once) {
  int best = 1;
  const auto clusters = [&](int sharing) { return at_once[static_cast<std::size_t>(sharing - 1)]; };
  for (int sharing = 2; sharing <= kMostSharing; ++sharing) {
    if (clusters(sharing) > 0 && stream_time(w, sharing, clusters(sharing)) < stream_time(w, best, clusters(best)))
      best = sharing;
  }
  return best;
}

}  // namespace smla::projection
