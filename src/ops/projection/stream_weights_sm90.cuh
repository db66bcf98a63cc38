#pragma once

#include "device/ptx/cp_async.cuh"
#include "device/ptx/mbarrier_sm90.cuh"
#include "device/ptx/pdl.cuh"
#include "ops/projection/stream_tiles_sm90.cuh"

namespace smla::projection::sm90 {

/// The warpgroup that brings weights: of a stage 128 bytes of each of the tile's rows, swizzled, and their scales. Each
/// copy tells the stage's barrier by itself, so nothing here waits for memory. Weights depend on no kernel: the ring is
/// filled with them while the kernel ahead still runs.
template <class Shape>
class WeightProducer {
 public:
  __device__ WeightProducer(const StreamCall& call, std::uint32_t shared)
      : call_(call),
        shared_(shared),
        warp_(static_cast<int>(threadIdx.x) % kGroupThreads / 32),
        lane_(static_cast<int>(threadIdx.x) % 32) {}

  __device__ void run() const {
    fill_ring<Shape>(call_, shared_, [&](const Cursor<Shape>& at, int slot) { bring(at, slot); });
    device::pdl_wait();  // every thread of a kernel that was launched early must, at some time
  }

 private:
  __device__ void bring(const Cursor<Shape>& at, int slot) const {
    const StreamPart& part = call_.part[at.tile.number];
    const std::int64_t row_bytes = static_cast<std::int64_t>(call_.k) * (part.e4m3 ? 1 : 2);
    const std::int64_t along = static_cast<std::int64_t>(at.stage) * kPiece + 16 * (lane_ % 8);
    const int row = 4 * warp_ + lane_ / 8;
    const std::int64_t left = part.n - at.tile.column - row;
    const std::uint8_t* from = static_cast<const std::uint8_t*>(part.w) +
                               (static_cast<std::int64_t>(at.tile.group) * part.n + at.tile.column + row) * row_bytes +
                               along;
    const std::uint32_t to = shared_ + slot * Shape::kStage + row * kPiece + ((lane_ ^ row) % 8) * 16;
    constexpr int kRowsAtOnce = 4 * kGroupWarps;
#pragma unroll
    for (int i = 0; i < Shape::kOutputs / kRowsAtOnce; ++i) {
      const bool there = along < row_bytes && kRowsAtOnce * i < left;
      device::cp_async<16>(to + kRowsAtOnce * kPiece * i, there ? from : call_.part[0].w, there);
      from += kRowsAtOnce * row_bytes;
    }
    if (part.e4m3 && static_cast<int>(threadIdx.x) % kGroupThreads < kConsumers) {
      const int consumer = static_cast<int>(threadIdx.x) % kGroupThreads;
      const std::int64_t output = at.tile.column + consumer * Shape::kGroupOutputs;
      const float* scale = part.w_scale + at.tile.group * part.w_scale_group +
                           output / Projection::kWeightBlock * part.w_scale_row + at.stage;
      device::cp_async<4>(shared_ + Shape::kWeightScales + (slot * kConsumers + consumer) * 4,
                          output < part.n ? scale : part.w_scale, output < part.n);
    }
    device::cp_async_arrive(shared_ + Shape::weights_there(slot));
  }

  const StreamCall& call_;
  std::uint32_t shared_;
  int warp_, lane_;
};

}  // namespace smla::projection::sm90
