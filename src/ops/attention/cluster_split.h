#pragma once

#include <algorithm>
#include <string>

#include "ops/attention/attention_split.h"

namespace smla {

/// How a call is cut whose parts of a list are the blocks of a cluster, which merges them without a second kernel.
struct ClusterSplit {
  static constexpr int kMostParts = 16;  ///< blocks of a cluster on sm_90; more than 8 have to be allowed
  static constexpr int kKeys = 64;       ///< of a tile; others are for less shared memory than these GPUs have
};

/// The split with the shortest estimated time; `parts` is 1 where none is shorter than `portable`, the split with a
/// merge of its own.
inline AttentionSplit split_into_clusters(const SparseAttention::Problem& p, const device::Gpu& gpu,
                                          const AttentionSplit& portable) {
  // Units of AttentionTile::Cost, about 1,280 a microsecond. An estimate: two barriers of a cluster and one round of
  // loads from other blocks' shared memory.
  constexpr std::int64_t kMergeCost = 1540;
  constexpr std::int64_t kTogether = 16;  // multiprocessors that share clusters
  const int bytes = key_bytes(p);
  AttentionSplit best{.parts = 1, .cost = portable.cost};
  for (const int heads : {16, 32, 64}) {
    const int index = attention_tile(heads, bytes, gpu.shared_bytes);
    if (index < 0) continue;
    const AttentionTile& tile = kAttentionTiles[static_cast<std::size_t>(index)];
    if (tile.heads != heads || tile.keys != ClusterSplit::kKeys || (heads > 16 && heads >= 2 * p.heads)) continue;
    const std::int64_t steps = tiles_of_list(p, tile);
    const std::int64_t clusters = p.tokens * ((p.heads + heads - 1) / heads);
    for (std::int64_t parts = 2; parts <= std::min<std::int64_t>(steps, ClusterSplit::kMostParts); ++parts) {
      const bool alone = tile.resident == 1 || clusters * parts <= gpu.multiprocessors;
      const AttentionTile::Cost& of = alone ? tile.alone : tile.co_resident;
      const std::int64_t places = kTogether * (alone ? 1 : tile.resident);
      const std::int64_t at_once = std::max<std::int64_t>(gpu.multiprocessors / kTogether, 1) * (places / parts);
      if (at_once == 0) continue;
      const std::int64_t part = (steps + parts - 1) / parts * tile.keys;
      const std::int64_t cost = (clusters + at_once - 1) / at_once * (part * of.key + of.block + kMergeCost);
      if (cost >= best.cost) continue;
      best = {.tile = index, .part_keys = part, .parts = (steps * tile.keys + part - 1) / part, .cost = cost};
    }
  }
  best.launch_tokens = AttentionSplit::tokens_of_launch(p.tokens, best.parts, p.heads);
  return best;
}

/// The split in words.
inline std::string describe_clusters(const AttentionSplit& split) {
  const AttentionTile& tile = kAttentionTiles[static_cast<std::size_t>(split.tile)];
  return "tiles of " + std::to_string(tile.heads) + " heads x " + std::to_string(tile.keys) + " keys, lists in " +
         std::to_string(split.parts) + " parts of up to " + std::to_string(split.part_keys) +
         " keys, which a cluster of blocks adds up";
}

}  // namespace smla
