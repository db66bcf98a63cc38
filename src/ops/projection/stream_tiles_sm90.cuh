#pragma once

#include "device/ptx/cluster_sm90.cuh"
#include "device/ptx/cp_async.cuh"
#include "device/ptx/mbarrier_sm90.cuh"
#include "device/ptx/shared.cuh"
#include "ops/projection/stream_call.cuh"

namespace smla::projection::sm90 {

// How the products of a call are dealt out to clusters of blocks, and where things lie in a block's shared memory.

constexpr int kGroupThreads = 128;               ///< of a warpgroup
constexpr int kGroupWarps = kGroupThreads / 32;  ///< of a warpgroup
constexpr int kConsumers = 2;                    ///< warpgroups that multiply; one brings x, and one the weights
constexpr int kThreads = (kConsumers + 2) * kGroupThreads;
constexpr int kPiece = 128;  ///< bytes of a weight row in a stage: 64 inputs of bf16, 128 of E4M3

static_assert(kPiece == Projection::kWeightBlock);

constexpr int kChainedBlocks = 2;  ///< of a cluster of a chained call
/// Stages of weights that a block of a chained call has on their way beyond StreamCall::under_way, if it began late.
constexpr int kMoreIfLate = 4;

/// What x is: bf16, which beside E4M3 weights is split into two E4M3 numbers; E4M3 with scales of its own; or bf16
/// beside NVFP4 weights, which become bf16.
enum class StreamedX { kBF16, kE4M3, kBesideNvfp4 };

/// kOutputs: of a block; kRows: rows of x of a tile; kDeep: stages of the ring. kChained: a second product follows in
/// the same launch (StreamCall::chained). kNorms: each block norms the rows of x, which are those of one tile.
template <int kOutputs_, int kRows_, int kDeep_, StreamedX kX_ = StreamedX::kBF16, bool kChained_ = false,
          bool kNorms_ = false>
struct StreamShape {
  static constexpr bool kChained = kChained_;
  static constexpr bool kNorms = kNorms_;
  static constexpr StreamedX kX = kX_;
  static constexpr int kOutputs = kOutputs_;
  static constexpr int kRows = kRows_;
  static constexpr int kDeep = kDeep_;
  /// With many rows the blocks have no time to split x, so a kernel ahead does.
  static constexpr bool kSplitBefore = kRows > 16;
  /// The warps that bring x take stages in turn, instead of some rows of each: they split what they have loaded, and
  /// the waits of one stage are the others' work.
  static constexpr bool kInTurn = kX == StreamedX::kBF16 && !kSplitBefore;
  /// A block's first tile is found before the warpgroups part, so that they do not load a copy of that code each. Else
  /// there are no registers for it.
  static constexpr bool kFoundBefore = kInTurn || kX == StreamedX::kE4M3;
  static constexpr int kInputArrivals = kInTurn ? 1 : kGroupThreads;  ///< copies tell a stage's barrier themselves
  static constexpr int kHalves = kX == StreamedX::kBF16 ? 2 : 1;      ///< of 128 bytes of a row of x in a stage
  static constexpr int kGroupOutputs = kOutputs / kConsumers;         ///< of a warpgroup, in one block of scales
  static constexpr int kTall = kGroupOutputs / 64;                    ///< its tiles of 64 outputs
  static_assert(Projection::kWeightBlock % kGroupOutputs == 0);
  static constexpr int kWeightBytes = kOutputs * kPiece;  ///< of a stage
  static constexpr int kHalfBytes = kRows * 128;          ///< 128 bytes of each row of x, swizzled
  static constexpr int kStage = kWeightBytes + kHalves * kHalfBytes;
  /// Rows whose sums a cluster adds at a time: all where there is room for them.
  static constexpr int kSumRows = kX == StreamedX::kE4M3 ? kRows : (kOutputs == 128 ? (kRows < 16 ? kRows : 16) : 32);
  static constexpr int kSumStride = kOutputs + 4;  ///< floats from row to row: no two lanes of a store in one bank
  static constexpr int kSums = kDeep * kStage;     ///< where things begin, in bytes
  static constexpr int kRowScales = kSums + kSumRows * kSumStride * 4;  ///< of a stage's x
  static constexpr int kWeightScales = kRowScales + kDeep * kRows * 4;  ///< of a stage's weights, a consumer each
  static constexpr int kBarriers = kWeightScales + kDeep * kConsumers * 4;
  /// Barriers between the consumers of a cluster: sums can be read, and have been.
  static constexpr int kSumsThere = kBarriers + 3 * kDeep * 8;
  static constexpr int kSumsRead = kSumsThere + 8;
  /// Of a chained call: the clusters whose tiles the cluster computes, of each its first tile of either product; how
  /// many they are; and the barrier of that being known.
  static constexpr int kMostWorkers = 64;
  static constexpr int kWorkers = kSumsRead + 8;
  static constexpr int kWorkerCount = kWorkers + 8 * kMostWorkers;
  static constexpr int kWorkersKnown = kWorkerCount + 8;
  static constexpr int kInputsMade = kWorkersKnown + 8;  ///< the barrier of a tile's inputs being made
  static constexpr int kInverses = kSumsRead + 8;        ///< of each row of x that is normed, its inverse root
  static constexpr int kMoreUnderWay = kInputsMade + 8;  ///< for each warp that brings weights: 0, or kMoreIfLate
  static constexpr int kBarriersEnd =
      kChained ? kMoreUnderWay + 4 * kGroupWarps : (kNorms ? kInverses + 4 * kRows : kSumsRead + 8);
  static_assert(!kNorms || (kInTurn && !kChained));
  /// NVFP4 weights as they are stored, a ring of its own: the codes of two stages, 64 bytes an output, and their
  /// scales.
  static constexpr int kRawDeep = kX != StreamedX::kBesideNvfp4 ? 0 : (kRows == 64 ? 3 : 4);
  static constexpr int kRawCodes = (kBarriersEnd + 127) / 128 * 128;
  static constexpr int kRawScales = kRawCodes + kRawDeep * kOutputs * 64;
  static constexpr int kShared = kRawDeep == 0 ? kBarriersEnd : kRawScales + kRawDeep * kOutputs * 8;

  /// Barriers of a stage: its weights are there, its x is, and all of it has been multiplied.
  __device__ static constexpr std::uint32_t weights_there(int slot) { return kBarriers + 8 * slot; }
  __device__ static constexpr std::uint32_t inputs_there(int slot) { return kBarriers + 8 * (kDeep + slot); }
  __device__ static constexpr std::uint32_t free(int slot) { return kBarriers + 8 * (2 * kDeep + slot); }
  /// Where a row's half of a stage's x lies: of bf16 x the first or the last 64 inputs, of split x 128 upper or 128
  /// lower parts. E4M3 x has one.
  __device__ static constexpr std::uint32_t half_row(int slot, int half, int row) {
    return slot * kStage + kWeightBytes + half * kHalfBytes + row * 128;
  }
};

/// What a block computes at a time.
struct Tile {
  int number = 0;  ///< of the weight
  std::uint32_t group = 0;
  std::int64_t column = 0;     ///< its first output
  std::int64_t row = 0;        ///< its first row
  int half = 0;                ///< which one, of a chained product's that two clusters share
  int begin = 0, end = 0;      ///< stages; none where there are no outputs
  int first = 0, sharing = 1;  ///< blocks of the cluster that have the other stages of its outputs, from `first` on
};

/// The tiles of a block. The clusters take the call's items in turn, there and back, so that one that had a large item
/// has a small one next (the host sorts them). An item is as many tiles as a cluster computes at once. Rows are
/// innermost: clusters that run at the same time share their weights in L2. Every block has a first tile.
///
/// Of a chained call a cluster computes its own tiles and those of clusters that the GPU had no room to start (Helper),
/// all of the first product before any of the second: so what the second waits for is always being computed.
template <class Shape>
class Tiles {
 public:
  __device__ Tiles(const StreamCall& call, std::uint32_t shared)
      : call_(&call),
        shared_(shared),
        clusters_(gridDim.x / static_cast<unsigned>(call.together)),
        cluster_(blockIdx.x / static_cast<unsigned>(call.together)),
        item_(cluster_) {
    if constexpr (Shape::kFoundBefore) find(cluster_, first_);
  }

  __device__ Tile first() const {
    Tile tile = first_;
    if constexpr (!Shape::kFoundBefore) find(cluster_, tile);
    return tile;
  }

  /// The tile behind the last one; false behind all of them.
  __device__ bool next(Tile& tile) {
    if constexpr (Shape::kChained) return next_chained(tile);
    ++round_;
    const std::uint32_t before = round_ * clusters_;
    const std::uint32_t item = before + (round_ % 2 != 0 ? clusters_ - 1 - cluster_ : cluster_);
    if (before >= call_->tiles || item >= call_->tiles) return false;
    find(item, tile);
    return true;
  }

  /// Of a chained call, how many clusters' tiles this one computes; waits until that is known. None: another computes
  /// those of this cluster, which may go on with its tiles of the first product, and tells nobody of them.
  __device__ std::uint32_t workers() const {
    device::mbarrier_wait_cluster(shared_ + Shape::kWorkersKnown, 0);
    return device::ld_shared_u32(shared_ + Shape::kWorkerCount);
  }

 private:
  /// The cluster's own tiles of the first product, then those of its workers, then theirs of the second: where they
  /// begin stands in shared memory, the two numbers of a worker side by side.
  __device__ bool next_chained(Tile& tile) {
    constexpr std::uint32_t kSecond = 4;
    item_ += gridDim.x / kChainedBlocks;
#pragma unroll 1
    while (item_ >= ((place_ & kSecond) != 0 ? call_->tiles : call_->chained.first_tiles)) {
      const std::uint32_t end = 8 * workers();
      place_ += 8;
      if (place_ >= end) {
        if ((place_ & kSecond) != 0 || end == 0) return false;
        place_ = kSecond;
      }
      item_ = device::ld_shared_u32(shared_ + Shape::kWorkers + place_);
    }
    find_chained(item_, tile);
    return true;
  }
  /// Each block of a cluster of two has as many of a tile's stages as of others that share it.
  __device__ void find_chained(std::uint32_t item, Tile& tile) const {
    const bool second = item >= call_->chained.first_tiles;
    if (second) item -= call_->chained.first_tiles;
    const int bits = second && call_->chained.halved ? 1 : 0;
    const StreamPart& part = call_->part[second ? 1 : 0];
    const auto share = 2 * (item & ((1U << bits) - 1)) + static_cast<std::uint32_t>(device::cluster_rank());
    tile.number = second ? 1 : 0;
    tile.begin = static_cast<int>(part.stages * share >> (bits + 1));
    tile.end = static_cast<int>(part.stages * (share + 1) >> (bits + 1));
    tile.half = static_cast<int>(share / 2);
    item >>= bits;
    tile.group = second ? 0 : item / part.columns;
    tile.column = (item - tile.group * part.columns) * Shape::kOutputs;
    tile.sharing = 2;
  }
  __device__ void find(std::uint32_t item, Tile& tile) const {
    if constexpr (Shape::kChained) return find_chained(item, tile);
    int number = 0;
    while (number + 1 < call_->parts && item >= call_->part[number].tiles) item -= call_->part[number++].tiles;
    const StreamPart& part = call_->part[number];
    // Blocks of the cluster that are left over have no outputs.
    const auto sharing = static_cast<unsigned>(part.sharing);
    const auto rank = static_cast<unsigned>(device::cluster_rank());
    const unsigned place = rank / sharing;
    const bool busy = place < part.at_a_time;
    const unsigned share = busy ? rank - place * sharing : 0;
    const std::uint32_t upper = item / call_->row_blocks;
    tile.number = number;
    tile.group = upper / part.columns;
    tile.row = static_cast<std::int64_t>(item - upper * call_->row_blocks) * Shape::kRows;
    tile.column =
        busy ? (static_cast<std::int64_t>(upper - tile.group * part.columns) * part.at_a_time + place) * Shape::kOutputs
             : part.n;
    tile.sharing = busy ? part.sharing : 1;
    tile.first = static_cast<int>(rank - share);
    const bool any = tile.column < part.n;
    tile.begin = any ? static_cast<int>(part.stages * share + min(share, part.more_stages)) : 0;
    tile.end = any ? tile.begin + static_cast<int>(part.stages + (share < part.more_stages ? 1 : 0)) : 0;
  }

  const StreamCall* call_;
  std::uint32_t shared_;
  std::uint32_t clusters_, cluster_;
  std::uint32_t round_ = 0;
  std::uint32_t item_, place_ = 0;  ///< of a chained call: the tile, and in which of its lists the worker's first is
  Tile first_;
};

/// Inputs of a weight row.
template <class Shape>
__device__ int inputs_of(const StreamCall& call, const Tile& tile) {
  return Shape::kChained && tile.number != 0 ? call.chained.k : call.k;
}

/// The stages of the block's tiles, one after the other.
template <class Shape>
struct Cursor {
  Tiles<Shape> tiles;
  Tile tile;
  int stage = 0;
  bool there = true;

  __device__ explicit Cursor(const Tiles<Shape>& all, int stages = 0)
      : tiles(all), tile(all.first()), stage(tile.begin) {
    skip(stages);
  }
  __device__ void skip(int stages) {
    stage += stages;
#pragma unroll 1
    while (there && stage >= tile.end) {
      const int over = stage - tile.end;
      there = tiles.next(tile);
      stage = tile.begin + over;
    }
  }
};

/// A slot of the ring and the parity of the ring's round.
template <class Shape>
struct RingSlot {
  int number = 0;
  std::uint32_t parity = 0;

  __device__ void step(int slots = 1) {
    number += slots;
    const bool wraps = number >= Shape::kDeep;
    number -= wraps ? Shape::kDeep : 0;
    parity ^= wraps ? 1 : 0;
  }
  /// Waits until the slot before this one has been multiplied.
  __device__ void wait_previous(std::uint32_t shared) const {
    const bool wraps = number == 0;
    device::mbarrier_wait(shared + Shape::free(wraps ? Shape::kDeep - 1 : number - 1), wraps ? parity ^ 1 : parity);
  }
  /// Waits until what the slot had has been multiplied; in the ring's first round it had nothing.
  __device__ void wait_free(std::uint32_t shared) const {
    device::mbarrier_wait(shared + Shape::free(number), parity ^ 1);
  }
};

/// Fills the ring, and each slot again when it has been multiplied: begin(tile, slot) is told of each tile that has
/// stages and of the slot of its first, and bring(slot) copies the next stage, by copies that tell their barriers
/// themselves.
template <class Shape>
__device__ void fill_ring(Tiles<Shape> tiles, std::uint32_t shared, const auto& begin, const auto& bring) {
  Tile tile = tiles.first();
  RingSlot<Shape> slot;
  do {
    if (tile.begin == tile.end) continue;
    begin(tile, slot);
#pragma unroll 1
    for (int stage = tile.begin; stage < tile.end; ++stage) {
      slot.wait_free(shared);
      bring(slot.number);
      slot.step();
    }
  } while (tiles.next(tile));
}

}  // namespace smla::projection::sm90
