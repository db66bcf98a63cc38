#pragma once

#include "device/ptx/barrier.cuh"
#include "device/ptx/mbarrier_sm90.cuh"
#include "device/ptx/pdl.cuh"
#include "device/ptx/shared.cuh"
#include "device/ptx/wgmma_bf16_sm90.cuh"
#include "device/ptx/wgmma_e4m3_sm90.cuh"
#include "device/vec4.cuh"
#include "ops/projection/split_inputs_sm90.cuh"
#include "ops/projection/stream_tiles_sm90.cuh"

namespace smla::projection::sm90 {

/// A consumer warpgroup, which multiplies: its outputs, kTall tiles of 64 of which a warp has sixteen each, by the rows
/// of the tile.
template <class Shape>
class Consumer {
 public:
  __device__ Consumer(const StreamCall& call, std::uint32_t shared)
      : call_(call),
        shared_(shared),
        group_(__shfl_sync(0xFFFF'FFFFU, static_cast<int>(threadIdx.x) / kGroupThreads, 0)),
        lane_(static_cast<int>(threadIdx.x) % 32) {
    const int warp = static_cast<int>(threadIdx.x) % kGroupThreads / 32;
    output_ = group_ * kGroupOutputs + warp * 16;
  }

  __device__ void run() {
    device::pdl_wait_and_trigger();
    Tiles<Shape> tiles(call_);
    Tile tile;
#pragma unroll 1
    while (tiles.next(tile)) {
      float acc[kTall][kNumbers] = {};
      if (tile.column + group_ * kGroupOutputs >= call_.part[tile.number].n) {
        leave_out(tile);
      } else if (call_.part[tile.number].e4m3) {
        multiply_codes(tile, acc);
      } else {
        multiply_bf16(tile, acc);
      }
      add_up(tile, acc);
    }
  }

 private:
  static constexpr int kDeep = Shape::kDeep;
  static constexpr int kTall = Shape::kTall;
  static constexpr int kOutputs = Shape::kOutputs;
  static constexpr int kGroupOutputs = Shape::kGroupOutputs;
  static constexpr int kNumbers = Shape::kRows / 2;  ///< of a product that a lane has
  static constexpr int kPieces = 4;                  ///< of 32 bytes of a weight row in a stage, a product each
  using Numbers = float[kNumbers];

  /// Waits until the stage is there.
  __device__ void wait() const {
    device::mbarrier_wait(shared_ + Shape::weights_there(slot_), parity_);
    device::mbarrier_wait(shared_ + Shape::inputs_there(slot_), parity_);
    device::fence_proxy_async();
  }
  /// Frees the stage.
  __device__ void release() {
    device::mbarrier_arrive_warp(shared_ + Shape::free(slot_));
    slot_ = slot_ + 1 == kDeep ? 0 : slot_ + 1;
    parity_ ^= slot_ == 0 ? 1 : 0;
  }
  __device__ std::uint64_t weights(int tall) const {
    return device::wgmma_matrix(shared_ + slot_ * Shape::kStage + (group_ * kTall + tall) * 64 * kPiece, 16, 1024);
  }
  __device__ std::uint64_t inputs() const {
    return device::wgmma_matrix(shared_ + Shape::half_row(slot_, 0, 0), 16, 1024);
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
  __device__ void multiply_bf16(const Tile& tile, float (&acc)[kTall][kNumbers]) {
#pragma unroll 1
    for (int stage = tile.begin; stage < tile.end; ++stage) {
      wait();
      device::wgmma_fence();
#pragma unroll
      for (int tall = 0; tall < kTall; ++tall) {
#pragma unroll
        for (int i = 0; i < kPieces; ++i)
          device::wgmma_ss_bf16(acc[tall], weights(tall) + 2 * i, inputs() + 2 * i, true);
      }
      device::wgmma_commit();
      device::wgmma_wait<0>();
      release();
    }
  }

  /// The same of E4M3 weights and split x: products of both halves of x side by side.
  __device__ void multiply_codes(const Tile& tile, float (&acc)[kTall][kNumbers]) {
#pragma unroll 1
    for (int stage = tile.begin; stage < tile.end; ++stage) {
      wait();
#pragma unroll
      for (int tall = 0; tall < kTall; ++tall) {
        float sums[2 * kNumbers];
        device::wgmma_fence();
#pragma unroll
        for (int i = 0; i < kPieces; ++i) device::wgmma_ss_e4m3(sums, weights(tall) + 2 * i, inputs() + 2 * i, i > 0);
        device::wgmma_commit();
        device::wgmma_wait<0>();
        promote(acc[tall], sums);
      }
      release();
    }
  }

  /// Adds the sums of a stage, times the scales of the rows and of the weights.
  __device__ void promote(Numbers& acc, const float (&sums)[2 * kNumbers]) const {
    const float scale = device::ld_shared_f32(shared_ + Shape::kWeightScales + (slot_ * kConsumers + group_) * 4);
    const std::uint32_t scales = shared_ + Shape::kRowScales + (slot_ * Shape::kRows + 2 * (lane_ % 4)) * 4;
#pragma unroll
    for (int i = 0; i < kNumbers; i += 4) {
      const uint2 of_rows = device::ld_shared_v2(scales + 2 * i * 4);
      const float left = __uint_as_float(of_rows.x);
      const float right = __uint_as_float(of_rows.y);
      const auto add = [&](int j, float of_row) {
        const float sum = fmaf(sums[kNumbers + j], 1 / kLower, sums[j]);
        acc[j] = fmaf(sum * of_row, scale, acc[j]);
      };
      add(i, left);
      add(i + 1, right);
      add(i + 2, left);
      add(i + 3, right);
    }
  }

  /// Adds the sums of the blocks that share the tile, in their order, and stores them: each block has some of the rows.
  __device__ void add_up(const Tile& tile, const float (&acc)[kTall][kNumbers]) const {
    constexpr int kSumRows = Shape::kSumRows;
    constexpr int kFours = kOutputs / 4;
    const StreamPart& part = call_.part[tile.number];
    const std::uint32_t sums = shared_ + Shape::kSums;
    const int share = device::cluster_rank() - tile.first;
    const int first = kSumRows * share / tile.sharing;  // of the block's rows
    const int rows = kSumRows * (share + 1) / tile.sharing - first;
#pragma unroll
    for (int round = 0; round < Shape::kRows / kSumRows; ++round) {
      const std::uint32_t to = sums + (2 * (lane_ % 4) * Shape::kSumStride + output_ + lane_ / 4) * 4;
#pragma unroll
      for (int tall = 0; tall < kTall; ++tall) {
#pragma unroll
        for (int j = 0; j < kSumRows / 8; ++j) {
          const float* four = acc[tall] + (round * (kSumRows / 8) + j) * 4;
          const std::uint32_t at = to + (8 * j * Shape::kSumStride + 64 * tall) * 4;
          device::st_shared_f32(at, four[0]);
          device::st_shared_f32(at + Shape::kSumStride * 4, four[1]);
          device::st_shared_f32(at + 32, four[2]);
          device::st_shared_f32(at + Shape::kSumStride * 4 + 32, four[3]);
        }
      }
      meet();
#pragma unroll 1
      for (int i = static_cast<int>(threadIdx.x); i < rows * kFours; i += kConsumers * kGroupThreads) {
        const int row = first + i / kFours;
        const std::uint32_t at = sums + (row * Shape::kSumStride + i % kFours * 4) * 4;
        float4 sum = device::ld_shared_cluster(at, tile.first);
#pragma unroll 1
        for (int block = 1; block < tile.sharing; ++block) {
          const float4 more = device::ld_shared_cluster(at, tile.first + block);
          sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
        }
        store(part, tile, tile.row + round * kSumRows + row, tile.column + i % kFours * 4, sum);
      }
      meet();
    }
  }
  /// Waits for the consumers of all blocks of the cluster.
  __device__ void meet() const {
    __syncwarp();
    if (call_.together == 1) {
      device::bar_sync(1, kConsumers * kGroupThreads);
    } else {
      device::cluster_arrive();
      device::cluster_wait();
    }
  }

  __device__ void store(const StreamPart& part, const Tile& tile, std::int64_t row, std::int64_t column,
                        const float4& v) const {
    if (row >= call_.m || column >= part.n) return;
    const std::int64_t at = row * part.y_row + tile.group * part.y_group + column;
    const auto address = reinterpret_cast<std::uint64_t>(part.y) + at * (part.y_bf16 ? 2 : 4);
    const bool whole = column + 3 < part.n && address % (part.y_bf16 ? 8 : 16) == 0;
    if (!whole) {
      part.store(row, tile.group, column, v.x);
      if (column + 1 < part.n) part.store(row, tile.group, column + 1, v.y);
      if (column + 2 < part.n) part.store(row, tile.group, column + 2, v.z);
      if (column + 3 < part.n) part.store(row, tile.group, column + 3, v.w);
    } else if (part.y_bf16) {
      *reinterpret_cast<uint2*>(address) = make_uint2(device::bf16_pair(v.x, v.y), device::bf16_pair(v.z, v.w));
    } else {
      *reinterpret_cast<float4*>(address) = v;
    }
  }

  const StreamCall& call_;
  std::uint32_t shared_;
  int group_, lane_;
  int output_;  ///< the first of the warp's in a tile
  int slot_ = 0;
  std::uint32_t parity_ = 0;  ///< of the ring's round
};

}  // namespace smla::projection::sm90
