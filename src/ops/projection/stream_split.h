#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace smla::projection {

// How many blocks of a cluster share the inputs of a tile in `sm90_stream`: a pure function of a weight's shape and of
// what runs at once, so that a weight's results do not depend on the other weights of a call. And how many stages of
// weights a block has on their way, which no result depends on.

/// Most blocks of a cluster.
constexpr int kMostSharing = 8;

/// Clusters of 1, 2, ... 8 blocks that run at once. 0: none does.
using ClustersAtOnce = std::array<std::int64_t, kMostSharing>;

/// What runs at once.
struct StreamRoom {
  ClustersAtOnce clusters{};
  ClustersAtOnce single{};  ///< with one block a multiprocessor
  std::int64_t rate = 1;    ///< GB/s that a block streams, measured
  std::int64_t most = 31;   ///< GB/s that a multiprocessor streams, measured
};

/// A weight of a call.
struct StreamedWeight {
  std::int64_t tiles = 0;       ///< of all groups and blocks of rows
  std::int64_t tile_bytes = 0;  ///< of a whole tile
  std::int64_t bytes = 0;       ///< of the weight
};

/// Clusters that room for two blocks a multiprocessor is taken to be short of, at most.
constexpr std::int64_t kSpare = 3;

/// What a launch would take, in ns, were the weight alone and `sharing` blocks to share each tile. All multiprocessors
/// together stream 4 TB/s; a tile's beginning and end cost 300 ns, and adding the sums of several blocks
/// 1,200. Where two blocks a multiprocessor leave room for no more than two clusters, some have been seen to take a
/// second round.
constexpr std::int64_t stream_time(const StreamedWeight& w, int sharing, const StreamRoom& room) {
  const auto of = static_cast<std::size_t>(sharing - 1);
  const std::int64_t most = room.clusters[of];
  const bool crowded = std::min(w.tiles, most) > room.single[of];
  const std::int64_t at_once = std::min(w.tiles, crowded && sharing > 1 ? most - std::min(most / 8, kSpare) : most);
  const std::int64_t rounds = (w.tiles + at_once - 1) / at_once;
  const std::int64_t blocks = crowded ? 2 : 1;
  const std::int64_t of_multiprocessor = blocks * ((w.tile_bytes + sharing - 1) / sharing);
  const std::int64_t rate = std::min(room.most, blocks * room.rate);
  return std::max(w.bytes / 4000, rounds * of_multiprocessor / rate) + rounds * (sharing > 1 ? 1500 : 300);
}

/// How many blocks share a tile of the weight.
constexpr int blocks_of_tile(const StreamedWeight& w, const StreamRoom& room) {
  int best = 1;
  for (int sharing = 2; sharing <= kMostSharing; ++sharing) {
    if (room.clusters[static_cast<std::size_t>(sharing - 1)] > 0 &&
        stream_time(w, sharing, room) < stream_time(w, best, room))
      best = sharing;
  }
  return best;
}

/// How many stages of 16 KiB of weights a block has on their way at a time, of a ring of `deep`. Four for a
/// multiprocessor are 2.4 us of its share of memory: with fewer, memory is not always busy, and behind more, whatever
/// else the multiprocessor loads comes late. `alone`: blocks that run at once with one for each multiprocessor.
constexpr int stages_under_way(std::int64_t blocks, std::int64_t alone, int deep) {
  constexpr std::int64_t kOfMultiprocessor = 4;
  constexpr std::int64_t kLeast = 2;
  const std::int64_t share = (kOfMultiprocessor * alone + blocks / 2) / std::max<std::int64_t>(blocks, 1);
  return static_cast<int>(std::clamp<std::int64_t>(share, std::min<std::int64_t>(kLeast, deep), deep));
}

}  // namespace smla::projection
