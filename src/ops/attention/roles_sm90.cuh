#pragma once

#include "device/ptx/barrier.cuh"
#include "device/ptx/mbarrier_sm90.cuh"
#include "device/ptx/shared.cuh"
#include "ops/attention/attention_block.cuh"
#include "ops/attention/hopper_split.h"
#include "ops/attention/length_cut.cuh"

namespace smla::attention::sm90 {

// What the warpgroups of a block of the Hopper kernel share: its shared memory, its barriers, and its items of work.
// The first warpgroup multiplies queries with keys and makes weights of the scores, the second and the third add the
// left and the right 256 columns of the values, the fourth brings keys.
//
// Columns. Of each group of 64 numbers of a head or a key, lane t of four has the numbers 16 t to 16 t + 15, as two words
// for each of four steps of a product: numbers 16 t + 4 s, +1 are columns 16 s + 2 t, +1 of a matrix in shared memory,
// and numbers 16 t + 4 s + 2, +3 columns 16 s + 8 + 2 t, +1. So queries are loaded and outputs are stored 16 bytes at a
// time, from and to the registers of the products.

constexpr int kGroupThreads = 128;  ///< threads of a warpgroup
constexpr int kGroupWarps = kGroupThreads / 32;
constexpr int kBlockThreads = 4 * kGroupThreads;
constexpr int kScoreGroup = 0;  ///< numbers of the warpgroups
constexpr int kValueGroup = 1;  ///< and the next
constexpr int kKeyGroup = 3;
constexpr unsigned kInfos = 16;  ///< items that are told of; more than can be between the keys and the output
static_assert(HopperSplit::kCutItems == kBlockThreads / 32);
constexpr int kTileHeads = HopperSplit::kTileHeads;
constexpr int kTileKeys = HopperSplit::kTileKeys;
/// For Run, which cuts lists into tiles.
constexpr AttentionTile kListTile{.heads = kTileHeads, .keys = kTileKeys};
using ListRun = Run<kListTile>;

/// What kernels of these roles differ in.
struct Form {
  int stages;           ///< tiles of keys in shared memory
  int held;             ///< groups of 64 numbers of the queries that stay in registers; the others are in shared memory
  int score_registers;  ///< of a thread of each role
  int value_registers;
  int key_registers;
  int weight_stages;
  int raw_bytes;  ///< of rows on their way to a key warp, as their caches store them

  constexpr bool fits() const { return score_registers + 2 * value_registers + key_registers <= 512; }
};

/// Shared memory, in bytes from its 1,024-byte aligned beginning. Queries, keys and weights are matrices of 64 rows: for
/// each group of 64 columns 64 rows of 128 bytes, swizzled (device/ptx/wgmma_sm90.cuh).
template <Form kForm>
struct Layout {
  static_assert(kForm.fits());
  static constexpr std::uint32_t kGroupBytes = 64 * 128;
  static constexpr int kPieces = 2;  ///< of a tile: the columns of each value warpgroup, freed and filled apart
  static constexpr int kPieceGroups = AttentionTile::kGroups / kPieces;
  static constexpr std::uint32_t kPieceBytes = kPieceGroups * kGroupBytes;
  static constexpr std::uint32_t kTileBytes = kPieces * kPieceBytes;
  static constexpr int kWeightStages = kForm.weight_stages;
  static_assert(kWeightStages == 1 || kWeightStages == 2);
  __device__ static std::uint32_t weight_stage(std::uint32_t tile) { return kWeightStages == 1 ? 0 : tile & 1; }
  __device__ static std::uint32_t weight_parity(std::uint32_t tile) { return tile / kWeightStages & 1; }
  static constexpr int kNamed = 4;  ///< tiles of which it is known which keys their lists name
  static_assert(kNamed > kForm.stages);

  static constexpr std::uint32_t kKeys = 0;
  static constexpr std::uint32_t kWeights = kForm.stages * kTileBytes;  ///< 64 heads x 64 keys
  static constexpr std::uint32_t kQueries = kWeights + kWeightStages * kGroupBytes;
  static constexpr std::uint32_t kRaw = kQueries + (AttentionTile::kGroups - kForm.held) * kGroupBytes;
  static constexpr std::uint32_t kFades = kRaw + kGroupWarps * kForm.raw_bytes;  ///< float [2][64]: factors of older sums
  static constexpr std::uint32_t kFactors = kFades + 512;    ///< float [2][64]: of an item's outputs; items take turns
  static constexpr std::uint32_t kChanged = kFactors + 512;  ///< u32 [2][4]: whether a warp's fades are not all 1
  static constexpr std::uint32_t kSkipped = kChanged + 32;   ///< u32 [2]: whether an item's outputs are not to be stored
  static constexpr std::uint32_t kNames = kSkipped + 16;     ///< u16 [kNamed][4]: which keys of a warp the list names
  static constexpr std::uint32_t kItems = kNames + 8 * kNamed;          ///< ItemInfo [kInfos]
  static constexpr std::uint32_t kBadKeys = kItems + 8 * kInfos;        ///< u32 [kInfos][4], of each key warp
  static constexpr std::uint32_t kBadQueries = kBadKeys + 16 * kInfos;  ///< u32 [2][4], of each score warp
  static constexpr std::uint32_t kWork = kBadQueries + 32;              ///< u32 [kCutItems][4], see CutItem
  static constexpr std::uint32_t kCut =
      kWork + 16 * HopperSplit::kCutItems;  ///< u32 [2]: items of the block, entries of a part
  static constexpr std::uint32_t kBarriers = kCut + 16;
  static constexpr std::uint32_t kBytes = kBarriers + 8 * (4 * kForm.stages + 8 + kInfos);
  static constexpr std::uint32_t kAlign = 1024;
};

/// What the key warps tell the others about an item.
struct ItemInfo {
  std::uint32_t tiles;        ///< of keys
  std::uint32_t first_tiles;  ///< of them in the first scope
};

/// Addresses in a block's shared memory.
template <Form kForm>
struct Block {
  using Place = Layout<kForm>;
  std::uint32_t at;

  __device__ std::uint32_t keys(std::uint32_t stage, int piece) const {
    return at + Place::kKeys + stage * Place::kTileBytes + piece * Place::kPieceBytes;
  }
  __device__ std::uint32_t weights(std::uint32_t stage) const {
    return at + Place::kWeights + stage * Place::kGroupBytes;
  }
  __device__ std::uint32_t queries(int group) const {
    return at + Place::kQueries + (group - kForm.held) * Place::kGroupBytes;
  }
  __device__ std::uint32_t raw(int warp) const { return at + Place::kRaw + warp * kForm.raw_bytes; }
  __device__ std::uint32_t fades(std::uint32_t stage) const { return at + Place::kFades + 256 * stage; }
  __device__ std::uint32_t changed(std::uint32_t stage) const { return at + Place::kChanged + 16 * stage; }
  __device__ std::uint32_t factors(std::uint32_t turn) const { return at + Place::kFactors + turn % 2 * 256; }
  __device__ std::uint32_t skipped(std::uint32_t turn) const { return at + Place::kSkipped + turn % 2 * 4; }
  __device__ std::uint32_t names(std::uint32_t tile) const { return at + Place::kNames + tile % Place::kNamed * 8; }
  __device__ std::uint32_t info(std::uint32_t turn) const { return at + Place::kItems + turn % kInfos * 8; }
  __device__ std::uint32_t bad_keys(std::uint32_t turn) const { return at + Place::kBadKeys + turn % kInfos * 16; }
  __device__ std::uint32_t bad_queries(std::uint32_t turn) const { return at + Place::kBadQueries + turn % 2 * 16; }
  __device__ std::uint32_t item(std::uint32_t turn) const { return at + Place::kWork + 16 * turn; }
  __device__ std::uint32_t cut() const { return at + Place::kCut; }

  // Barriers.
  /// A piece of a stage is filled, or has been read by everybody.
  __device__ std::uint32_t full(std::uint32_t stage, int piece) const { return barrier(2 * stage + piece); }
  __device__ std::uint32_t free(std::uint32_t stage, int piece) const {
    return barrier(2 * kForm.stages + 2 * stage + piece);
  }
  /// A tile's weights are there, or have been multiplied.
  __device__ std::uint32_t weighed(std::uint32_t stage) const { return barrier(4 * kForm.stages + stage); }
  __device__ std::uint32_t added(std::uint32_t stage) const { return barrier(4 * kForm.stages + 2 + stage); }
  /// An item's factors are there, or have been read.
  __device__ std::uint32_t finished(std::uint32_t turn) const { return barrier(4 * kForm.stages + 4 + turn % 2); }
  __device__ std::uint32_t taken(std::uint32_t turn) const { return barrier(4 * kForm.stages + 6 + turn % 2); }
  __device__ std::uint32_t item_ready(std::uint32_t turn) const {
    return barrier(4 * kForm.stages + 8 + turn % kInfos);
  }

  /// `arrivals`: of each key warp when a piece is filled.
  __device__ void init(int arrivals) const {
    for (std::uint32_t stage = 0; stage < kForm.stages; ++stage) {
      for (int piece = 0; piece < Place::kPieces; ++piece) {
        device::mbarrier_init(full(stage, piece), kGroupWarps * arrivals);
        device::mbarrier_init(free(stage, piece), kGroupWarps);
      }
    }
    for (std::uint32_t i = 0; i < 2; ++i) {
      device::mbarrier_init(weighed(i), kGroupWarps);
      device::mbarrier_init(added(i), 2 * kGroupWarps);
      device::mbarrier_init(finished(i), kGroupWarps);
      device::mbarrier_init(taken(i), 2 * kGroupWarps);
    }
    for (std::uint32_t turn = 0; turn < kInfos; ++turn) device::mbarrier_init(item_ready(turn), 1);
  }

 private:
  __device__ std::uint32_t barrier(std::uint32_t number) const { return at + Place::kBarriers + 8 * number; }
};

/// A tile's place in the stages: its number, the stage, and the parity of that stage's barriers.
template <int kStages>
struct StageTurn {
  static_assert(kStages == 2);
  std::uint32_t tile = 0;

  __device__ void next() { ++tile; }
  __device__ std::uint32_t stage() const { return tile & 1; }
  __device__ std::uint32_t parity() const { return tile >> 1 & 1; }
};

/// Named barriers; 0 is that of __syncthreads().
constexpr int kScoreBarrier = 1;

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
  int warp;   ///< of the warpgroup
  int group;  ///< number of the warpgroup
  __device__ static Lane fresh() {
    const auto thread = static_cast<std::uint32_t>(fresh_thread());  // signed division takes more instructions
    return {static_cast<int>(thread % 32), static_cast<int>(thread / 32 % kGroupWarps),
            static_cast<int>(thread / kGroupThreads)};
  }
  /// The first of its two rows of 64, 8 apart, as wgmma deals them out.
  __device__ int row() const { return warp * 16 + lane / 4; }
  /// Its place among the four lanes that share a row.
  __device__ int part() const { return lane % 4; }
};

}  // namespace smla::attention::sm90
