#pragma once

#include "ops/attention/attention_split.h"

namespace smla {

/// The kernels for Hopper: of 64 heads over rows as their caches store them, or over rows that are widened first, and
/// of fewer heads.
enum class HopperKind { kStored, kWidened, kFew };

/// How a Hopper kernel cuts a call: key lists into parts, which with heads and tokens are its items.
struct HopperSplit {
  static constexpr std::int64_t kTileHeads = 64;  ///< but for those of HopperKind::kFew
  static constexpr std::int64_t kTileKeys = 64;

  std::int64_t tile_heads = kTileHeads;
  std::int64_t part_keys = 0;
  std::int64_t parts = 1;
  std::int64_t launch_tokens = 0;  ///< tokens of a launch; the next launch uses the same workspace
  std::int64_t cost = 0;           ///< estimated time, comparable with that of AttentionSplit
  LengthCut cut;                   ///< for lists that the device finds to be of unlike lengths
  bool half_sums = false;          ///< parts' sums are fp16 numbers

  /// Most items of a block where lists are cut by length: it has a warp for each.
  static constexpr std::uint32_t kCutItems = 16;

  std::int64_t head_tiles(std::int64_t heads) const { return (heads + tile_heads - 1) / tile_heads; }
  std::int64_t workspace_bytes(std::int64_t heads) const {
    return std::max(launch_tokens * AttentionSplit::token_bytes(parts, heads),
                    AttentionSplit::cut_bytes(cut, launch_tokens, heads));
  }
};

inline std::string describe(const HopperSplit& split, const SparseAttention::Problem& p) {
  const std::string tile = "tiles of " + std::to_string(split.tile_heads) + " heads x 64 keys, ";
  if (split.cut.extra > 0) return tile + describe(split.cut, split.workspace_bytes(p.heads));
  if (split.parts == 1) return tile + "each list by one block for each tile of heads";
  return tile + "lists in " + std::to_string(split.parts) + " parts of up to " + std::to_string(split.part_keys) +
         " keys and a merge, " + std::to_string(split.workspace_bytes(p.heads)) + " bytes of workspace";
}

/// Times of a Hopper kernel, in the unit of AttentionTile::Cost, 0.76 ns
/// (docs/kernels/sparse_attention_sm90.md says what they were fitted to, and how well they fit).
struct HopperCost {
  std::int64_t tile;         ///< of a tile of so many heads x 64 keys
  std::int64_t item;         ///< of an item, for everything but its tiles
  std::int64_t call;         ///< of a call, beyond what one of the kernel for any GPU takes
  std::int64_t entries = 0;  ///< of marking a thousand entries of lists
  /// Norming and rotating an item's queries, beyond what the other kernel takes for it: of whole lists, and more where
  /// lists are cut. Out of nine layers of 16 to 128 requests.
  std::int64_t prologue = 4'600;
  std::int64_t cut_prologue = 7'300;

  static constexpr std::int64_t kMerge = 3'300;   ///< a little more than fitted: of equal estimates, whole lists
  static constexpr std::int64_t kSums = 151;      ///< of writing and reading a hundred rows of fp32 sums
  static constexpr std::int64_t kHalfSums = 121;  ///< the same of fp16 sums
  /// Calls of fewer tokens may be decode steps, whose requests share no rows, and then rows are not widened first.
  static constexpr std::int64_t kWidenedTokens = 1024;

  static constexpr HopperCost of(HopperKind kind, std::int64_t tile_heads) {
    switch (kind) {
      case HopperKind::kStored: return {.tile = 3'225, .item = 8'575, .call = 3'000};
      case HopperKind::kWidened: return {.tile = 2'203, .item = 8'707, .call = 35'800, .entries = 19};
      case HopperKind::kFew: break;
    }
    return {.tile = 1'900 + 10 * tile_heads, .item = 5'000, .call = 2'000, .prologue = 0, .cut_prologue = 0};
  }
};

/// Chooses the tile of heads, where there are several, and the number of parts. `fixed`: the least tile that holds all
/// heads, and parts of AttentionSplit::kFixedPart entries, so that a token's bits depend on its own lists alone.
/// Otherwise the choice with the shortest estimated time, of the multiprocessor with the most items and of a merge.
inline HopperSplit split_for_hopper(const SparseAttention::Problem& p, const device::Gpu& gpu, bool fixed,
                                    HopperKind kind) {
  std::int64_t tiles = 0;
  std::int64_t entries = 0;
  for (int s = 0; s < p.scopes; ++s) {
    const std::int64_t width = p.scope[static_cast<std::size_t>(s)].width;
    tiles += (width + HopperSplit::kTileKeys - 1) / HopperSplit::kTileKeys;
    entries += p.tokens * width;
  }
  tiles = std::max<std::int64_t>(tiles, 1);
  const std::int64_t multiprocessors = std::max<std::int64_t>(gpu.multiprocessors, 1);
  const bool half_sums = AttentionSplit::takes_half_sums(p, fixed);
  const std::int64_t sums_cost = half_sums ? HopperCost::kHalfSums : HopperCost::kSums;
  HopperSplit split{.half_sums = half_sums};
  std::int64_t part_tiles = AttentionSplit::kFixedPart / HopperSplit::kTileKeys;
  if (kind == HopperKind::kFew) {
    split.tile_heads = 8;
    while (split.tile_heads < std::min<std::int64_t>(p.heads, 32)) split.tile_heads *= 2;
  }
  if (!fixed) {
    std::int64_t best = -1;
    for (std::int64_t tile_heads = split.tile_heads; tile_heads >= 8; tile_heads /= 2) {
      const HopperCost cost = HopperCost::of(kind, tile_heads);
      const std::int64_t of_item = cost.item + (p.query_prologue ? cost.prologue : 0);
      const std::int64_t rows = p.tokens * ((p.heads + tile_heads - 1) / tile_heads);
      for (std::int64_t parts = 1; parts <= std::min(tiles, AttentionSplit::kMaxParts); ++parts) {
        if (parts > 1 && rows >= 8 * multiprocessors) break;
        const std::int64_t of_part = (tiles + parts - 1) / parts;
        std::int64_t all = (rows * parts + multiprocessors - 1) / multiprocessors * (of_part * cost.tile + of_item);
        if (parts > 1) {
          all += HopperCost::kMerge + p.tokens * p.heads * parts * sums_cost / 100 +
                 (p.query_prologue ? cost.cut_prologue : 0);
        }
        if (best >= 0 && all >= best) continue;
        best = all;
        part_tiles = of_part;
        split.tile_heads = tile_heads;
        split.cost = all + cost.call + entries * cost.entries / 1000;
      }
      if (kind != HopperKind::kFew) break;
    }
  }
  split.parts = (tiles + part_tiles - 1) / part_tiles;
  split.part_keys = part_tiles * HopperSplit::kTileKeys;
  split.launch_tokens = AttentionSplit::tokens_of_launch(p.tokens, split.parts, p.heads);
  if (!fixed && kind != HopperKind::kWidened) {
    const HopperCost cost = HopperCost::of(kind, split.tile_heads);
    split.cut.alone = {.at_once = static_cast<std::uint32_t>(multiprocessors),
                       .tile = static_cast<float>(cost.tile),
                       .block = static_cast<float>(cost.item + (p.query_prologue ? cost.prologue : 0))};
    split.cut.crowded = split.cut.alone;
    split.cut.merge = static_cast<float>(HopperCost::kMerge);
    split.cut.sums = static_cast<float>(p.heads * sums_cost) / 100;
    split.cut.extra = room_by_length(p,
                                     {.tiles = tiles,
                                      .parts = split.parts,
                                      .head_tiles = split.head_tiles(p.heads),
                                      .head_bytes = AttentionSplit::kSumBytes + AttentionSplit::kStateBytes,
                                      .most_bytes = AttentionSplit::kScratchBytes},
                                     split.cut);
    const std::int64_t items = (p.tokens + split.cut.extra) * split.head_tiles(p.heads);
    if (items > HopperSplit::kCutItems * multiprocessors) split.cut.extra = 0;
  }
  return split;
}

/// Estimated times of a call as text: "31.4 us, 27.0 us with cuda".
inline std::string compare_costs(std::int64_t cost, std::int64_t other, const char* name) {
  const auto words = [](std::int64_t units) {
    // A call of the kernel for any GPU takes 2.3 us beyond its estimate.
    const std::int64_t nanoseconds = 2300 + units * 758 / 1000;
    const std::int64_t tenths = (nanoseconds + 50) / 100;
    return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " us";
  };
  return words(cost) + ", " + words(other) + " with " + name;
}

}  // namespace smla
