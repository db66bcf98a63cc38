#pragma once

#include "ops/attention/attention_split.h"

namespace smla {

/// How the Hopper kernel cuts a call: key lists into parts, which with heads and tokens are its items.
struct HopperSplit {
  static constexpr std::int64_t kTileHeads = 64;
  static constexpr std::int64_t kTileKeys = 64;

  std::int64_t part_keys = 0;
  std::int64_t parts = 1;
  std::int64_t launch_tokens = 0;  ///< tokens of a launch; the next launch uses the same workspace

  std::int64_t workspace_bytes(std::int64_t heads) const {
    return launch_tokens * AttentionSplit::token_bytes(parts, heads);
  }
};

inline std::string describe(const HopperSplit& split, const SparseAttention::Problem& p) {
  const std::string tile = "tiles of 64 heads x 64 keys, ";
  if (split.parts == 1) return tile + "each list by one block for each tile of heads";
  return tile + "lists in " + std::to_string(split.parts) + " parts of up to " + std::to_string(split.part_keys) +
         " keys and a merge, " + std::to_string(split.workspace_bytes(p.heads)) + " bytes of workspace";
}

/// Chooses the number of parts. `fixed`: parts of AttentionSplit::kFixedPart entries, so that a token's bits depend on
/// its own lists alone. Otherwise the choice with the shortest estimated time, of the multiprocessor with the most
/// items and of a merge.
inline HopperSplit split_for_hopper(const SparseAttention::Problem& p, const device::Gpu& gpu, bool fixed) {
  // In hundredths of the time of a tile of keys. Estimates from before it was measured (docs/kernels/
  // sparse_attention_sm90.md has 2.5 us a tile and 9 us an item), which is too few for an item.
  constexpr std::int64_t kTile = 100;
  constexpr std::int64_t kItem = 120;
  constexpr std::int64_t kMerge = 200;
  constexpr std::int64_t kSums = 1;  // of writing and reading 64 rows of sums
  std::int64_t tiles = 0;
  for (int s = 0; s < p.scopes; ++s)
    tiles += (p.scope[static_cast<std::size_t>(s)].width + HopperSplit::kTileKeys - 1) / HopperSplit::kTileKeys;
  tiles = std::max<std::int64_t>(tiles, 1);
  const std::int64_t rows = p.tokens * ((p.heads + HopperSplit::kTileHeads - 1) / HopperSplit::kTileHeads);
  const std::int64_t multiprocessors = std::max<std::int64_t>(gpu.multiprocessors, 1);
  HopperSplit split;
  std::int64_t part_tiles = AttentionSplit::kFixedPart / HopperSplit::kTileKeys;
  if (!fixed) {
    std::int64_t best = -1;
    for (std::int64_t parts = 1; parts <= std::min(tiles, AttentionSplit::kMaxParts); ++parts) {
      if (parts > 1 && rows >= 8 * multiprocessors) break;
      const std::int64_t of_part = (tiles + parts - 1) / parts;
      std::int64_t cost = (rows * parts + multiprocessors - 1) / multiprocessors * (of_part * kTile + kItem);
      if (parts > 1) cost += kMerge + rows * parts * kSums;
      if (best >= 0 && cost >= best) continue;
      best = cost;
      part_tiles = of_part;
    }
  }
  split.parts = (tiles + part_tiles - 1) / part_tiles;
  split.part_keys = part_tiles * HopperSplit::kTileKeys;
  split.launch_tokens = AttentionSplit::tokens_of_launch(p.tokens, split.parts, p.heads);
  return split;
}

}  // namespace smla
