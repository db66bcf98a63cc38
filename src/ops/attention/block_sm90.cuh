#pragma once

#include "device/ptx/barrier.cuh"
#include "device/ptx/mbarrier_sm90.cuh"
#include "device/ptx/shared.cuh"
#include "ops/attention/attention_block.cuh"
#include "ops/attention/hopper_split.h"

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
  static constexpr std::uint32_t kRows =
      kWeights + 3 * kGroupBytes;  ///< [kListed][64]: u64 address of a row, u64 its scales as stored
  static constexpr std::uint32_t kTiles =
      kRows + kListed * 64 * 16;  ///< of tile number i: u64 which keys the list names, u32 what it is
  static constexpr std::uint32_t kFades = kTiles + kToldTiles * 16;  ///< float [2][64]: factor of older sums
  static constexpr std::uint32_t kReferences = kFades + 512;         ///< float [2][64]
  static constexpr std::uint32_t kSums = kReferences + 512;          ///< float [2][64]: of each side's tiles
  static constexpr std::uint32_t kChanged = kSums + 512;        ///< int [2][4]: whether a warp's references changed
  static constexpr std::uint32_t kValid = kChanged + 32;        ///< u64 [2]: which keys of a stage the list names
  static constexpr std::uint32_t kItems = kValid + 16;          ///< ItemInfo [kInfos]
  static constexpr std::uint32_t kWalk = kItems + 16 * kInfos;  ///< Walk
  static constexpr std::uint32_t kEntries = kWalk + 64;         ///< i32 [2][64]: entries of lists
  static constexpr std::uint32_t kBarriers = kEntries + 512;
  static constexpr std::uint32_t kBadQueries = kBarriers + 256 + 8 * kInfos;  ///< u32 [kInfos][4], see bad_queries()
  static constexpr std::uint32_t kBytes = kBadQueries + 16 * kInfos;
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
  // Barriers. A stage's halves are the groups 0..3 and 4..7 of its tile, which become columns of the left and the right
  // warpgroup.
  __device__ std::uint32_t full(int stage, int half) const { return at + Place::kBarriers + 8 * (2 * stage + half); }
  __device__ std::uint32_t free(int stage, int half) const { return full(stage, half) + 32; }
  __device__ std::uint32_t weighed(int stage) const { return at + Place::kBarriers + 64 + 8 * stage; }
  /// An item's info and queries are there. A barrier for each: the lists are walked several items ahead of the queries.
  __device__ std::uint32_t item_ready(std::uint32_t turn) const {
    return at + Place::kBarriers + 256 + turn % kInfos * 8;
  }
  /// The parity of that barrier's phase.
  __device__ static std::uint32_t item_parity(std::uint32_t turn) { return turn / kInfos & 1; }
  __device__ std::uint32_t queries_read() const { return at + Place::kBarriers + 88; }
  __device__ std::uint32_t listed(std::uint32_t slot) const { return at + Place::kBarriers + 104 + 8 * slot; }
  __device__ std::uint32_t scaled(std::uint32_t slot) const { return listed(slot) + 8 * kListed; }
  __device__ std::uint32_t taken(std::uint32_t slot) const { return listed(slot) + 16 * kListed; }
  __device__ std::uint32_t named(std::uint32_t number) const { return at + Place::kTiles + number % kToldTiles * 16; }
  __device__ std::uint32_t what(std::uint32_t number) const { return named(number) + 8; }
  /// Of each warp that converts an item's queries: whether fp16 cannot represent one of them.
  __device__ std::uint32_t bad_queries(std::uint32_t turn) const {
    return at + Place::kBadQueries + turn % kInfos * 16;
  }
  __device__ std::uint32_t info(std::uint32_t turn) const { return at + Place::kItems + turn % kInfos * kInfoBytes; }

  /// `by_copies`: keys arrive by cp.async of each thread that brings them, and by one arrival for the rest.
  __device__ void init(bool by_copies) const {
    for (int stage = 0; stage < 2; ++stage) {
      for (int half = 0; half < 2; ++half) {
        device::mbarrier_init(full(stage, half), by_copies ? kGroupThreads + (half == 0 ? 1 : 0) : kKeyWarps);
        device::mbarrier_init(free(stage, half), kGroupWarps);
      }
      device::mbarrier_init(weighed(stage), kGroupWarps);
    }
    for (unsigned turn = 0; turn < kInfos; ++turn) device::mbarrier_init(item_ready(turn), 1 + 32 * kQueryWarps);
    device::mbarrier_init(queries_read(), 2 * kGroupWarps);
    for (int slot = 0; slot < kListed; ++slot) {
      device::mbarrier_init(listed(slot), 32);
      device::mbarrier_init(scaled(slot), 32);
      device::mbarrier_init(taken(slot), kKeyWarps);
    }
  }
};

/// Named barriers; 0 is that of __syncthreads().
constexpr int kComputeBarrier = 1;

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
    const int thread = fresh_thread();
    return {thread % 32, thread / 32 % kGroupWarps, thread / kGroupThreads};
  }
  /// The first of its two rows of 64, as wgmma deals them out.
  __device__ int row() const { return warp * 16 + lane / 4; }
  /// Its place among the four lanes that share a row.
  __device__ int part() const { return lane % 4; }
};

/// One arrival for a warp, once all of its lanes are here.
__device__ inline void arrive(std::uint32_t barrier) {
  __syncwarp();
  if (fresh_thread() % 32 == 0) device::mbarrier_arrive(barrier);
}

/// An item of work: a token, 64 of its heads, a part of its key list. A block takes every gridDim.x-th.
struct Item {
  std::int64_t token;   ///< of the call
  std::uint32_t local;  ///< of the launch
  std::uint32_t part;
  std::uint32_t first_head;

  __device__ Item(const TileCall& c, std::uint32_t number) {
    const std::uint32_t tile = number / c.parts;
    part = number - tile * c.parts;
    local = tile / c.head_tiles;
    first_head = (tile - local * c.head_tiles) * kTileHeads;
    token = c.first_token + local;
  }
  __device__ int heads(const TileCall& c) const {
    return static_cast<int>(min(c.a.heads - first_head, std::int64_t{kTileHeads}));
  }
  /// Index of the first head's state in TileCall::states.
  __device__ std::int64_t state(const TileCall& c) const {
    return (std::int64_t{local} * c.parts + part) * c.a.heads + first_head;
  }
};

using ListRun = Run<kListTile>;

}  // namespace smla::attention::sm90
