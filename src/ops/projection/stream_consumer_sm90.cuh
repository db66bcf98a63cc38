#pragma once

#include "device/ptx/barrier.cuh"
#include "device/ptx/cluster_sm90.cuh"
#include "device/ptx/flags.cuh"
#include "device/ptx/mbarrier_sm90.cuh"
#include "device/ptx/pdl.cuh"
#include "device/ptx/shared.cuh"
#include "device/ptx/wgmma_bf16_sm90.cuh"
#include "device/ptx/wgmma_e4m3_sm90.cuh"
#include "ops/projection/chained_workers_sm90.cuh"
#include "ops/projection/cluster_sums_sm90.cuh"
#include "ops/projection/normed_inputs_sm90.cuh"
#include "ops/projection/split_inputs_sm90.cuh"
#include "ops/projection/stream_tiles_sm90.cuh"

namespace smla::projection::sm90 {

/// A consumer warpgroup, which multiplies: its outputs, kTall tiles of 64 of which a warp has sixteen each, by the rows
/// of the tile.
template <class Shape>
class Consumer {
 public:
  __device__ Consumer(const StreamCall& call, const Tiles<Shape>& tiles, std::uint32_t shared)
      : call_(call),
        tiles_(tiles),
        shared_(shared),
        group_(__shfl_sync(0xFFFF'FFFFU, static_cast<int>(threadIdx.x) / kGroupThreads, 0)),
        lane_(static_cast<int>(threadIdx.x) % 32),
        sums_(call, shared, group_ * kGroupOutputs + static_cast<int>(threadIdx.x) % kGroupThreads / 32 * 16) {}

  __device__ void run() {
    device::pdl_wait_and_trigger();
    if constexpr (Shape::kChained) {
      // A block that began late has most of its weights to bring, and the others wait for what it makes of them.
      if (threadIdx.x < kGroupWarps && !device::mbarrier_over(shared_ + Shape::weights_there(kDeep - 1), 0))
        device::st_shared_u32(shared_ + Shape::kMoreUnderWay + 4 * threadIdx.x, kMoreIfLate);
    }
    if constexpr (Shape::kNorms) find_inverse_roots<Shape>(call_, shared_);
    if (call_.together > 1) device::cluster_wait();  // the others have made their barriers
    Tiles<Shape> tiles = tiles_;
    Tile tile = tiles.first();
    do {
      float acc[kTall][kNumbers] = {};
      if (tile.column + group_ * kGroupOutputs >= call_.part[tile.number].n) {
        leave_out(tile);
      } else {
        multiply(tile, acc);
      }
      sums_.add_up(tile, acc);
      if (Shape::kChained && tile.number == 0) tell_made(tiles, tile);
    } while (tiles.next(tile));
  }

 private:
  static constexpr int kDeep = Shape::kDeep;
  static constexpr int kTall = Shape::kTall;
  static constexpr int kOutputs = Shape::kOutputs;
  static constexpr int kGroupOutputs = Shape::kGroupOutputs;
  static constexpr int kNumbers = ClusterSums<Shape>::kNumbers;
  static constexpr int kPieces = 4;  ///< of 32 bytes of a weight row in a stage, a product each
  using Numbers = float[kNumbers];
  using Sums = float[Shape::kHalves * kNumbers];  ///< of a stage

  /// Waits until the stage is there.
  __device__ void wait() const { wait(slot_, parity_); }
  __device__ void wait(int slot, std::uint32_t parity) const {
    device::mbarrier_wait(shared_ + Shape::weights_there(slot), parity);
    device::mbarrier_wait(shared_ + Shape::inputs_there(slot), parity);
    device::fence_proxy_async();
  }
  /// Waits until the stage and the one in the slot `next` are there. A look at a barrier takes over a hundred cycles,
  /// so all four are looked at together first.
  __device__ void wait_pair(int next, std::uint32_t parity) const {
    const std::uint32_t at = shared_ + Shape::weights_there(slot_);
    const std::uint32_t next_at = shared_ + Shape::weights_there(next);
    constexpr std::uint32_t kInputs = Shape::inputs_there(0) - Shape::weights_there(0);
    if (!device::mbarriers_over<kInputs>(at, parity_, next_at, parity)) {
      device::mbarrier_wait(at, parity_);
      device::mbarrier_wait(at + kInputs, parity_);
      device::mbarrier_wait(next_at, parity);
      device::mbarrier_wait(next_at + kInputs, parity);
    }
    device::fence_proxy_async();
  }
  /// Frees the stage.
  __device__ void release() {
    device::mbarrier_arrive_warp(shared_ + Shape::free(slot_));
    slot_ = slot_ + 1 == kDeep ? 0 : slot_ + 1;
    parity_ ^= slot_ == 0 ? 1 : 0;
  }
  __device__ std::uint64_t weights(int slot, int tall) const {
    return device::wgmma_matrix(shared_ + slot * Shape::kStage + (group_ * kTall + tall) * 64 * kPiece, 16, 1024);
  }
  __device__ std::uint64_t inputs(int slot) const {
    return device::wgmma_matrix(shared_ + Shape::half_row(slot, 0, 0), 16, 1024);
  }

  /// Where all outputs are those of other warpgroups.
  __device__ void leave_out(const Tile& tile) {
#pragma unroll 1
    for (int stage = tile.begin; stage < tile.end; ++stage) {
      wait();
      release();
    }
  }

  /// The sums of the block's stages of a tile.
  __device__ void multiply(const Tile& tile, float (&acc)[kTall][kNumbers]) {
    if constexpr (Shape::kX == StreamedX::kE4M3 || Shape::kChained) {
      multiply_codes(tile, acc);
    } else if constexpr (Shape::kX == StreamedX::kBesideNvfp4) {
      multiply_bf16(tile, acc);
    } else if (call_.part[tile.number].e4m3) {
      multiply_codes(tile, acc);
    } else {
      multiply_bf16(tile, acc);
    }
  }
  __device__ void multiply_bf16(const Tile& tile, float (&acc)[kTall][kNumbers]) {
#pragma unroll 1
    for (int stage = tile.begin; stage < tile.end; ++stage) {
      wait();
      device::wgmma_fence();
#pragma unroll
      for (int tall = 0; tall < kTall; ++tall) {
#pragma unroll
        for (int i = 0; i < kPieces; ++i)
          device::wgmma_ss_bf16(acc[tall], weights(slot_, tall) + 2 * i, inputs(slot_) + 2 * i, true);
      }
      device::wgmma_commit();
      device::wgmma_wait<0>();
      release();
    }
  }

  /// Of E4M3 weights. Products of both halves of split x lie side by side.
  __device__ void multiply_codes(const Tile& tile, float (&acc)[kTall][kNumbers]) {
    if constexpr (Shape::kInTurn) {
      multiply_in_pairs(tile, acc[0]);
    } else {
#pragma unroll 1
      for (int stage = tile.begin; stage < tile.end; ++stage) {
        wait();
        if constexpr (Shape::kX == StreamedX::kE4M3) {
          multiply_at_once(acc);
        } else {
#pragma unroll
          for (int tall = 0; tall < kTall; ++tall) {
            Sums sums;
            multiply_stage(slot_, tall, sums);
            device::wgmma_wait<0>();
            promote(acc[tall], sums);
          }
        }
        release();
      }
    }
  }
  __device__ void multiply_stage(int slot, int tall, Sums& sums) const {
    device::wgmma_fence();
    multiply_pieces(slot, tall, sums);
  }
  __device__ void multiply_pieces(int slot, int tall, Sums& sums) const {
#pragma unroll
    for (int i = 0; i < kPieces; ++i)
      device::wgmma_ss_e4m3(sums, weights(slot, tall) + 2 * i, inputs(slot) + 2 * i, i > 0);
    device::wgmma_commit();
  }
  /// Of few rows, where a stage is a chain of waits: two at a time, so that the second's products are made while the
  /// first's sums are added.
  __device__ void multiply_in_pairs(const Tile& tile, float (&acc)[kNumbers]) {
    static_assert(kTall == 1 || !Shape::kInTurn);
    int left = tile.end - tile.begin;
#pragma unroll 1
    for (; left > 1; left -= 2) {
      Sums first, second;
      const bool wraps = slot_ + 1 == kDeep;
      const int next = wraps ? 0 : slot_ + 1;
      const std::uint32_t parity = parity_ ^ (wraps ? 1 : 0);
      if constexpr (Shape::kChained) {
        wait_pair(next, parity);
        device::wgmma_fence();
        multiply_pieces(slot_, 0, first);
        multiply_pieces(next, 0, second);
      } else {  // no registers for more
        wait(slot_, parity_);
        multiply_stage(slot_, 0, first);
        wait(next, parity);
        multiply_stage(next, 0, second);
      }
      device::wgmma_wait<1>();
      promote(acc, first);
      release();
      device::wgmma_wait<0>();
      promote(acc, second);
      release();
    }
    if (left == 0) return;
    Sums last;
    wait();
    multiply_stage(slot_, 0, last);
    device::wgmma_wait<0>();
    promote(acc, last);
    release();
  }
  /// All tiles of a stage: sums of one are added while tensor cores make those of the next.
  __device__ void multiply_at_once(float (&acc)[kTall][kNumbers]) const {
    static_assert(kTall <= 2);
    Sums sums[kTall];
#pragma unroll
    for (int tall = 0; tall < kTall; ++tall) multiply_stage(slot_, tall, sums[tall]);
    device::wgmma_wait<kTall - 1>();
    promote(acc[0], sums[0]);
    if constexpr (kTall == 2) {
      device::wgmma_wait<0>();
      promote(acc[1], sums[1]);
    }
  }

  /// Adds the sums of a stage, times the scales of the rows and of the weights.
  __device__ void promote(Numbers& acc, const Sums& sums) const {
    const float scale = device::ld_shared_f32(shared_ + Shape::kWeightScales + (slot_ * kConsumers + group_) * 4);
    const std::uint32_t scales = shared_ + Shape::kRowScales + (slot_ * Shape::kRows + 2 * (lane_ % 4)) * 4;
#pragma unroll
    for (int i = 0; i < kNumbers; i += 4) {
      const uint2 of_rows = device::ld_shared_v2(scales + 2 * i * 4);
      const float left = __uint_as_float(of_rows.x);
      const float right = __uint_as_float(of_rows.y);
      const auto add = [&](int j, float of_row) {
        if constexpr (Shape::kX == StreamedX::kE4M3) {
          acc[j] = fmaf(sums[j], of_row * scale, acc[j]);
        } else {
          const float sum = fmaf(sums[kNumbers + j], 1 / kLower, sums[j]);
          acc[j] = fmaf(sum * of_row, scale, acc[j]);
        }
      };
      add(i, left);
      add(i + 1, right);
      add(i + 2, left);
      add(i + 3, right);
    }
  }

  /// Tells the blocks that multiply this block's rows of a tile of the first product that they are stored.
  __device__ void tell_made(const Tiles<Shape>& tiles, const Tile& tile) const {
    device::bar_sync(kMeet, kConsumers * kGroupThreads);
    if (threadIdx.x != 0 || tiles.workers() == 0) return;
    const std::int64_t number = (tile.group * static_cast<std::int64_t>(call_.part[0].n) + tile.column) / kOutputs;
    device::st_release(call_.chained.made + 2 * number + device::cluster_rank(), call_.chained.nonce);
  }

  const StreamCall& call_;
  const Tiles<Shape>& tiles_;
  std::uint32_t shared_;
  int group_, lane_;
  ClusterSums<Shape> sums_;
  int slot_ = 0;
  std::uint32_t parity_ = 0;  ///< of the ring's round
};

}  // namespace smla::projection::sm90
