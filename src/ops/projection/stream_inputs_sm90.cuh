#pragma once

#include "device/ptx/cp_async.cuh"
#include "device/ptx/flags.cuh"
#include "device/ptx/mbarrier_sm90.cuh"
#include "device/ptx/pdl.cuh"
#include "device/ptx/shared.cuh"
#include "ops/projection/chained_workers_sm90.cuh"
#include "ops/projection/normed_inputs_sm90.cuh"
#include "ops/projection/split_inputs_sm90.cuh"
#include "ops/projection/stream_tiles_sm90.cuh"

namespace smla::projection::sm90 {

/// The warpgroup that brings x: of a stage the inputs of its weights for each row of the tile, swizzled. Beside E4M3
/// weights bf16 inputs are split, here or before (Shape::kSplitBefore); else x is copied as it is.
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
    if constexpr (Shape::kInTurn) {
      run_in_turn();
    } else {
      fill_ring<Shape>(
          tiles_, shared_, [&](const Tile& tile, const auto&) { begin(tile); }, [&](int slot) { copy(slot); });
    }
  }

 private:
  static constexpr bool kCodes = Shape::kX == StreamedX::kE4M3;
  static constexpr bool kSplit = Shape::kX == StreamedX::kBF16;  ///< before, where the weights are E4M3
  static constexpr int kRowsAtOnce = kSplitRows * kGroupWarps;
  static constexpr int kUnits = Shape::kInTurn ? 1 : Shape::kRows / kRowsAtOnce;
  static_assert(Shape::kInTurn || kUnits * kRowsAtOnce == Shape::kRows);

  __device__ int row() const { return warp_ * kSplitRows + lane_ / 8; }
  __device__ int thread() const { return warp_ * 32 + lane_; }

  /// Eight lanes copy 128 bytes of a row, sixteen rows at a time.
  __device__ void begin(const Tile& tile) {
    const bool split = kSplit && call_.part[tile.number].e4m3;
    const std::int64_t first = tile.group * call_.x_group + (tile.row + row()) * call_.x_row;
    std::int64_t row_bytes = call_.k * std::int64_t{kCodes ? 1 : 2};
    step_ = kRowsAtOnce * call_.x_row * (kCodes ? 1 : 2);
    lower_ = 0;
    if constexpr (kCodes) {
      const CodedX& x = call_.coded;
      from_ = x.codes + first;
      scales_ = x.scales + tile.group * x.scale_group + tile.begin * x.scale_chunk + tile.row + thread();
      next_scales_ = x.scale_chunk;
    } else {
      from_ = reinterpret_cast<const std::uint8_t*>(call_.x + first);
    }
    if (split) {
      const SplitX& x = call_.split;
      row_bytes = call_.k;
      from_ = x.upper + (tile.group * x.rows + tile.row + row()) * row_bytes;
      step_ = kRowsAtOnce * row_bytes;
      lower_ = x.lower - x.upper;
      scales_ =
          x.scales + (tile.group * static_cast<std::int64_t>(x.chunks) + tile.begin) * x.rows + tile.row + 4 * thread();
      next_scales_ = x.rows;
    }
    const int along = tile.begin * kPiece + lane_ % 8 * 16;
    from_ += along;
    bytes_ = static_cast<int>(row_bytes) - along;
    rows_ = static_cast<int>(min(call_.m - tile.row, std::int64_t{Shape::kRows}));
  }
  __device__ void copy(int slot) {
    const std::uint32_t to = shared_ + Shape::half_row(slot, 0, row()) + ((lane_ ^ row()) % 8) * 16;
    const std::uint32_t scales = shared_ + Shape::kRowScales + slot * Shape::kRows * 4;
    const int rows = bytes_ > 0 ? rows_ : 0;
    const std::uint8_t* from = from_;
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      const bool there = row() + unit * kRowsAtOnce < rows;
      device::cp_async<16>(to + unit * kRowsAtOnce * 128, from, there);
      if (kSplit && lower_ != 0) {
        device::cp_async<16>(to + unit * kRowsAtOnce * 128 + Shape::kHalfBytes, from + lower_, there);
      }
      from += step_;
    }
    if (kCodes && thread() < Shape::kRows) {
      device::cp_async<4>(scales + thread() * 4, scales_, thread() < rows_);
    } else if (kSplit && lower_ != 0 && thread() < Shape::kRows / 4) {
      device::cp_async<16>(scales + thread() * 16, scales_, 4 * thread() < rows_);
    }
    device::cp_async_arrive(shared_ + Shape::inputs_there(slot));
    from_ += kPiece;
    bytes_ -= kPiece;
    scales_ += next_scales_;
  }

  /// Warps take stages in turn: each waits for all rows of its own, and splits them where the weights are E4M3. Of a
  /// chained call, whose ring has room for it, the warp's next stage of the tile is on its way meanwhile.
  __device__ void run_in_turn() const {
    static_assert(Shape::kDeep >= kGroupWarps * (Shape::kChained ? 2 : 1));
    // A warp of the cluster finds its workers, behind its last stage of the first product's own tile: nobody waits for
    // it then, and its claim has been on its way for long.
    [[maybe_unused]] bool finds = warp_ == 0 && device::cluster_rank() == 0;
    [[maybe_unused]] std::uint64_t claimed = 0;
    [[maybe_unused]] const auto find = [&] {
      if (finds) find_workers<Shape>(call_.chained, shared_, claimed);
      finds = false;
    };
    if constexpr (Shape::kChained) {
      device::cluster_wait();  // the other block has made its barriers
      if (finds && lane_ == 0) claimed = claim_own(call_.chained);
      if (tiles_.first().begin == tiles_.first().end) find();
    }
    Cursor<Shape> at(tiles_, warp_);
    RingSlot<Shape> slot{.number = warp_};
    bool brought = false;      // the stage's copies are on their way
    std::uint32_t parity = 0;  // of tiles of the second product of a chained call
    [[maybe_unused]] bool roots_there = false;
#pragma unroll 1
    while (at.there) {
      const bool e4m3 = call_.part[at.tile.number].e4m3;
      const int rows = static_cast<int>(min(call_.m - at.tile.row, std::int64_t{Shape::kRows}));
      RingSlot<Shape> next = slot;
      next.step(kGroupWarps);
      if (!brought) {
        slot.wait_free(shared_);
        if constexpr (Shape::kChained) {
          const bool first = at.stage < at.tile.begin + kGroupWarps;  // of the tile's for this warp
          if (at.tile.number != 0 && first) wait_for_inputs(at, parity);
        }
        bring_all(at, at.stage, slot.number, rows, e4m3);
        device::cp_async_commit();
      }
      if constexpr (Shape::kChained) {
        brought = at.stage + kGroupWarps < at.tile.end;
        if (brought) {
          next.wait_free(shared_);
          bring_all(at, at.stage + kGroupWarps, next.number, rows, e4m3);
          device::cp_async_commit();
        }
      }
      if constexpr (Shape::kNorms) {
        const SixteenWeights weights = norm_weights(call_, at.stage);
        if (!roots_there) wait_for_inverse_roots();
        roots_there = true;
        device::cp_async_wait<0>();
        __syncwarp();
        norm_stage<Shape>(shared_, slot.number, rows, weights);
      } else {
        if (brought) {
          device::cp_async_wait<1>();
        } else {
          device::cp_async_wait<0>();
        }
        __syncwarp();
      }
      if (e4m3) split(slot.number, rows);
      device::mbarrier_arrive_warp(shared_ + Shape::inputs_there(slot.number));
      slot = next;
      if constexpr (Shape::kChained) {
        if (at.stage + kGroupWarps >= at.tile.end) find();
      }
      at.skip(kGroupWarps);
    }
    if constexpr (Shape::kNorms) {
      if (!roots_there) wait_for_inverse_roots();  // a warp without a stage
    }
    if constexpr (Shape::kChained) clear_flags(call_.chained);
  }
  /// Waits until the first product's blocks have stored the inputs of a tile of the second, 128 numbers of each row a
  /// stage. The warp that has the first stage looks and tells the others.
  __device__ void wait_for_inputs(const Cursor<Shape>& at, std::uint32_t& parity) const {
    const bool together = at.tile.end - at.tile.begin >= kGroupWarps;  // or else some warp has no stage of the tile
    const std::uint32_t there = shared_ + Shape::kInputsMade;
    if (together && at.stage != at.tile.begin) {
      device::mbarrier_wait(there, parity);
    } else {
      const ChainedProduct& chained = call_.chained;
      if (chained.halved && lane_ < Shape::kRows) {
        const std::int64_t number = at.tile.column / Shape::kOutputs;
        device::begin_count(chained.met + number * Shape::kRows + lane_, chained.nonce, 2);
      }
#pragma unroll 1
      for (int i = 2 * at.tile.begin + lane_; i < 2 * at.tile.end; i += 32) {
        while (device::ld_acquire(chained.made + i) != chained.nonce) {
        }
      }
      if (together) {
        device::mbarrier_arrive_warp(there);
      } else {
        __syncwarp();
      }
    }
    parity ^= together ? 1 : 0;
  }
  /// Copies the stage's inputs of all rows, eight lanes a row: beside E4M3 weights two times 64, else 64.
  __device__ void bring_all(const Cursor<Shape>& at, int stage, int slot, int rows, bool e4m3) const {
    const int input = stage * (e4m3 ? 128 : 64) + lane_ % 8 * 8;
    const int row = lane_ / 8;
    const bool second = Shape::kChained && at.tile.number != 0;
    const std::int64_t stride = second ? call_.chained.x_row : call_.x_row;
    const int inputs = inputs_of<Shape>(call_, at.tile);
    const BF16* from =
        (second ? call_.chained.x : call_.x) + at.tile.group * call_.x_group + (at.tile.row + row) * stride + input;
    const std::uint32_t even = shared_ + Shape::half_row(slot, 0, row) + ((lane_ ^ row) % 8) * 16;
    const std::uint32_t odd = even ^ 64;  // rows 4 further
#pragma unroll
    for (int i = 0; i < Shape::kRows; i += kSplitRows) {
      const std::uint32_t to = (i / kSplitRows % 2 == 0 ? even : odd) + i * 128;
      const bool there = row + i < rows;
      device::cp_async<16>(to, from, there && input < inputs);
      if (e4m3) device::cp_async<16>(to + Shape::kHalfBytes, from + 64, there && input + 64 < inputs);
      from += kSplitRows * stride;
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
  // Of x that is copied: where the lane's part of the stage that is next lies, and the rows of the tile.
  const std::uint8_t* from_ = nullptr;
  std::int64_t step_ = 0;   ///< bytes from a row of the lane to its next
  std::int64_t lower_ = 0;  ///< bytes from upper to lower parts of x that has been split; 0: it has not
  int rows_ = 0;            ///< of the tile
  int bytes_ = 0;           ///< of a row, from where the lane's part lies
  const float* scales_ = nullptr;
  std::int64_t next_scales_ = 0;  ///< numbers from a stage's scales to the next one's
};

}  // namespace smla::projection::sm90
