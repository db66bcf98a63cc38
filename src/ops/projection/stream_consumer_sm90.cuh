#pragma once

#include "device/ptx/ldmatrix.cuh"
#include "device/ptx/mbarrier_sm90.cuh"
#include "device/ptx/pdl.cuh"
#include "device/ptx/shared.cuh"
#include "device/ptx/wgmma_bf16_sm90.cuh"
#include "device/vec4.cuh"
#include "ops/projection/stream_tiles_sm90.cuh"
#include "ops/projection/widen_codes.cuh"

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
    output_ = group_ * Shape::kGroupOutputs + warp * 16;
    weights_ = (output_ + lane_ % 16) * kPiece + ((lane_ / 16) ^ lane_ % 8) * 16;
  }

  __device__ void run() {
    device::pdl_wait_and_trigger();
    Tiles<Shape::kRows> tiles(call_);
    Tile tile;
#pragma unroll 1
    while (tiles.next(tile)) {
      float acc[kTall][Shape::kParts][kNumbers] = {};
      if (tile.column + group_ * kGroupOutputs >= call_.part[tile.number].n) {
        leave_out(tile);
      } else if (call_.part[tile.number].e4m3) {
        multiply_tile<true>(tile, acc);
      } else {
        multiply_tile<false>(tile, acc);
      }
      add_up(tile, acc);
    }
  }

 private:
  static constexpr int kDeep = Shape::kDeep;
  static constexpr int kConsumers = Shape::kConsumers;
  static constexpr int kTall = Shape::kTall;
  static constexpr int kGroupOutputs = Shape::kGroupOutputs;
  static constexpr int kNumbers = Shape::kWidth / 2;  ///< of a product that a lane has
  static constexpr int kPieces = 4;                   ///< of 32 bytes of a weight row in a stage
  using Sums = float[kNumbers];

  /// Waits until the stage is there.
  __device__ void wait() const { device::mbarrier_wait(shared_ + Shape::kBarriers + 8 * slot_, parity_); }

  /// The weights of the lane's rows in the pieces [kBegin, kBegin + kCount) of 32 bytes of a stage, for each product in
  /// the order of wgmma. Of E4M3 `nans` gets the high bits of bytes that were NaN, of the upper eight rows and of the
  /// lower.
  template <bool kE4M3, int kBegin, int kCount>
  __device__ void take(std::uint32_t (&a)[2 * kCount][4], int tall, std::uint32_t (&nans)[2]) const {
    const std::uint32_t at = shared_ + slot_ * Shape::kStage + weights_ + tall * 64 * kPiece;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      if constexpr (kE4M3) {
        std::uint32_t codes[4];
        device::ldmatrix_x4(codes, at ^ (32 * (kBegin + j)));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint2 numbers = widen_e4m3(codes[i], nans[i % 2]);
          a[2 * j + i / 2][i % 2] = numbers.x;
          a[2 * j + i / 2][i % 2 + 2] = numbers.y;
        }
      } else {
        device::ldmatrix_x4(a[j], at ^ (32 * (kBegin + j)));
      }
    }
  }

  /// Asks for the products of the weights of such pieces with kWidth rows of x.
  template <bool kE4M3, int kBegin, int kCount>
  __device__ void ask(Sums& sums, const std::uint32_t (&a)[2 * kCount][4], int part) const {
    const std::uint64_t x =
        device::wgmma_matrix(shared_ + slot_ * Shape::kStage + kWeightBytes + part * Shape::kWidth * 128, 16, 1024);
    constexpr int kOfPiece = kE4M3 ? 2 : 1;
    device::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kCount * kOfPiece; ++i) {
      const int s = kBegin * kOfPiece + i;
      device::wgmma_rs_bf16(sums, a[i], x + s / 4 * (Shape::kColumnBytes / 16) + s % 4 * 2, s > 0);
    }
    device::wgmma_commit();
  }
  __device__ static void promote(Sums& acc, const Sums& sums, float scale) {
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) acc[i] = fmaf(scale, sums[i], acc[i]);
  }
  __device__ void step() {
    slot_ = slot_ + 1 == kDeep ? 0 : slot_ + 1;
    parity_ ^= slot_ == 0 ? 1 : 0;
  }
  __device__ void release(int slot) const {
    device::mbarrier_arrive_warp(shared_ + Shape::kBarriers + 8 * (kDeep + slot));
  }

  /// The products of half a stage, whole ones.
  template <bool kE4M3, int kBegin>
  __device__ void multiply(Sums& sums, std::uint32_t (&nans)[2]) const {
    std::uint32_t a[kPieces][4];
    take<kE4M3, kBegin, kPieces / 2>(a, 0, nans);
    ask<kE4M3, kBegin, kPieces / 2>(sums, a, 0);
    device::wgmma_wait<0>();
  }

  /// Where all outputs are those of other warpgroups.
  __device__ void leave_out(const Tile& tile) {
#pragma unroll 1
    for (int stage = tile.begin; stage < tile.end; ++stage) {
      wait();
      release(slot_);
      step();
    }
  }

  /// The sums of the block's stages of a tile.
  template <bool kE4M3>
  __device__ void multiply_tile(const Tile& tile, float (&acc)[kTall][Shape::kParts][kNumbers]) {
    const StreamPart& part = call_.part[tile.number];
    const float* scales = nullptr;
    float next_scale = 1;
    int stages = tile.end - tile.begin;
    if constexpr (kE4M3) {
      if (stages > 0) {
        const std::int64_t column = tile.column + group_ * kGroupOutputs;
        scales = part.w_scale + tile.group * part.w_scale_group + column / Projection::kWeightBlock * part.w_scale_row +
                 tile.begin;
        next_scale = *scales;
      }
    }
    std::uint32_t nans[kTall][2] = {};
    const auto begin_stage = [&] {
      const float scale = next_scale;
      if constexpr (kE4M3) {
        scales += stages > 1 ? 1 : 0;
        next_scale = *scales;
      }
      return scale;
    };
    if constexpr (kTall == 1) {
#pragma unroll 1
      for (; stages > 0; --stages) {
        const float scale = begin_stage();
        wait();
        Sums sums;
        multiply<kE4M3, 0>(sums, nans[0]);
        multiply<kE4M3, kPieces / 2>(sums, nans[0]);
        promote(acc[0][0], sums, scale);
        release(slot_);
        step();
      }
    } else {
#pragma unroll 1
      for (; stages > 0; --stages) {
        const float scale = begin_stage();
        wait();
#pragma unroll
        for (int tall = 0; tall < kTall; ++tall) {
          std::uint32_t a[2 * kPieces][4];
          take<kE4M3, 0, kPieces>(a, tall, nans[tall]);
#pragma unroll
          for (int i = 0; i < Shape::kParts; ++i) {
            Sums sums;
            ask<kE4M3, 0, kPieces>(sums, a, i);
            device::wgmma_wait<0>();
            promote(acc[tall][i], sums, scale);
          }
        }
        release(slot_);
        step();
      }
    }
    if constexpr (kE4M3) {
#pragma unroll
      for (int tall = 0; tall < kTall; ++tall) mark(acc[tall], nans[tall]);
    }
  }

  /// Makes the outputs of rows that had a NaN NaN. The four lanes of a row have all of its inputs.
  __device__ static void mark(float (&acc)[Shape::kParts][kNumbers], const std::uint32_t (&nans)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      std::uint32_t found = nans[half] & 0x8080'8080U;
      found |= __shfl_xor_sync(0xFFFF'FFFFU, found, 1);
      found |= __shfl_xor_sync(0xFFFF'FFFFU, found, 2);
      if (found == 0) continue;
#pragma unroll
      for (int i = 0; i < Shape::kParts; ++i) {
#pragma unroll
        for (int j = 0; j < kNumbers; j += 4)
          acc[i][j + 2 * half] = acc[i][j + 2 * half + 1] = __int_as_float(0x7FC0'0000);
      }
    }
  }

  /// Adds the sums of the blocks that share the tile, in their order, and stores them: each block has some of the rows.
  __device__ void add_up(const Tile& tile, const float (&acc)[kTall][Shape::kParts][kNumbers]) const {
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
          constexpr int kEights = Shape::kWidth / 8;
          const int eight = round * (kSumRows / 8) + j;
          const float* four = acc[tall][eight / kEights] + eight % kEights * 4;
          const std::uint32_t at = to + (8 * j * Shape::kSumStride + 64 * tall) * 4;
          device::st_shared_f32(at, four[0]);
          device::st_shared_f32(at + Shape::kSumStride * 4, four[1]);
          device::st_shared_f32(at + 32, four[2]);
          device::st_shared_f32(at + Shape::kSumStride * 4 + 32, four[3]);
        }
      }
      __syncwarp();  // lanes part where a row has a NaN
      device::cluster_arrive();
      device::cluster_wait();
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
      __syncwarp();
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
  int output_;             ///< the first of the warp's in a tile
  std::uint32_t weights_;  ///< where the lane finds its first piece of a stage
  int slot_ = 0;
  std::uint32_t parity_ = 0;  ///< of the ring's round
};

}  // namespace smla::projection::sm90
