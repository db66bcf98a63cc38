#pragma once

#include "device/ptx/barrier.cuh"
#include "device/ptx/mbarrier_sm90.cuh"
#include "device/ptx/shared.cuh"
#include "ops/attention/attention_block.cuh"
#include "ops/attention/hopper_split.h"
#include "ops/attention/length_cut.cuh"

namespace smla::attention::sm90 {

// What the warpgroups of a block of the Hopper kernel share: its shared memory, its barriers, and its items of work.
// Two warpgroups compute (left and right half of the output's columns), one widens keys. Of the fourth one warp walks
// the lists and the others bring queries and make fp16 numbers of them.

constexpr int kGroupThreads = 128;  ///< threads of a warpgroup
constexpr int kGroupWarps = kGroupThreads / 32;
constexpr int kComputeThreads = 2 * kGroupThreads;
constexpr int kKeyWarps = 4;
constexpr int kQueryWarps = 3;
constexpr int kBlockThreads = kComputeThreads + 32 * (kKeyWarps + 1 + kQueryWarps);
constexpr int kComputeRegisters = 192;
/// What a row of a listed tile is: so many groups of codes as the cache stores them, or fp16 already (named_rows.h).
constexpr int kWidened = -1;
/// Of a thread that brings such keys, and of one of the fourth warpgroup; 128 together.
constexpr int key_registers(int code_groups) { return code_groups == 7 ? 96 : 88; }
constexpr int list_registers(int code_groups) { return 128 - key_registers(code_groups); }
constexpr int kListed = 4;               ///< tiles whose rows are known before they are asked for
constexpr int kToldTiles = 2 * kListed;  ///< tiles of which it is known what they are, until they are widened
constexpr unsigned kInfos = 16;          ///< items that are told of; more than can be between the lists and the output
/// Pieces of a tile of keys that are freed and filled apart: what each side adds to its columns.
constexpr int kKeyPieces = 2;
constexpr int kPieceGroups = AttentionTile::kGroups / kKeyPieces;  ///< of 64 dims
constexpr int kTileHeads = HopperSplit::kTileHeads;
constexpr int kTileKeys = HopperSplit::kTileKeys;
/// For Run, which cuts lists into tiles.
constexpr AttentionTile kListTile{.heads = kTileHeads, .keys = kTileKeys};

/// Shared memory, in bytes from its 1,024-byte aligned beginning. Queries and keys are matrices of 64 rows: for each
/// group of 64 dims 64 rows of 128 bytes, swizzled (device/ptx/wgmma_sm90.cuh).
struct Place {
  static constexpr std::uint32_t kGroupBytes = 64 * 128;
  static constexpr std::uint32_t kMatrixBytes = AttentionTile::kGroups * kGroupBytes;
  static constexpr std::uint32_t kQueries = 0;
  static constexpr std::uint32_t kKeys = kMatrixBytes;         ///< two tiles; the even ones of a list in the first
  static constexpr std::uint32_t kWeights = 3 * kMatrixBytes;  ///< of the even and the odd tile, 64 heads x 64 keys
  static constexpr std::uint32_t kScratch = kWeights;  ///< of items that are computed in fp32: 3 x 512 numbers a warp
  static constexpr std::uint32_t kQuantised = kWeights + 2 * kGroupBytes;  ///< where rows of E4M3 outputs go, by warp
  static constexpr std::uint32_t kRows =
      kWeights + 3 * kGroupBytes;  ///< [kListed][64]: u64 address of a row, u64 its scales as stored
  static constexpr std::uint32_t kTiles =
      kRows + kListed * 64 * 16;  ///< of tile number i: u64 which keys the list names, u32 what it is
  static constexpr std::uint32_t kFades = kTiles + kToldTiles * 16;  ///< float [2][64]: factor of older sums
  static constexpr std::uint32_t kReferences = kFades + 512;         ///< float [2][64]
  static constexpr std::uint32_t kSums =
      kReferences + 512;                                   ///< float [2][2][64]: of each side's tiles; items take turns
  static constexpr std::uint32_t kChanged = kSums + 1024;  ///< int [2][4]: whether a warp's references changed
  static constexpr std::uint32_t kValid = kChanged + 32;   ///< u64 [2]: which keys of a stage the list names
  static constexpr std::uint32_t kItems = kValid + 16;     ///< ItemInfo [kInfos]
  static constexpr std::uint32_t kWalk = kItems + 16 * kInfos;  ///< Walk
  static constexpr std::uint32_t kLengths = kWalk + 32;         ///< i32 [2]: of an item's lists
  static constexpr std::uint32_t kEntries = kWalk + 64;         ///< i32 [2][64]: entries of lists
  static constexpr std::uint32_t kBarriers = kEntries + 512;    ///< of the pieces of both stages
  static constexpr std::uint32_t kOtherBarriers = kBarriers + 32 * kKeyPieces;
  static constexpr std::uint32_t kItemBarriers = kOtherBarriers + 192;
  static constexpr std::uint32_t kBadQueries = kItemBarriers + 8 * kInfos;  ///< u32 [kInfos][4], see bad_queries()
  static constexpr std::uint32_t kWork = kBadQueries + 16 * kInfos;         ///< u32 [kCutItems][4], see CutItem
  /// u32 [2]: items of the block, entries of a part
  static constexpr std::uint32_t kCut = kWork + 16 * HopperSplit::kCutItems;
  static constexpr std::uint32_t kColumns = kCut + 16;             ///< u32 [kInfos], see Shared::column()
  static constexpr std::uint32_t kRanges = kColumns + 4 * kInfos;  ///< i32 [8 warps][2 scopes][16 rows][2]
  static constexpr std::uint32_t kBytes = kRanges + 2 * kGroupWarps * 2 * 16 * 8;
  static constexpr std::uint32_t kAlign = 1024;
};
constexpr int kScratchWarps = (Place::kRows - Place::kScratch) / (3 * kDim * 4);

/// What the list warp tells the others about an item. Flags are 0 or 1, and set by any thread.
struct ItemInfo {
  int tiles;                    ///< of keys
  int first_tiles;              ///< of them in the first scope
  int unrepresentable_keys;     ///< fp16 cannot represent a number of a key, or the call is to be computed in fp32
  int unrepresentable_queries;  ///< or one of a query, where the warps that compute make fp16 numbers of them
};
constexpr std::uint32_t kInfoBytes = sizeof(ItemInfo);

// What a tile is, in a word.
constexpr std::uint32_t kTileStage = 1;    ///< mask: the stage it goes to
constexpr std::uint32_t kNoMoreTiles = 2;  ///< mask: it is none, and the last
constexpr int kTileItemShift = 2;          ///< from this bit on: the number of its item's info

/// Addresses in a block's shared memory.
struct Shared {
  std::uint32_t at;

  __device__ std::uint32_t keys(int stage) const { return at + Place::kKeys + stage * Place::kMatrixBytes; }
  __device__ std::uint32_t weights(int stage) const { return at + Place::kWeights + stage * Place::kGroupBytes; }
  // Barriers. A stage's pieces are kPieceGroups groups of its tile each. The first half of them become columns of the
  // left warpgroup, the others of the right one.
  __device__ std::uint32_t full(int stage, int piece) const {
    return at + Place::kBarriers + 8 * (kKeyPieces * stage + piece);
  }
  __device__ std::uint32_t free(int stage, int piece) const { return full(stage, piece) + 16 * kKeyPieces; }
  __device__ std::uint32_t weighed(int stage) const { return at + Place::kOtherBarriers + 8 * stage; }
  /// An item's info and queries are there. A barrier for each: the lists are walked several items ahead of the queries.
  __device__ std::uint32_t item_ready(std::uint32_t turn) const {
    return at + Place::kItemBarriers + turn % kInfos * 8;
  }
  /// The parity of that barrier's phase.
  __device__ static std::uint32_t item_parity(std::uint32_t turn) { return turn / kInfos & 1; }
  __device__ std::uint32_t queries_read() const { return at + Place::kOtherBarriers + 24; }
  __device__ std::uint32_t listed(std::uint32_t slot) const { return at + Place::kOtherBarriers + 40 + 8 * slot; }
  __device__ std::uint32_t scaled(std::uint32_t slot) const { return listed(slot) + 8 * kListed; }
  __device__ std::uint32_t taken(std::uint32_t slot) const { return listed(slot) + 16 * kListed; }
  /// Whose only phase ends when the items of a block are found, of lists that are cut by their lengths.
  __device__ std::uint32_t cut_known() const { return at + Place::kOtherBarriers + 16; }
  __device__ std::uint32_t named(std::uint32_t number) const { return at + Place::kTiles + number % kToldTiles * 16; }
  __device__ std::uint32_t what(std::uint32_t number) const { return named(number) + 8; }
  /// Of each warp that converts an item's queries: whether fp16 cannot represent one of them.
  __device__ std::uint32_t bad_queries(std::uint32_t turn) const {
    return at + Place::kBadQueries + turn % kInfos * 16;
  }
  __device__ std::uint32_t item(std::uint32_t turn) const { return at + Place::kWork + 16 * turn; }
  __device__ std::uint32_t cut() const { return at + Place::kCut; }
  /// The length of an item's list of a scope, for the warp that walks the lists.
  __device__ std::uint32_t length(int scope) const { return at + Place::kLengths + 4 * scope; }
  /// Of packed tokens: the column of its scope's list at which an item begins.
  __device__ std::uint32_t column(std::uint32_t turn) const { return at + Place::kColumns + turn % kInfos * 4; }
  /// Of packed tokens: the columns {first, behind the last} that count for a row of a computing warp, of both.
  __device__ std::uint32_t range(int warp, int scope, int row) const {
    return at + Place::kRanges + (warp * 32 + scope * 16 + row) * 8;
  }
  __device__ std::uint32_t info(std::uint32_t turn) const { return at + Place::kItems + turn % kInfos * kInfoBytes; }

  /// `by_copies`: keys arrive by cp.async of each thread that brings them, and by one arrival for the rest.
  __device__ void init(bool by_copies) const {
    for (int stage = 0; stage < 2; ++stage) {
      for (int piece = 0; piece < kKeyPieces; ++piece) {
        device::mbarrier_init(full(stage, piece), by_copies ? kGroupThreads + (piece == 0 ? 1 : 0) : kKeyWarps);
        device::mbarrier_init(free(stage, piece), kGroupWarps);
      }
      device::mbarrier_init(weighed(stage), kGroupWarps);
    }
    for (unsigned turn = 0; turn < kInfos; ++turn) device::mbarrier_init(item_ready(turn), 1 + 32 * kQueryWarps);
    device::mbarrier_init(queries_read(), 2 * kGroupWarps);
    device::mbarrier_init(cut_known(), kGroupWarps);
    for (int slot = 0; slot < kListed; ++slot) {
      device::mbarrier_init(listed(slot), 32);
      device::mbarrier_init(scaled(slot), 32);
      device::mbarrier_init(taken(slot), kKeyWarps);
    }
  }
};

/// What a row that the list does not name is read from: zeros.
__device__ __align__(16) const uint4 kNoRow[2 * kDim / 16 + 1] = {};

// One computing warp and one key warp rehearse: the code that one of them fetches is there for all. They are numbers 3
// and 2 modulo 4, so that they share no scheduler with warp 12, which walks the lists and for which all wait.
constexpr int kOutputRehearser = 7;  ///< runs through the end of an item
constexpr int kKeyRehearser = 10;    ///< runs through a tile

/// Named barriers; 0 is that of __syncthreads().
constexpr int kComputeBarrier = 1;
constexpr int kListBarrier = 2;  ///< of the fourth warpgroup

/// The thread's number, of which the compiler does not know that it is always the same: what is derived from it is
/// computed anew at each use rather than kept, because the loop over tiles needs every register.
__device__ inline int fresh_thread() {
  auto thread = static_cast<int>(threadIdx.x);
  asm volatile("" : "+r"(thread));
  return thread;
}
/// A thread's place in its warpgroup.
struct Lane {
  int lane;
  int warp;  ///< of the warpgroup
  int side;  ///< number of the warpgroup
  __device__ static Lane fresh() {
    const auto thread = static_cast<std::uint32_t>(fresh_thread());  // signed division takes more instructions
    return {static_cast<int>(thread % 32), static_cast<int>(thread / 32 % kGroupWarps),
            static_cast<int>(thread / kGroupThreads)};
  }
  /// The first of its two rows of 64, as wgmma deals them out.
  __device__ int row() const { return warp * 16 + lane / 4; }
  /// Its place among the four lanes that share a row.
  __device__ int part() const { return lane % 4; }
};

// Items of work: a token, 64 of its heads, a part of its key list. A block takes every gridDim.x-th; an item's turn is
// how many the block took before. is(): whether there is such an item; `items`: of the call.

/// Of lists that are cut alike: an item follows from its number.
struct AlikeItem {
  static constexpr bool kByLength = false;
  static constexpr bool kPacked = false;
  static constexpr Lists kLists = Lists::kOwnRows;

  const TileCall& c;
  std::uint32_t local;  ///< the token, of the launch
  std::uint32_t part;
  std::uint32_t first;
  std::int64_t of_call;  ///< the token, of the call

  __device__ AlikeItem(const TileCall& call, const Shared&, std::uint32_t number, std::uint32_t) : c(call) {
    const std::uint32_t tile = c.by_parts.quotient(number);
    part = number - tile * c.parts;
    local = c.by_head_tiles.quotient(tile);
    first = (tile - local * c.head_tiles) * kTileHeads;
    of_call = c.first_token + local;
  }
  __device__ static bool is(const Shared&, std::uint32_t items, std::uint32_t number, std::uint32_t) {
    return number < items;
  }
  __device__ std::int64_t token() const { return of_call; }
  __device__ std::uint32_t first_head() const { return first; }
  __device__ int heads() const { return static_cast<int>(min(c.a.heads - first, std::int64_t{kTileHeads})); }
  __device__ bool split() const { return c.parts > 1; }
  __device__ std::int64_t state() const { return (std::int64_t{local} * c.parts + part) * c.a.heads + first; }
  __device__ ListPart list() const { return ListPart::alike(c, local, part); }
};

/// Of lists that are cut by their lengths: a block's items are found when it begins, and read from shared memory a word
/// at a time, because there are no registers for more.
struct CutItem {
  static constexpr bool kByLength = true;
  static constexpr bool kPacked = false;
  static constexpr Lists kLists = Lists::kOwnRows;

  const TileCall& c;
  Shared shared;
  std::uint32_t turn;

  __device__ CutItem(const TileCall& call, const Shared& of, std::uint32_t, std::uint32_t after)
      : c(call), shared(of), turn(after) {}
  __device__ static bool is(const Shared& shared, std::uint32_t, std::uint32_t, std::uint32_t turn) {
    return turn < word(shared.cut());
  }
  __device__ std::int64_t token() const { return word(shared.item(turn)); }
  __device__ std::uint32_t first_head() const { return word(shared.item(turn) + 12) >> kPartBits << kTileHeadBits; }
  __device__ int heads() const { return static_cast<int>(min(c.a.heads - first_head(), std::int64_t{kTileHeads})); }
  __device__ bool split() const { return word(shared.item(turn) + 4) > 1; }
  __device__ std::int64_t state() const { return std::int64_t{word(shared.item(turn) + 8)} * c.a.heads + first_head(); }
  __device__ ListPart list() const {
    const std::uint32_t place = shared.item(turn);
    return {.token = word(place),
            .part = word(place + 12) & ((1U << kPartBits) - 1),
            .parts = word(place + 4),
            .row = word(place + 8),
            .part_keys = word(shared.cut() + 4)};
  }

  /// Finds a block's items and how many it has. The warps of the fourth warpgroup come here, with few registers: each
  /// finds every fourth item.
  template <Lists kOf>
  __device__ static void find(const TileCall& c, const Shared& shared) {
    std::uint32_t number = 0;
    std::uint32_t items = 1;
#pragma unroll 1
    for (std::uint32_t turn = Lane::fresh().warp; number < items; turn += kGroupWarps) {
      number = blockIdx.x + turn * gridDim.x;
      const LengthCutter<kTileKeys, kOf> cutter{.c = c, .lane = Lane::fresh().lane};
      CutParts parts{};
      const std::uint32_t part = c.by_head_tiles.quotient(number);
      const ListPart list = cutter.find(part, parts);
      items = parts.all * c.head_tiles;
      const std::uint32_t head_tile = number - part * c.head_tiles;
      if (Lane::fresh().lane == 0) {
        if (number < items) {
          device::st_shared_v4(shared.item(turn),
                               make_uint4(list.token, list.parts, list.row, list.part | head_tile << kPartBits));
        }
        if (turn == 0) {
          const std::uint32_t own = number < items ? (items - number + gridDim.x - 1) / gridDim.x : 0;
          device::st_shared_v2(shared.cut(), make_uint2(own, list.part_keys));
        }
        if (head_tile == 0) cutter.tell(list, parts);
      }
      number += kGroupWarps * gridDim.x;
    }
    device::bar_sync(kListBarrier, kGroupThreads);
    device::mbarrier_arrive_warp(shared.cut_known());
  }
  /// For the other warps: waits until they are found.
  __device__ static void wait(const Shared& shared) { device::mbarrier_wait(shared.cut_known(), 0); }

 private:
  static constexpr int kPartBits = 16;
  static constexpr int kTileHeadBits = 6;
  static_assert(kTileHeads == 1 << kTileHeadBits);

  /// A word that find() wrote; loaded anew at each use.
  __device__ static std::uint32_t word(std::uint32_t place) {
    std::uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(place));
    return v;
  }
};

/// Of lists that several tokens share, each for itself.
struct AloneItem : AlikeItem {
  static constexpr Lists kLists = Lists::kAlone;
  using AlikeItem::AlikeItem;
};

/// Of lists that several tokens share, whose heads are those of one here: an item's rows are of several tokens.
template <class Item>
struct PackedItem : Item {
  static constexpr bool kPacked = true;
  static constexpr Lists kLists = Lists::kPacked;
  using Item::Item;
};

template <class Item>
using ListRun = Run<kListTile, Item::kLists>;

}  // namespace smla::attention::sm90
