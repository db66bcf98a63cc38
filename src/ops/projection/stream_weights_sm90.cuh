#pragma once

#include "device/ptx/cp_async.cuh"
#include "device/ptx/mbarrier_sm90.cuh"
#include "device/ptx/pdl.cuh"
#include "ops/projection/stream_tiles_sm90.cuh"

namespace smla::projection::sm90 {

/// The warpgroup that brings weights: of a stage 128 bytes of each of the tile's rows, swizzled, and their scales. Each
/// copy tells the stage's barrier by itself. Weights depend on no kernel: the ring is filled with them while the kernel
/// ahead still runs. No more stages are on their way than memory needs to be busy: whatever else the multiprocessor
/// loads, for that kernel among others, arrives behind them.
template <class Shape>
class WeightProducer {
 public:
  __device__ WeightProducer(const StreamCall& call, const Tiles<Shape>& tiles, std::uint32_t shared)
      : call_(call),
        tiles_(tiles),
        shared_(shared),
        warp_(static_cast<int>(threadIdx.x) % kGroupThreads / 32),
        lane_(static_cast<int>(threadIdx.x) % 32) {}

  __device__ void run() {
    int left = call_.under_way;
    RingSlot<Shape> oldest;
    fill_ring<Shape>(
        tiles_, shared_,
        [&](const Tile& tile, const RingSlot<Shape>& slot) {
          begin(tile);
          if constexpr (Shape::kChained) {
            // Weights of the second product would come at the cost of the first's, for which all blocks wait.
            if (tile.number != 0) {
              slot.wait_previous(shared_);
              oldest = slot;
              left = call_.under_way;
            }
          }
        },
        [&](int slot) {
          if constexpr (kPaced) {
            if constexpr (Shape::kChained) left += take_more_under_way();
            if (left > 0) {
              --left;
            } else {
              device::mbarrier_wait(shared_ + Shape::weights_there(oldest.number), oldest.parity);
              oldest.step();
            }
          }
          bring(slot);
        });
    device::pdl_wait();  // every thread of a kernel that was launched early must, at some time
  }

 private:
  static constexpr int kRowsAtOnce = 4 * kGroupWarps;
  static constexpr bool kPaced = Shape::kOutputs == 128;  ///< others have no register for it

  /// Once where a block of a chained call began late, stages more that it may have on their way.
  __device__ int take_more_under_way() const {
    const std::uint32_t at = shared_ + Shape::kMoreUnderWay + 4 * warp_;
    const int more = __shfl_sync(0xFFFF'FFFFU, static_cast<int>(device::ld_shared_u32(at)), 0);
    if (more != 0) device::st_shared_u32(at, 0);
    return more;
  }

  /// A warp copies four rows of weights at a time, a lane 16 bytes of one.
  __device__ void begin(const Tile& tile) {
    const StreamPart& part = call_.part[tile.number];
    const std::int64_t row_bytes = static_cast<std::int64_t>(inputs_of<Shape>(call_, tile)) * (part.e4m3 ? 1 : 2);
    const int along = tile.begin * kPiece + 16 * (lane_ % 8);
    from_ = static_cast<const std::uint8_t*>(part.w) + along +
            (static_cast<std::int64_t>(tile.group) * part.n + tile.column + row()) * row_bytes;
    step_ = kRowsAtOnce * row_bytes;
    rows_ = static_cast<int>(min(part.n - tile.column, std::int64_t{Shape::kOutputs})) - row();
    bytes_ = static_cast<int>(row_bytes) - along;
    scale_ = nullptr;
    const int consumer = static_cast<int>(threadIdx.x) % kGroupThreads;
    if (!part.e4m3 || consumer >= kConsumers) return;
    const std::int64_t output = tile.column + consumer * Shape::kGroupOutputs;
    const bool there = output < part.n;  // scales of no output are not looked at
    scale_ = part.w_scale + tile.group * part.w_scale_group +
             (there ? output / Projection::kWeightBlock : 0) * part.w_scale_row + tile.begin;
  }
  __device__ void bring(int slot) {
    const std::uint32_t to = shared_ + slot * Shape::kStage + row() * kPiece + ((lane_ ^ row()) % 8) * 16;
    const int rows = bytes_ > 0 ? rows_ : 0;
    const std::uint8_t* from = from_;
#pragma unroll
    for (int i = 0; i < Shape::kOutputs / kRowsAtOnce; ++i) {
      device::cp_async_once(to + kRowsAtOnce * kPiece * i, from, kRowsAtOnce * i < rows);
      from += step_;
      asm volatile("" : "+l"(from));  // or else each row's distance would be kept
    }
    if (scale_ != nullptr) {
      const int consumer = static_cast<int>(threadIdx.x) % kGroupThreads;
      device::cp_async<4>(shared_ + Shape::kWeightScales + (slot * kConsumers + consumer) * 4, scale_, true);
      ++scale_;
    }
    device::cp_async_arrive(shared_ + Shape::weights_there(slot));
    from_ += kPiece;
    bytes_ -= kPiece;
  }
  __device__ int row() const { return 4 * warp_ + lane_ / 8; }

  const StreamCall& call_;
  const Tiles<Shape>& tiles_;
  std::uint32_t shared_;
  int warp_, lane_;
  const std::uint8_t* from_ = nullptr;  ///< the lane's part of its first row, of the stage that is next
  std::int64_t step_ = 0;               ///< bytes from a row of the lane to its next
  int rows_ = 0;                        ///< of the tile, from the lane's first row on
  int bytes_ = 0;                       ///< of a row, from where the lane's part lies
  const float* scale_ = nullptr;        ///< of that stage, of E4M3 weights, of a lane that copies scales
};

}  // namespace smla::projection::sm90
