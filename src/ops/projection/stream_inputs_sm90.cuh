#pragma once

#include "device/ptx/cp_async.cuh"
#include "device/ptx/mbarrier_sm90.cuh"
#include "device/ptx/pdl.cuh"
#include "device/ptx/shared.cuh"
#include "ops/projection/split_inputs_sm90.cuh"
#include "ops/projection/stream_tiles_sm90.cuh"

namespace smla::projection::sm90 {

/// The warpgroup that brings x: of a stage the inputs of its weights for each row of the tile, swizzled. Beside E4M3
/// weights bf16 inputs are split, in their own place, or have been before (Shape::kSplitBefore).
template <class Shape>
class InputProducer {
 public:
  __device__ InputProducer(const StreamCall& call, std::uint32_t shared)
      : call_(call),
        shared_(shared),
        warp_(static_cast<int>(threadIdx.x) % kGroupThreads / 32),
        lane_(static_cast<int>(threadIdx.x) % 32) {}

  __device__ void run() const {
    device::pdl_wait_and_trigger();
    if constexpr (Shape::kX == StreamedX::kE4M3) {
      fill_ring<Shape>(call_, shared_, [&](const Cursor<Shape>& at, int slot) { bring_codes(at, slot); });
    } else {
      run_bf16();
    }
  }

 private:
  static constexpr int kLag = 2;                                          ///< see work_ring()
  static constexpr int kUnits = Shape::kRows / kSplitRows / kGroupWarps;  ///< of rows, of a warp
  static_assert(kUnits * kSplitRows * kGroupWarps == Shape::kRows);

  /// A warp waits for its rows of a stage, splits them where nobody has, and tells the stage's barrier.
  __device__ void run_bf16() const {
    work_ring<Shape, kLag>(
        call_, shared_, [&](const Cursor<Shape>& at, int slot) { bring(at, slot); },
        [&](const Tile& tile, int slot) {
          __syncwarp();
          if constexpr (Shape::kX == StreamedX::kBF16 && !Shape::kSplitBefore) {
            if (call_.part[tile.number].e4m3) split(slot);
          }
          device::mbarrier_arrive_warp(shared_ + Shape::inputs_there(slot));
        });
  }

  __device__ int row_of(int unit) const { return (unit * kGroupWarps + warp_) * kSplitRows; }

  __device__ void bring(const Cursor<Shape>& at, int slot) const {
    if (Shape::kX == StreamedX::kBesideNvfp4 || !call_.part[at.tile.number].e4m3) {
      bring_bf16<8>(at, slot);
    } else if constexpr (Shape::kSplitBefore) {
      bring_split(at, slot);
    } else {
      bring_bf16<16>(at, slot);
    }
  }
  /// A warp copies all inputs of its rows, so that it can split them without the others.
  template <int kPieces>
  __device__ void bring_bf16(const Cursor<Shape>& at, int slot) const {
    const int input = at.stage * (8 * kPieces) + lane_ % kPieces * 8;
    const BF16* x = call_.x + at.tile.group * call_.x_group + input;
    constexpr int kRowsAtOnce = 32 / kPieces;
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
#pragma unroll
      for (int i = 0; i < kSplitRows; i += kRowsAtOnce) {
        const int row = row_of(unit) + i + lane_ / kPieces;
        const bool there = at.tile.row + row < call_.m && input < call_.k;
        device::cp_async<16>(shared_ + Shape::half_row(slot, lane_ % kPieces / 8, row) + ((lane_ ^ row) % 8) * 16,
                             there ? x + (at.tile.row + row) * call_.x_row : call_.x, there);
      }
    }
  }
  /// E4M3 x as the caller has it.
  __device__ void bring_codes(const Cursor<Shape>& at, int slot) const {
    const CodedX& x = call_.coded;
    const std::uint8_t* codes = x.codes + at.tile.group * call_.x_group + at.stage * kPiece + lane_ % 8 * 16;
    const int left = static_cast<int>(min(call_.m - at.tile.row, std::int64_t{Shape::kRows}));
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      const int row = row_of(unit) + lane_ / 8;
      const bool there = row < left;
      device::cp_async<16>(shared_ + Shape::half_row(slot, 0, row) + ((lane_ ^ row) % 8) * 16,
                           there ? codes + (at.tile.row + row) * call_.x_row : x.codes, there);
    }
    const int thread = warp_ * 32 + lane_;
    if (thread < Shape::kRows) {
      const bool there = thread < left;
      const float* scales = x.scales + at.tile.group * x.scale_group + at.stage * x.scale_chunk + at.tile.row + thread;
      device::cp_async<4>(shared_ + Shape::kRowScales + (slot * Shape::kRows + thread) * 4, there ? scales : x.scales,
                          there);
    }
    device::cp_async_arrive(shared_ + Shape::inputs_there(slot));
  }
  __device__ void bring_split(const Cursor<Shape>& at, int slot) const {
    const SplitX& x = call_.split;
    const int input = at.stage * kPiece + lane_ % 8 * 16;
    const std::int64_t first = at.tile.group * x.rows + at.tile.row;
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      const int row = row_of(unit) + lane_ / 8;
      const bool there = at.tile.row + row < call_.m && input < call_.k;
      const std::int64_t from = there ? (first + row) * call_.k + input : 0;
      const std::uint32_t to = shared_ + Shape::half_row(slot, 0, row) + ((lane_ ^ row) % 8) * 16;
      device::cp_async<16>(to, x.upper + from, there);
      device::cp_async<16>(to + Shape::kHalfBytes, x.lower + from, there);
    }
    const int thread = warp_ * 32 + lane_;
    if (thread < Shape::kRows / 4) {
      const bool there = at.tile.row + 4 * thread < call_.m;
      const float* scales = x.scales + (at.tile.group * static_cast<std::int64_t>(x.chunks) + at.stage) * x.rows +
                            at.tile.row + 4 * thread;
      device::cp_async<16>(shared_ + Shape::kRowScales + (slot * Shape::kRows + 4 * thread) * 4,
                           there ? scales : x.scales, there);
    }
  }

  __device__ void split(int slot) const {
    const int e = lane_ % kSplitLanes;  // which sixteen inputs of a row
    SixteenInputs x[kUnits];
    SplitInputs out[kUnits];
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const int row = row_of(i) + lane_ / kSplitLanes;
      const std::uint32_t from = shared_ + Shape::half_row(slot, e / 4, row);
      x[i][0] = device::ld_shared_v4(from + ((2 * e) ^ row) % 8 * 16);
      x[i][1] = device::ld_shared_v4(from + ((2 * e + 1) ^ row) % 8 * 16);
    }
    split_inputs(x, out);
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const int row = row_of(i) + lane_ / kSplitLanes;
      const std::uint32_t to = shared_ + Shape::half_row(slot, 0, row) + (e ^ row % 8) * 16;
      device::st_shared_v4(to, out[i].upper);
      device::st_shared_v4(to + Shape::kHalfBytes, out[i].lower);
      if (e == 0) device::st_shared_u32(shared_ + Shape::kRowScales + (slot * Shape::kRows + row) * 4, out[i].scale);
    }
  }

  const StreamCall& call_;
  std::uint32_t shared_;
  int warp_, lane_;
};

/// Splits x for blocks that have no time for it: a warp has four rows of 128 inputs of a group.
__global__ void __launch_bounds__(kGroupThreads) split_rows(const __grid_constant__ StreamCall call) {
  device::pdl_wait_and_trigger();
  const SplitX& to = call.split;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int e = lane % kSplitLanes;
  const std::uint32_t unit = blockIdx.x * kGroupWarps + threadIdx.x / 32;
  const std::uint32_t chunk = unit % to.chunks;
  const std::uint32_t of_rows = unit / to.chunks;
  const std::uint32_t quads = static_cast<std::uint32_t>(to.rows) / kSplitRows;
  const std::int64_t group = of_rows / quads;
  if (group >= call.groups) return;
  const std::int64_t row = of_rows % quads * kSplitRows + lane / kSplitLanes;
  const int input = static_cast<int>(chunk) * kPiece + e * 16;
  const bool there = row < call.m && input < call.k;
  SixteenInputs x[1] = {};
  if (there) {
    const auto* from = reinterpret_cast<const uint4*>(call.x + row * call.x_row + group * call.x_group + input);
    x[0][0] = from[0];
    x[0][1] = from[1];
  }
  SplitInputs out[1];
  split_inputs(x, out);
  if (there) {
    const std::int64_t at = (group * to.rows + row) * call.k + input;
    *reinterpret_cast<uint4*>(to.upper + at) = out[0].upper;
    *reinterpret_cast<uint4*>(to.lower + at) = out[0].lower;
  }
  if (e == 0) to.scales[(group * to.chunks + chunk) * to.rows + row] = __uint_as_float(out[0].scale);
}

}  // namespace smla::projection::sm90
