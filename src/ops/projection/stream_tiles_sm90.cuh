#pragma once

#include "device/ptx/cluster_sm90.cuh"
#include "ops/projection/stream_call.cuh"

namespace smla::projection::sm90 {

// How the products of a call are dealt out to clusters of blocks, and where things lie in a block's shared memory.

constexpr int kGroupThreads = 128;                  ///< of a warpgroup
constexpr int kProducerWarps = kGroupThreads / 32;  ///< warps
constexpr int kOutputs = 256;                       ///< of a block
constexpr int kPiece = 128;                      ///< bytes of a weight row in a stage: 64 inputs of bf16, 128 of E4M3
constexpr int kWeightBytes = kOutputs * kPiece;  ///< of a stage

static_assert(kPiece == Projection::kWeightBlock);

/// kWidth: rows of x of a product; kParts: products beside one another; kDeep: stages of the ring.
template <int kWidth_, int kParts_, int kDeep_>
struct StreamShape {
  static constexpr int kWidth = kWidth_;
  static constexpr int kParts = kParts_;
  static constexpr int kDeep = kDeep_;
  static constexpr int kRows = kWidth * kParts;
  /// Warpgroups that multiply; one more brings what they multiply. Four wait less than two, but have registers for one
  /// product each.
  static constexpr int kConsumers = kParts == 1 ? 4 : 2;
  static constexpr int kThreads = (kConsumers + 1) * kGroupThreads;
  static constexpr int kGroupOutputs = kOutputs / kConsumers;  ///< of a warpgroup, in one block of scales
  static constexpr int kTall = kGroupOutputs / 64;             ///< its tiles of 64 outputs
  static_assert(Projection::kWeightBlock % kGroupOutputs == 0);
  static constexpr int kColumnBytes = kRows * 128;  ///< 64 inputs of all rows, swizzled
  static constexpr int kStage = kWeightBytes + 2 * kColumnBytes;
  static constexpr int kSumRows = kRows < 32 ? kRows : 32;  ///< rows whose sums the blocks of a cluster add at a time
  static constexpr int kSumStride = kOutputs + 4;  ///< floats from row to row: no two lanes of a store in one bank
  static constexpr int kSums = kDeep * kStage;     ///< where things begin, in bytes
  static constexpr int kBarriers = kSums + kSumRows * kSumStride * 4;
  static constexpr int kShared = kBarriers + 2 * kDeep * 8;
};

/// What a block computes at a time.
struct Tile {
  int number = 0;  ///< of the weight
  std::uint32_t group = 0;
  std::int64_t column = 0;     ///< its first output
  std::int64_t row = 0;        ///< its first row
  int begin = 0, end = 0;      ///< stages; none where there are no outputs
  int first = 0, sharing = 1;  ///< blocks of the cluster that have the other stages of its outputs, from `first` on
};

/// The tiles of a block. The clusters take the call's items in turn, there and back, so that one that had a large item
/// has a small one next (the host sorts them). An item is as many tiles as a cluster computes at once. Rows are
/// innermost: clusters that run at the same time share their weights in L2.
template <int kRows>
class Tiles {
 public:
  __device__ explicit Tiles(const StreamCall& call)
      : call_(&call),
        clusters_(gridDim.x / static_cast<unsigned>(call.together)),
        cluster_(blockIdx.x / static_cast<unsigned>(call.together)) {}

  /// False behind the last one.
  __device__ bool next(Tile& tile) {
    const std::uint32_t before = round_ * clusters_;
    std::uint32_t item = before + (round_ % 2 != 0 ? clusters_ - 1 - cluster_ : cluster_);
    if (before >= call_->tiles || item >= call_->tiles) return false;
    ++round_;
    int number = 0;
    while (number + 1 < call_->parts && item >= call_->part[number].tiles) item -= call_->part[number++].tiles;
    const StreamPart& part = call_->part[number];
    // Blocks of the cluster that are left over have no outputs.
    const auto sharing = static_cast<unsigned>(part.sharing);
    const unsigned at_a_time = static_cast<unsigned>(call_->together) / sharing;
    const auto rank = static_cast<unsigned>(device::cluster_rank());
    const unsigned place = rank / sharing;
    const bool busy = place < at_a_time;
    const unsigned share = busy ? rank - place * sharing : 0;
    const std::uint32_t upper = item / call_->row_blocks;
    tile.number = number;
    tile.group = upper / part.columns;
    tile.row = static_cast<std::int64_t>(item % call_->row_blocks) * kRows;
    tile.column = busy ? (static_cast<std::int64_t>(upper % part.columns) * at_a_time + place) * kOutputs : part.n;
    tile.sharing = busy ? part.sharing : 1;
    tile.first = static_cast<int>(rank - share);
    const unsigned row_bytes = static_cast<unsigned>(call_->k) * (part.e4m3 ? 1 : 2);
    const unsigned stages = tile.column < part.n ? (row_bytes + kPiece - 1) / kPiece : 0;
    tile.begin = static_cast<int>(stages * share / sharing);
    tile.end = static_cast<int>(stages * (share + 1) / sharing);
    return true;
  }

 private:
  const StreamCall* call_;
  std::uint32_t clusters_, cluster_;
  std::uint32_t round_ = 0;
};

/// Tiles along the outputs of a weight.
inline std::int64_t tiles_along(std::int64_t n) { return (n + kOutputs - 1) / kOutputs; }

}  // namespace smla::projection::sm90
