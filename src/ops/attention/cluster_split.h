#pragma once

#include <algorithm>
#include <array>
#include <string>

#include "ops/attention/attention_split.h"

namespace smla {

/// How a call is cut whose parts of a list are the blocks of a cluster, which merges them without a second kernel.
struct ClusterSplit {
  static constexpr int kMostParts = 16;  ///< blocks of a cluster on sm_90; more than 8 have to be allowed
  static constexpr int kKeys = 64;       ///< of a tile; others are for less shared memory than these GPUs have
};

/// The portable tile of 64 keys with as many buffers as given. More than two are for a block that has a multiprocessor
/// to itself; their costs are guesses.
constexpr AttentionTile cluster_tile(int heads, int buffers, int key_cost) {
  for (AttentionTile tile : kAttentionTiles) {
    if (tile.heads != heads || tile.keys != ClusterSplit::kKeys) continue;
    if (buffers == tile.buffers) return tile;
    tile.buffers = buffers;
    tile.resident = 1;
    tile.alone.key = key_cost;
    return tile;
  }
  return {};
}
inline constexpr std::array<AttentionTile, 6> kClusterTiles{cluster_tile(16, 4, 38), cluster_tile(16, 2, 0),
                                                            cluster_tile(32, 4, 56), cluster_tile(32, 2, 0),
                                                            cluster_tile(64, 3, 95), cluster_tile(64, 2, 0)};

/// The split with the shortest estimated time, its tile an index into kClusterTiles; `tile` is -1 where none is shorter
/// than `portable`, the split with a merge of its own.
inline AttentionSplit split_into_clusters(const SparseAttention::Problem& p, const device::Gpu& gpu,
                                          const AttentionSplit& portable) {
  // Units of AttentionTile::Cost, about 1,280 a microsecond. An estimate: two barriers of a cluster and one round of
  // loads from other blocks' shared memory.
  constexpr std::int64_t kMergeCost = 1540;
  const std::int64_t together = std::min<std::int64_t>(gpu.multiprocessors, 16);  // multiprocessors that share clusters
  constexpr std::size_t kReserved = 1024;                                         // see split_attention
  const auto shared = static_cast<std::size_t>(gpu.shared_bytes);
  const int bytes = key_bytes(p);
  AttentionSplit best{.tile = -1, .cost = portable.cost};
  for (std::size_t index = 0; index < kClusterTiles.size(); ++index) {
    const AttentionTile& tile = kClusterTiles[index];
    const auto block = static_cast<std::size_t>(tile.shared_bytes(bytes));
    if (block > shared || (tile.heads > 16 && tile.heads >= 2 * p.heads)) continue;
    const auto fit = static_cast<std::int64_t>((shared + kReserved) / (block + kReserved));
    const std::int64_t resident = std::clamp<std::int64_t>(fit, 1, tile.resident);
    const std::int64_t steps = tiles_of_list(p, tile);
    const std::int64_t clusters = p.tokens * ((p.heads + tile.heads - 1) / tile.heads);
    for (std::int64_t parts = 1; parts <= std::min<std::int64_t>(steps, ClusterSplit::kMostParts); ++parts) {
      const bool alone = resident == 1 || clusters * parts <= gpu.multiprocessors;
      const AttentionTile::Cost& of = alone ? tile.alone : tile.co_resident;
      const std::int64_t places = together * (alone ? 1 : resident);
      const std::int64_t at_once =
          parts == 1 ? gpu.multiprocessors * (alone ? 1 : resident) : gpu.multiprocessors / together * (places / parts);
      if (at_once == 0) continue;
      const std::int64_t part = (steps + parts - 1) / parts * tile.keys;
      const std::int64_t merge = parts == 1 ? 0 : kMergeCost;
      const std::int64_t cost = (clusters + at_once - 1) / at_once * (part * of.key + of.block + merge);
      if (cost >= best.cost) continue;
      best = {.tile = static_cast<int>(index),
              .part_keys = part,
              .parts = std::max<std::int64_t>((steps * tile.keys + part - 1) / part, 1),
              .cost = cost};
    }
  }
  best.launch_tokens = AttentionSplit::tokens_of_launch(p.tokens, best.parts, p.heads);
  return best;
}

/// The split in words.
inline std::string describe_clusters(const AttentionSplit& split) {
  const AttentionTile& tile = kClusterTiles[static_cast<std::size_t>(split.tile)];
  const std::string text = "tiles of " + std::to_string(tile.heads) + " heads x " + std::to_string(tile.keys) +
                           " keys, " + std::to_string(tile.buffers) + " buffers, ";
  if (split.parts == 1) return text + "each list by one block for each tile of heads";
  return text + "lists in " + std::to_string(split.parts) + " parts of up to " + std::to_string(split.part_keys) +
         " keys, which a cluster of blocks adds up";
}

}  // namespace smla
