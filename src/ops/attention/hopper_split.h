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
  std::int64_t cost = 0;           ///< estimated time, comparable with that of AttentionSplit
  LengthCut cut;                   ///< for lists that the device finds to be of unlike lengths
  bool half_sums = false;          ///< parts' sums are fp16 numbers
  bool packs = false;              ///< as AttentionSplit::packs
  std::int64_t heads = 0;          ///< of a token, or of packed ones

  /// Most items of a block where lists are cut by length: it has found all of them before it begins with the first.
  static constexpr std::uint32_t kCutItems = 16;

  /// Whether each list is one part.
  bool whole() const { return parts == 1 && cut.extra == 0; }
  std::int64_t workspace_bytes() const {
    return std::max(launch_tokens * AttentionSplit::token_bytes(parts, heads),
                    AttentionSplit::cut_bytes(cut, launch_tokens, heads));
  }
};

inline std::string describe(const HopperSplit& split) {
  std::string tile = "tiles of 64 heads x 64 keys, ";
  if (split.packs) tile += describe_packed(split.heads);
  if (split.cut.extra > 0) return tile + describe(split.cut, split.workspace_bytes());
  if (split.parts == 1) return tile + "each list by one block for each tile of heads";
  return tile + "lists in " + std::to_string(split.parts) + " parts of up to " + std::to_string(split.part_keys) +
         " keys and a merge, " + std::to_string(split.workspace_bytes()) + " bytes of workspace";
}

/// Times of the Hopper kernel, in the unit of AttentionTile::Cost, 0.76 ns. Fitted to 60 decode cells of an H200
/// (docs/kernels/sparse_attention_sm90.md has them and how well they fit).
struct HopperCost {
  static constexpr std::int64_t kTile = 3'225;    ///< of a tile of 64 heads x 64 keys
  static constexpr std::int64_t kItem = 8'575;    ///< of an item, for everything but its tiles
  static constexpr std::int64_t kMerge = 3'300;   ///< a little more than fitted: of equal estimates, whole lists
  static constexpr std::int64_t kSums = 151;      ///< of writing and reading a hundred rows of fp32 sums
  static constexpr std::int64_t kHalfSums = 121;  ///< the same of fp16 sums
  static constexpr std::int64_t kCall = 3'000;    ///< of a call, beyond what one of the kernel for any GPU takes
  // Of bf16 rows, out of 40 cells of decode: their tiles are twice the bytes, and their key warps do not rehearse.
  static constexpr std::int64_t kBf16Tile = 4'400;
  static constexpr std::int64_t kBf16Call = 9'000;
  /// Norming and rotating an item's queries, beyond what the other kernel takes for it: of whole lists, and more where
  /// lists are cut. Out of nine layers of 16 to 128 requests.
  static constexpr std::int64_t kPrologue = 4'600;
  static constexpr std::int64_t kCutPrologue = 7'300;
  // Where rows are widened first, fitted to 4 cells of prefills; kWidenedCall and kEntries to 92 of an earlier version.
  static constexpr std::int64_t kWidenedTile = 2'203;
  static constexpr std::int64_t kWidenedItem = 8'707;
  static constexpr std::int64_t kWidenedCall = 35'800;
  static constexpr std::int64_t kEntries = 19;  ///< of marking a thousand entries of lists
  /// Calls of fewer tokens may be decode steps, whose requests share no rows.
  static constexpr std::int64_t kWidenedTokens = 1024;
};

/// split_for_hopper() of tokens that share no lists, or are packed. `fixed`: parts of AttentionSplit::kFixedPart
/// entries, so that a token's bits depend on its own lists alone. Otherwise the choice with the shortest estimated
/// time, of the multiprocessor with the most items and of a merge. `widened`: rows are widened first.
inline HopperSplit split_tokens_for_hopper(const SparseAttention::Problem& p, const device::Gpu& gpu, bool fixed,
                                           bool widened) {
  using Cost = HopperCost;
  std::int64_t tiles = 0;
  std::int64_t entries = 0;
  for (int s = 0; s < p.scopes; ++s) {
    const std::int64_t width = p.scope[static_cast<std::size_t>(s)].width;
    tiles += (width + HopperSplit::kTileKeys - 1) / HopperSplit::kTileKeys;
    entries += p.tokens * width;
  }
  tiles = std::max<std::int64_t>(tiles, 1);
  const std::int64_t rows = p.tokens * ((p.heads + HopperSplit::kTileHeads - 1) / HopperSplit::kTileHeads);
  const std::int64_t multiprocessors = std::max<std::int64_t>(gpu.multiprocessors, 1);
  const bool bf16 = key_layout(*p.scope[0].format).code_groups == 0;
  const std::int64_t of_tile = widened ? Cost::kWidenedTile : bf16 ? Cost::kBf16Tile : Cost::kTile;
  const std::int64_t of_call = bf16 ? Cost::kBf16Call : Cost::kCall;
  const std::int64_t of_item = (widened ? Cost::kWidenedItem : Cost::kItem) + (p.query_prologue ? Cost::kPrologue : 0);
  const std::int64_t cut_prologue = p.query_prologue ? Cost::kCutPrologue : 0;
  HopperSplit split;
  split.heads = p.heads;
  split.half_sums = AttentionSplit::takes_half_sums(p, fixed);
  const std::int64_t sums_cost = split.half_sums ? Cost::kHalfSums : Cost::kSums;
  std::int64_t part_tiles = AttentionSplit::kFixedPart / HopperSplit::kTileKeys;
  if (!fixed) {
    std::int64_t best = -1;
    for (std::int64_t parts = 1; parts <= std::min(tiles, AttentionSplit::kMaxParts); ++parts) {
      if (parts > 1 && rows >= 8 * multiprocessors) break;
      const std::int64_t of_part = (tiles + parts - 1) / parts;
      std::int64_t cost = (rows * parts + multiprocessors - 1) / multiprocessors * (of_part * of_tile + of_item);
      if (parts > 1) cost += Cost::kMerge + p.tokens * p.heads * parts * sums_cost / 100 + cut_prologue;
      if (best >= 0 && cost >= best) continue;
      best = cost;
      part_tiles = of_part;
    }
    split.cost = best + (widened ? Cost::kWidenedCall + entries * Cost::kEntries / 1000 : of_call);
  }
  split.parts = (tiles + part_tiles - 1) / part_tiles;
  split.part_keys = part_tiles * HopperSplit::kTileKeys;
  split.launch_tokens = AttentionSplit::tokens_of_launch(p.tokens, split.parts, p.heads);
  if (!fixed && !widened) {
    split.cut.alone = {.at_once = static_cast<std::uint32_t>(multiprocessors),
                       .tile = static_cast<float>(of_tile),
                       .block = static_cast<float>(of_item)};
    split.cut.crowded = split.cut.alone;
    split.cut.merge = static_cast<float>(Cost::kMerge);
    split.cut.sums = static_cast<float>(p.heads * sums_cost) / 100;
    const std::int64_t head_tiles = (p.heads + HopperSplit::kTileHeads - 1) / HopperSplit::kTileHeads;
    split.cut.extra = room_by_length(p,
                                     {.tiles = tiles,
                                      .parts = split.parts,
                                      .head_tiles = head_tiles,
                                      .head_bytes = AttentionSplit::kSumBytes + AttentionSplit::kStateBytes,
                                      .most_bytes = AttentionSplit::kScratchBytes},
                                     split.cut);
    const std::int64_t items = (p.tokens + split.cut.extra) * head_tiles;
    if (items > HopperSplit::kCutItems * multiprocessors) split.cut.extra = 0;
  }
  return split;
}

/// The split of a call. `widened`: its tokens share no lists.
inline HopperSplit split_for_hopper(const SparseAttention::Problem& p, const device::Gpu& gpu, bool fixed,
                                    bool widened = false) {
  const auto split = [&](const SparseAttention::Problem& of) {
    return split_tokens_for_hopper(of, gpu, fixed, widened);
  };
  if (p.tokens_per_list == 1) return split(p);
  // The kernels cut lists by length only where each token has its own, or where they are packed.
  const auto alone = [&](const SparseAttention::Problem& of) {
    HopperSplit alike = split(of);
    alike.cut.extra = 0;
    return alike;
  };
  return split_shared_lists<HopperSplit>(p, fixed, alone, split);
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
