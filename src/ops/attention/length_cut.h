#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "sparsemla/ops/attention.h"

namespace smla {

/// How a kernel cuts key lists whose lengths only the device knows (length_cut.cuh): the host says how many parts there
/// is room for and what they cost, the kernel finds one number of tiles for all parts of the call. A list that is no
/// longer than that stays whole, and its block writes the output.
struct LengthCut {
  /// Times in the unit of AttentionTile::Cost, of blocks of which `at_once` run at a time.
  struct Blocks {
    std::uint32_t at_once = 1;
    float tile = 0;   ///< of a tile of keys
    float block = 0;  ///< of a block, for everything else
  };

  static constexpr std::int64_t kMostTokens = 512;
  static constexpr std::int64_t kMostTiles = std::int64_t{1} << 22;  ///< of a list; fp32 divides them exactly
  /// A call of one token, or whose lists are not cut when all are as long as they may be, is cut by length if a whole
  /// list takes at least as long as so many merges: up to one may be lost where the merge finds nothing to do.
  static constexpr std::int64_t kMergesOfAList = 32;

  std::uint32_t extra = 0;  ///< parts that there is room for besides one for each token; 0: lists are cut alike
  Blocks alone;             ///< while no more blocks than these run at once
  Blocks crowded;           ///< otherwise
  float merge = 0;          ///< of a merge
  float sums = 0;           ///< of a part's sums, of all heads

  /// Parts whose sums the workspace holds, of `tokens` tokens. A list of one part has none there.
  constexpr std::int64_t rows(std::int64_t tokens) const { return std::min<std::int64_t>(tokens + extra, 2 * extra); }
  /// Bytes of what the merge is told (TileCall::cuts).
  static constexpr std::int64_t cut_bytes(std::int64_t tokens) { return 8 * (tokens + 1); }
};

/// The cut in words; `bytes`: of workspace.
inline std::string describe(const LengthCut& cut, std::int64_t bytes) {
  return "lists in parts by their lengths, up to " + std::to_string(cut.extra) + " more than tokens, and a merge, " +
         std::to_string(bytes) + " bytes of workspace";
}

/// What a split gives to room_by_length().
struct AlikeSplit {
  std::int64_t tiles = 0;  ///< of the longest list
  std::int64_t parts = 1;
  std::int64_t head_tiles = 1;
  std::int64_t head_bytes = 0;  ///< of a part's sums of one head
  std::int64_t most_bytes = 0;  ///< of workspace
};

/// The room for parts by length: at least that of lists that are cut alike, and for as many parts more as blocks run at
/// once. 0 where nothing is gained by it.
constexpr std::uint32_t room_by_length(const SparseAttention::Problem& p, const AlikeSplit& alike,
                                       const LengthCut& cut) {
  const std::int64_t tokens = p.tokens;
  if (tokens < 1 || tokens > LengthCut::kMostTokens || alike.tiles < 2 || alike.tiles >= LengthCut::kMostTiles)
    return 0;
  const bool long_lists =
      cut.alone.tile * static_cast<float>(alike.tiles) >= cut.merge * static_cast<float>(LengthCut::kMergesOfAList);
  if ((alike.parts == 1 || tokens == 1) && !long_lists) return 0;
  const std::int64_t one_wave = (cut.crowded.at_once + alike.head_tiles - 1) / alike.head_tiles;
  std::int64_t extra = std::max(tokens * (alike.parts - 1), one_wave);
  const std::int64_t fits = (alike.most_bytes - LengthCut::cut_bytes(tokens)) / (p.heads * alike.head_bytes);
  if (std::min(tokens + extra, 2 * extra) > fits) extra = std::max(fits - tokens, fits / 2);
  // Fewer would cut lists that are alike into fewer parts than now.
  return extra < std::max<std::int64_t>(tokens * (alike.parts - 1), 1) ? 0 : static_cast<std::uint32_t>(extra);
}

}  // namespace smla
