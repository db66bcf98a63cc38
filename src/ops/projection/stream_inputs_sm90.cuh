#pragma once

#include "device/ptx/cp_async.cuh"
#include "device/ptx/mbarrier_sm90.cuh"
#include "device/ptx/pdl.cuh"
#include "device/ptx/shared.cuh"
#include "ops/projection/split_inputs_sm90.cuh"
#include "ops/projection/stream_tiles_sm90.cuh"

namespace smla::projection::sm90 {

/// The warpgroup that brings x: of a stage the inputs of its weights for each row of the tile, swizzled. Beside E4M3
/// weights bf16 inputs are split, here or before (Shape::kSplitBefore).
template <class Shape>
class InputProducer {
 public:
  __device__ InputProducer(const StreamCall& call, const Tiles<Shape>& tiles, std::uint32_t shared)
      : call_(call),
        tiles_(tiles),
        shared_(shared),
        warp_(static_cast<int>(threadIdx.x) % kGroupThreads / 32),
        lane_(static_cast<int>(threadIdx.x) % 32) {}

  __device__ void run() {
    device::pdl_wait_and_trigger();
    if constexpr (Shape::kCopied) {
      fill_ring<Shape>(
          tiles_, shared_, [&](const Tile& tile) { begin_copies(tile); }, [&](int slot) { copy(slot); });
    } else if constexpr (Shape::kInTurn) {
      run_in_turn();
    } else {
      run_bf16();
    }
  }

 private:
  static constexpr int kLag = 2;                                          ///< see work_ring()
  static constexpr int kUnits = Shape::kRows / kSplitRows / kGroupWarps;  ///< of rows, of a warp
  static_assert(kUnits * kSplitRows * kGroupWarps == Shape::kRows);

  /// A warp waits for its rows of a stage, and tells the stage's barrier.
  __device__ void run_bf16() const {
    work_ring<Shape, kLag>(
        tiles_, shared_, [&](const Cursor<Shape>& at, int slot) { bring(at, slot); },
        [&](const Tile& /*tile*/, int slot) {
          __syncwarp();
          device::mbarrier_arrive_warp(shared_ + Shape::inputs_there(slot));
        });
  }

  __device__ int row_of(int unit) const { return (unit * kGroupWarps + warp_) * kSplitRows; }

  __device__ void bring(const Cursor<Shape>& at, int slot) const {
    if (call_.part[at.tile.number].e4m3) {
      bring_split(at, slot);
    } else {
      bring_bf16(at, slot);
    }
  }
  __device__ void bring_bf16(const Cursor<Shape>& at, int slot) const {
    const int input = at.stage * 64 + lane_ % 8 * 8;
    const BF16* x = call_.x + at.tile.group * call_.x_group + input;
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      const int row = row_of(unit) + lane_ / 8;
      const bool there = at.tile.row + row < call_.m && input < call_.k;
      device::cp_async<16>(shared_ + Shape::half_row(slot, 0, row) + ((lane_ ^ row) % 8) * 16,
                           there ? x + (at.tile.row + row) * call_.x_row : call_.x, there);
    }
  }
  /// x as the caller has it: E4M3 with scales, or bf16 beside NVFP4 weights, 128 bytes of each row a stage.
  __device__ void begin_copies(const Tile& tile) {
    constexpr bool kCodes = Shape::kX == StreamedX::kE4M3;
    const int row = row_of(0) + lane_ / 8;
    const int thread = warp_ * 32 + lane_;
    rows_ = static_cast<int>(min(call_.m - tile.row, std::int64_t{Shape::kRows}));
    const std::int64_t first = tile.group * call_.x_group + (tile.row + row) * call_.x_row;
    from_ = kCodes ? call_.coded.codes + first : reinterpret_cast<const std::uint8_t*>(call_.x + first);
    from_ += tile.begin * kPiece + lane_ % 8 * 16;
    if constexpr (kCodes) {
      const CodedX& x = call_.coded;
      scales_ = x.scales + tile.group * x.scale_group + tile.begin * x.scale_chunk + tile.row + thread;
    }
  }
  __device__ void copy(int slot) {
    constexpr int kRowsAtOnce = kSplitRows * kGroupWarps;
    constexpr bool kCodes = Shape::kX == StreamedX::kE4M3;
    const int row = row_of(0) + lane_ / 8;
    const std::uint32_t to = shared_ + Shape::half_row(slot, 0, row) + ((lane_ ^ row) % 8) * 16;
    const std::uint8_t* from = from_;
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      device::cp_async<16>(to + unit * kRowsAtOnce * 128, from, row + unit * kRowsAtOnce < rows_);
      from += kRowsAtOnce * call_.x_row * (kCodes ? 1 : 2);
    }
    if constexpr (kCodes) {
      const int thread = warp_ * 32 + lane_;
      if (thread < Shape::kRows) {
        device::cp_async<4>(shared_ + Shape::kRowScales + (slot * Shape::kRows + thread) * 4, scales_, thread < rows_);
      }
      scales_ += call_.coded.scale_chunk;
    }
    device::cp_async_arrive(shared_ + Shape::inputs_there(slot));
    from_ += kPiece;
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

  /// Warps take stages in turn: each waits for all rows of its own, and splits them where the weights are E4M3.
  __device__ void run_in_turn() const {
    static_assert(Shape::kDeep >= kGroupWarps);
    Cursor<Shape> at(tiles_, warp_);
    RingSlot<Shape> slot{.number = warp_};
#pragma unroll 1
    while (at.there) {
      slot.wait_free(shared_);
      const bool e4m3 = call_.part[at.tile.number].e4m3;
      const int rows = static_cast<int>(min(call_.m - at.tile.row, std::int64_t{Shape::kRows}));
      bring_all(at, slot.number, rows, e4m3);
      device::cp_async_commit();
      device::cp_async_wait<0>();
      __syncwarp();
      if (e4m3) split(slot.number, rows);
      device::mbarrier_arrive_warp(shared_ + Shape::inputs_there(slot.number));
      slot.number += kGroupWarps;
      if (slot.number >= Shape::kDeep) {
        slot.number -= Shape::kDeep;
        slot.parity ^= 1;
      }
      at.skip(kGroupWarps);
    }
  }
  /// Copies the stage's inputs of all rows, eight lanes a row: beside E4M3 weights two times 64, else 64.
  __device__ void bring_all(const Cursor<Shape>& at, int slot, int rows, bool e4m3) const {
    const int input = at.stage * (e4m3 ? 128 : 64) + lane_ % 8 * 8;
    const int row = lane_ / 8;
    const BF16* from = call_.x + at.tile.group * call_.x_group + (at.tile.row + row) * call_.x_row + input;
    const std::uint32_t even = shared_ + Shape::half_row(slot, 0, row) + ((lane_ ^ row) % 8) * 16;
    const std::uint32_t odd = even ^ 64;  // rows 4 further
#pragma unroll
    for (int i = 0; i < Shape::kRows; i += kSplitRows) {
      const std::uint32_t to = (i / kSplitRows % 2 == 0 ? even : odd) + i * 128;
      const bool there = row + i < rows;
      device::cp_async<16>(to, from, there && input < call_.k);
      if (e4m3) device::cp_async<16>(to + Shape::kHalfBytes, from + 64, there && input + 64 < call_.k);
      from += kSplitRows * call_.x_row;
      asm volatile("" : "+l"(from));  // as for weights
    }
  }
  /// Splits the rows of a stage in their own place, with their scales: four at a time, or twice four side by side.
  __device__ void split(int slot, int rows) const {
    if (rows <= kSplitRows) return split_from<1>(slot, 0);
    static_assert(Shape::kRows % (2 * kSplitRows) == 0);
#pragma unroll 1
    for (int first = 0; first < rows; first += 2 * kSplitRows) split_from<2>(slot, first);
  }
  template <int kCount>
  __device__ void split_from(int slot, int first) const {
    const int e = lane_ % kSplitLanes;  // which sixteen inputs of a row
    const auto row = [&](int i) { return first + kSplitRows * i + lane_ / kSplitLanes; };
    const auto at = [&](int half, int i, int piece) {
      return shared_ + Shape::half_row(slot, half, row(i)) + (piece ^ row(i)) % 8 * 16;
    };
    SixteenInputs x[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      x[i][0] = device::ld_shared_v4(at(e / 4, i, 2 * e));
      x[i][1] = device::ld_shared_v4(at(e / 4, i, 2 * e + 1));
    }
    SplitInputs out[kCount];
    split_inputs(x, out);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      device::st_shared_v4(at(0, i, e), out[i].upper);
      device::st_shared_v4(at(1, i, e), out[i].lower);
      if (e == 0) device::st_shared_u32(shared_ + Shape::kRowScales + (slot * Shape::kRows + row(i)) * 4, out[i].scale);
    }
  }

  const StreamCall& call_;
  const Tiles<Shape>& tiles_;
  std::uint32_t shared_;
  int warp_, lane_;
  // Of x that is copied: where the lane's part of the stage that is next lies, its scale, and rows of the tile.
  const std::uint8_t* from_ = nullptr;
  const float* scales_ = nullptr;
  int rows_ = 0;
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
