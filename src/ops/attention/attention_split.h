#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "device/gpu.h"
#include "ops/attention/length_cut.h"
#include "sparsemla/ops/attention.h"

namespace smla {

/// The tile of a block of the tensor-core kernel: how many heads of q it holds in shared memory, and how many keys, in
/// each of two buffers, as their cache stores them. The block's eight warps divide the scores of a tile of keys by
/// heads x keys x dims, and the output by columns.
struct AttentionTile {
  static constexpr int kWarps = 8;
  static constexpr int kDim = 512;
  static constexpr int kGroup = 64;  ///< dims that share a scale; columns of the output that a warp has
  static constexpr int kGroups = kDim / kGroup;
  static constexpr int kBuffers = 2;
  static constexpr int kMostKeys = 64;  ///< of a tile

  int heads = 0;
  int keys = 0;
  int head_warps = 1;
  int key_warps = 1;
  int dim_warps = 1;
  int resident = 1;  ///< most blocks on a multiprocessor, by registers
  /// Measured time of a block, in hundredths of the time that a block of 64 heads takes for one key: `key` for each of
  /// its keys, and `block` once, for everything else.
  struct Cost {
    int key = 100;
    int block = 9750;
  };
  Cost alone;        ///< while the block has a multiprocessor to itself
  Cost co_resident;  ///< while a second block runs on the same multiprocessor

  /// Whether registers suffice for lists that are cut by length: on sm_120 not with 16 heads x 32 keys, nor with 64 x
  /// 64, for which its shared memory does not suffice either.
  constexpr bool cuts_by_length(int capability) const {
    return capability < 120 || !((heads == 16 && keys == 32) || (heads == 64 && keys == 64));
  }
  constexpr int row_bytes() const { return 2 * kDim; }  ///< bytes of a head of q
  /// Bytes of a row of scores (fp32, later weights in fp16), padded so that eight rows begin in different banks.
  constexpr int score_row_bytes() const { return 4 * keys + 16; }
  constexpr int scores_at() const { return heads * row_bytes(); }
  constexpr int factors_at() const { return scores_at() + dim_warps * heads * score_row_bytes(); }
  constexpr int buffers_at() const { return (factors_at() + 4 * heads + 127) / 128 * 128; }

  constexpr int buffer_bytes(int key_bytes) const { return (keys * key_bytes + 127) / 128 * 128; }
  /// Shared memory of a block for keys of at most `key_bytes` bytes.
  constexpr int shared_bytes(int key_bytes) const {
    return buffers_at() + kBuffers * buffer_bytes(key_bytes) + kOwnBytes;
  }
  static constexpr int kOwnBytes = 128;
};

/// How a buffer stores keys. Each part comes for all keys together: e4m3 codes; the other numbers, in fp16; a scale for
/// each group; and whether the list names a key.
struct KeyLayout {
  int code_groups = 0;  ///< groups of 64 dims that are stored as codes

  constexpr int code_bytes() const { return code_groups > 0 ? AttentionTile::kDim : 0; }
  constexpr int half_bytes() const { return (AttentionTile::kGroups - code_groups) * 2 * AttentionTile::kGroup; }
  constexpr int scale_bytes() const { return code_groups > 0 ? 2 * AttentionTile::kGroups : 0; }
  constexpr int bytes() const { return code_bytes() + half_bytes() + scale_bytes() + 1; }
};

/// Fitted to 540 cells of an H200 (docs/kernels/sparse_attention.md).
constexpr AttentionTile::Cost kCost16{.key = 63, .block = 5150};
constexpr AttentionTile::Cost kCoResident16{.key = 87, .block = 6950};
constexpr AttentionTile::Cost kCost32{.key = 74, .block = 7430};

/// All tiles, by number of heads; of one number of heads the best first.
inline constexpr std::array<AttentionTile, 8> kAttentionTiles{{
    {.heads = 16,
     .keys = 64,
     .key_warps = 4,
     .dim_warps = 2,
     .resident = 2,
     .alone = kCost16,
     .co_resident = kCoResident16},
    {.heads = 16,
     .keys = 32,
     .key_warps = 2,
     .dim_warps = 4,
     .resident = 2,
     .alone = kCost16,
     .co_resident = kCoResident16},
    {.heads = 32, .keys = 64, .key_warps = 4, .dim_warps = 2, .alone = kCost32},
    {.heads = 32, .keys = 32, .key_warps = 4, .dim_warps = 2, .alone = kCost32},
    {.heads = 32, .keys = 16, .head_warps = 2, .dim_warps = 4, .alone = kCost32},
    {.heads = 64, .keys = 64, .head_warps = 2, .key_warps = 2, .dim_warps = 2},
    {.heads = 64, .keys = 32, .head_warps = 2, .key_warps = 2, .dim_warps = 2},
    {.heads = 64, .keys = 16, .head_warps = 4, .dim_warps = 2},
}};

/// The problem of a call whose tokens that share a list are packed: they are one token with all their heads.
inline SparseAttention::Problem packed(SparseAttention::Problem p) {
  p.heads *= p.tokens_per_list;
  p.out_heads = 0;
  p.tokens = p.lists();
  p.tokens_per_list = 1;
  return p;
}

/// The problem by whose cost a call is weighed whose tokens share lists but are not packed. A token's own columns are
/// taken to be those of a window that moves by one from token to token; of long lists that is nearly all.
inline SparseAttention::Problem unpacked(SparseAttention::Problem p) {
  for (SparseAttention::ScopeShape& s : p.scope) s.width -= std::min(s.width, p.tokens_per_list - 1);
  return p;
}

/// How much longer a key list may be than by unpacked(), each scope filled up to whole tiles.
inline std::int64_t more_entries(const SparseAttention::Problem& p) {
  return SparseAttention::kMaxScopes * (p.tokens_per_list + AttentionTile::kMostKeys);
}

/// The layout of a cache's rows: groups of e4m3 codes, then bf16.
constexpr KeyLayout key_layout(const RowFormat& f) {
  return {.code_groups = f.nope == Element::kE4M3 ? f.nope_dim / AttentionTile::kGroup : 0};
}
/// Bytes of a key, of the scope where they are largest.
inline int key_bytes(const SparseAttention::Problem& p) {
  int bytes = 0;
  for (int s = 0; s < p.scopes; ++s)
    bytes = std::max(bytes, key_layout(*p.scope[static_cast<std::size_t>(s)].format).bytes());
  return bytes;
}

/// Index of the best tile with the fewest heads that holds `heads` heads, or the most heads that fit into
/// `shared_bytes`; -1: none fits.
constexpr int attention_tile(std::int64_t heads, int key_bytes, std::size_t shared_bytes) {
  int best = -1;
  for (int i = 0; i < static_cast<int>(kAttentionTiles.size()); ++i) {
    const AttentionTile& tile = kAttentionTiles[static_cast<std::size_t>(i)];
    if (static_cast<std::size_t>(tile.shared_bytes(key_bytes)) > shared_bytes) continue;
    const int have = best < 0 ? 0 : kAttentionTiles[static_cast<std::size_t>(best)].heads;
    if (have < heads && tile.heads > have) best = i;
  }
  return best;
}

/// How a call is cut. A part is `part_keys` consecutive entries of a token's key list, in which each scope is filled up
/// to whole tiles. With one part a block writes the output itself; with more the blocks write sums to the workspace,
/// and a second kernel merges them.
struct AttentionSplit {
  int tile = 0;  ///< index into kAttentionTiles; -1: none fits
  std::int64_t part_keys = 0;
  std::int64_t parts = 1;
  std::int64_t launch_tokens = 0;  ///< tokens of a launch; the next launch uses the same workspace
  std::int64_t wave_tokens = 0;    ///< tokens whose blocks, without parts, occupy each multiprocessor once
  std::int64_t cost = 0;           ///< estimated time, in the unit of AttentionTile::Cost; of a fixed split 0
  LengthCut cut;                   ///< for lists that the device finds to be of unlike lengths
  bool half_sums = false;          ///< parts' sums are fp16 numbers
  bool packs = false;              ///< tokens that share lists are packed; all numbers here are of the packed call
  std::int64_t heads = 0;          ///< of a token, or of packed ones
  std::int64_t multiprocessors = 0;

  /// Whether they are: outputs of 8 bits of precision lose nothing by it. Without it a list of one part with keys has
  /// the bits of a whole one, as fixed splits promise.
  static bool takes_half_sums(const SparseAttention::Problem& p, bool fixed) { return !fixed && p.o != DType::kF32; }

  /// Whether each list is one part.
  bool whole() const { return tile >= 0 && parts == 1 && cut.extra == 0; }

  static constexpr std::int64_t kSumBytes = 4 * AttentionTile::kDim;  ///< a head's sums
  static constexpr std::int64_t kStateBytes = 8;                      ///< a head's largest score and sum
  static constexpr std::int64_t kScratchBytes = 64 << 20;  ///< most workspace of a launch, unless one token needs more
  /// Most workspace of a call on a GPU, unless one token needs more: sums, and rows that are widened first or outputs
  /// that are quantised behind them.
  static constexpr std::int64_t kMostBytes = kScratchBytes + kScratchBytes / 4;
  static constexpr std::int64_t kFixedPart = 512;
  static constexpr std::int64_t kMaxParts = 128;
  /// The most tokens that are packed: kernels divide heads in fp32, half a head away from where rounding could matter,
  /// a 256th of the quotient's unit.
  static constexpr std::int64_t kMostPacked = 64;
  /// What is added to the estimate of a packed call, in the unit of AttentionTile::Cost, of both kernels. Fitted to 72
  /// cells of an H200 (docs/kernels/sparse_attention_sm90.md).
  static constexpr std::int64_t kPackedCall = 6'000;

  /// Blocks without work behind a launch's last, where multiprocessors are idle: they run through the code while the
  /// others wait for their first keys, so that L2 has it when those need it. Half of them begin with a tile of keys,
  /// the others behind the last.
  static constexpr std::int64_t kCodeBlocks = 4;
  std::int64_t code_blocks(std::int64_t blocks) const {
    return blocks + kCodeBlocks <= multiprocessors ? kCodeBlocks : 0;
  }

  /// Workspace of a token whose list is cut into `parts` parts; of both kernels on tensor cores.
  static constexpr std::int64_t token_bytes(std::int64_t parts, std::int64_t heads) {
    return parts == 1 ? 0 : parts * heads * (kSumBytes + kStateBytes);
  }
  /// Tokens of a launch: as many as kScratchBytes hold, at least one.
  static constexpr std::int64_t tokens_of_launch(std::int64_t tokens, std::int64_t parts, std::int64_t heads) {
    const std::int64_t bytes = token_bytes(parts, heads);
    return bytes == 0 ? tokens : std::min(tokens, std::max<std::int64_t>(kScratchBytes / bytes, 1));
  }

  std::int64_t workspace_bytes() const {
    return std::max(launch_tokens * token_bytes(parts, heads), cut_bytes(cut, launch_tokens, heads));
  }
  /// Workspace of `tokens` tokens whose lists are cut by length; 0 where they are not.
  static constexpr std::int64_t cut_bytes(const LengthCut& cut, std::int64_t tokens, std::int64_t heads) {
    return cut.extra == 0 ? 0 : cut.rows(tokens) * heads * (kSumBytes + kStateBytes) + LengthCut::cut_bytes(tokens);
  }
};

/// That tokens are packed, in words.
inline std::string describe_packed(std::int64_t heads) {
  return "the " + std::to_string(heads) + " heads of a list's tokens together, ";
}

/// The split in words.
inline std::string describe(const AttentionSplit& split) {
  if (split.tile < 0) return "";
  const AttentionTile& tile = kAttentionTiles[static_cast<std::size_t>(split.tile)];
  std::string text = "tiles of " + std::to_string(tile.heads) + " heads x " + std::to_string(tile.keys) + " keys, ";
  if (split.packs) text += describe_packed(split.heads);
  if (split.cut.extra > 0) return text + describe(split.cut, split.workspace_bytes());
  if (split.parts == 1) return text + "each list by one block for each tile of heads";
  text += "lists in " + std::to_string(split.parts) + " parts of up to " + std::to_string(split.part_keys) +
          " keys and a merge, ";
  return text + std::to_string(split.workspace_bytes()) + " bytes of workspace";
}

/// The length of a token's key list in tiles, each scope filled up to whole tiles.
inline std::int64_t tiles_of_list(const SparseAttention::Problem& p, const AttentionTile& tile) {
  std::int64_t tiles = 0;
  for (int s = 0; s < p.scopes; ++s) tiles += (p.scope[static_cast<std::size_t>(s)].width + tile.keys - 1) / tile.keys;
  return tiles;
}

/// Blocks of a tile that a multiprocessor holds at once. It has 1 KiB more shared memory than a block may use, and
/// reserves that much for each block.
inline std::int64_t resident_blocks(const AttentionTile& tile, int key_bytes, std::size_t shared_bytes) {
  constexpr std::size_t kReserved = 1024;
  const std::size_t fit =
      (shared_bytes + kReserved) / (static_cast<std::size_t>(tile.shared_bytes(key_bytes)) + kReserved);
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(fit), 1, tile.resident);
}

/// Chooses tile and number of parts. `fixed`: always the tile that holds all heads, and parts of kFixedPart entries, so
/// that a token's bits depend on its own lists alone. Otherwise the choice with the shortest estimated time: the time
/// of all waves of blocks (keys and fixed cost of a block, AttentionTile::Cost) and of a merge (a launch, and sums
/// through L2). Tiles of fewer heads read keys several times, but finish sooner when most multiprocessors would be
/// idle.
inline AttentionSplit split_tokens(const SparseAttention::Problem& p, const device::Gpu& gpu, bool fixed) {
  const std::int64_t multiprocessors = gpu.multiprocessors;
  const std::size_t shared_bytes = gpu.shared_bytes;
  constexpr std::int64_t kMergeCost = 4880;  // of a launch, in the unit of AttentionTile::Cost
  const int bytes = key_bytes(p);
  AttentionSplit split{.tile = attention_tile(p.heads, bytes, shared_bytes),
                       .half_sums = AttentionSplit::takes_half_sums(p, fixed),
                       .heads = p.heads,
                       .multiprocessors = multiprocessors};
  const std::int64_t sums_cost = split.half_sums ? 11 : 13;  // of writing and reading ten rows of sums
  const AttentionTile& whole = kAttentionTiles[static_cast<std::size_t>(std::max(split.tile, 0))];
  if (fixed || split.tile < 0) {
    split.part_keys = AttentionSplit::kFixedPart;
    split.parts =
        std::max<std::int64_t>((tiles_of_list(p, whole) * whole.keys + split.part_keys - 1) / split.part_keys, 1);
  } else {
    std::int64_t best = -1;
    for (const int heads : {whole.heads, 32, 16}) {
      const int index = attention_tile(heads, bytes, shared_bytes);
      const AttentionTile& tile = kAttentionTiles[static_cast<std::size_t>(index)];
      if (best >= 0 && tile.heads >= whole.heads) continue;  // tried already
      const std::int64_t steps = tiles_of_list(p, tile);
      const std::int64_t blocks = p.tokens * ((p.heads + tile.heads - 1) / tile.heads);
      const std::int64_t resident = resident_blocks(tile, bytes, shared_bytes);
      const std::int64_t slots = multiprocessors * resident;
      for (std::int64_t parts = 1;
           parts == 1 || (parts <= std::min(steps, AttentionSplit::kMaxParts) && blocks < 4 * slots); ++parts) {
        const std::int64_t part = std::max<std::int64_t>((steps + parts - 1) / parts, 1) * tile.keys;
        const bool alone = resident == 1 || blocks * parts <= multiprocessors;
        const AttentionTile::Cost& of = alone ? tile.alone : tile.co_resident;
        const std::int64_t at_once = alone ? multiprocessors : slots;
        std::int64_t cost = (blocks * parts + at_once - 1) / at_once * (part * of.key + of.block);
        if (parts > 1) cost += kMergeCost + p.tokens * p.heads * parts * sums_cost / 10;
        if (best >= 0 && cost >= best) continue;
        best = cost;
        split.cost = cost;
        split.tile = index;
        split.part_keys = part;
        split.parts = std::max<std::int64_t>((steps * tile.keys + part - 1) / part, 1);
      }
    }
  }
  const AttentionTile& chosen = kAttentionTiles[static_cast<std::size_t>(std::max(split.tile, 0))];
  split.wave_tokens = multiprocessors / ((p.heads + chosen.heads - 1) / chosen.heads);
  split.launch_tokens = AttentionSplit::tokens_of_launch(p.tokens, split.parts, p.heads);
  if (!fixed && split.tile >= 0 && chosen.cuts_by_length(gpu.capability)) {
    const auto blocks = [&](const AttentionTile::Cost& of, std::int64_t at_once) {
      return LengthCut::Blocks{.at_once = static_cast<std::uint32_t>(at_once),
                               .tile = static_cast<float>(of.key * chosen.keys),
                               .block = static_cast<float>(of.block)};
    };
    const std::int64_t resident = resident_blocks(chosen, bytes, shared_bytes);
    split.cut = {.alone = blocks(chosen.alone, multiprocessors),
                 .crowded = blocks(resident > 1 ? chosen.co_resident : chosen.alone, multiprocessors * resident),
                 .merge = static_cast<float>(kMergeCost),
                 .sums = static_cast<float>(p.heads * sums_cost) / 10};
    split.cut.extra = room_by_length(p,
                                     {.tiles = tiles_of_list(p, chosen),
                                      .parts = split.parts,
                                      .head_tiles = (p.heads + chosen.heads - 1) / chosen.heads,
                                      .head_bytes = AttentionSplit::kSumBytes + AttentionSplit::kStateBytes,
                                      .most_bytes = AttentionSplit::kScratchBytes},
                                     split.cut);
  }
  return split;
}

/// The split of a call whose tokens share lists: of each token alone, or of packed ones where that is estimated to be
/// no longer. With `fixed` they are packed, up to kMostPacked, so that a token's bits do not depend on how many lists
/// there are. `alone` and `packs` split a problem whose tokens share none.
template <class Split, class Alone, class Packs>
Split split_shared_lists(const SparseAttention::Problem& p, bool fixed, const Alone& alone, const Packs& packs) {
  Split best = alone(unpacked(p));
  if (!fixed && best.whole()) {
    best.part_keys += more_entries(p);  // a list is whole, whatever its columns
  } else {
    const std::int64_t cost = best.cost;
    best = alone(p);
    best.cost = cost;
  }
  if (p.tokens_per_list > AttentionSplit::kMostPacked) return best;
  Split shared = packs(packed(p));
  shared.packs = true;
  shared.cost += AttentionSplit::kPackedCall;
  return fixed || shared.cost <= best.cost ? shared : best;
}

/// The split of a call.
inline AttentionSplit split_attention(const SparseAttention::Problem& p, const device::Gpu& gpu, bool fixed) {
  const auto split = [&](const SparseAttention::Problem& of) { return split_tokens(of, gpu, fixed); };
  if (p.tokens_per_list == 1) return split(p);
  return split_shared_lists<AttentionSplit>(p, fixed, split, split);
}

/// Runs a call as `split` cuts it, on the kernel for any GPU (sparse_attention_cuda.cu).
void attend_with_tiles(const SparseAttention::Problem& problem, const SparseAttention::Args& args,
                       const AttentionSplit& split, const Workspace& workspace, const Stream& stream);

}  // namespace smla
