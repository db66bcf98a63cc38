#pragma once

#include "device/ptx/barrier.cuh"
#include "device/ptx/cluster_sm90.cuh"
#include "device/ptx/flags.cuh"
#include "device/ptx/mbarrier_sm90.cuh"
#include "device/ptx/pdl.cuh"
#include "device/ptx/shared.cuh"
#include "device/ptx/wgmma_bf16_sm90.cuh"
#include "device/ptx/wgmma_e4m3_sm90.cuh"
#include "device/vec4.cuh"
#include "ops/norm_rope/quantise.cuh"
#include "ops/projection/chained_workers_sm90.cuh"
#include "ops/projection/normed_inputs_sm90.cuh"
#include "ops/projection/split_inputs_sm90.cuh"
#include "ops/projection/stream_split.h"
#include "ops/projection/stream_tiles_sm90.cuh"
#include "ops/projection/widen_codes.cuh"

namespace smla::projection::sm90 {

constexpr int kMeet = 1;  ///< barrier of the consumers of a block

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
        lane_(static_cast<int>(threadIdx.x) % 32) {
    const int warp = static_cast<int>(threadIdx.x) % kGroupThreads / 32;
    output_ = group_ * kGroupOutputs + warp * 16;
  }

  __device__ void run() {
    device::pdl_wait_and_trigger();
    if constexpr (Shape::kNorms) find_inverse_roots<Shape>(call_, shared_);
    if (call_.together > 1) device::cluster_wait();  // the others have made their barriers
    if constexpr (Shape::kChained) {
      if (group_ == 0 && output_ == 0 && device::cluster_rank() == 0) find_workers<Shape>(call_.chained, shared_);
    }
    Tiles<Shape> tiles = tiles_;
    Tile tile = tiles.first();
    do {
      float acc[kTall][kNumbers] = {};
      if (tile.column + group_ * kGroupOutputs >= call_.part[tile.number].n) {
        leave_out(tile);
      } else {
        multiply(tile, acc);
      }
      add_up(tile, acc);
      if (Shape::kChained && tile.number == 0) tell_made(tiles, tile);
    } while (tiles.next(tile));
  }

 private:
  static constexpr int kDeep = Shape::kDeep;
  static constexpr int kTall = Shape::kTall;
  static constexpr int kOutputs = Shape::kOutputs;
  static constexpr int kSumRows = Shape::kSumRows;
  static constexpr int kGroupOutputs = Shape::kGroupOutputs;
  static constexpr int kNumbers = Shape::kRows / 2;  ///< of a product that a lane has
  static constexpr int kPieces = 4;                  ///< of 32 bytes of a weight row in a stage, a product each
  using Numbers = float[kNumbers];
  using Sums = float[Shape::kHalves * kNumbers];  ///< of a stage

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
  __device__ void multiply(const Tile& tile, float (&acc)[kTall][kNumbers]) {
    if constexpr (Shape::kX == StreamedX::kE4M3) {
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
          device::wgmma_ss_bf16(acc[tall], weights(tall) + 2 * i, inputs() + 2 * i, true);
      }
      device::wgmma_commit();
      device::wgmma_wait<0>();
      release();
    }
  }

  /// Of E4M3 weights. Products of both halves of split x lie side by side.
  __device__ void multiply_codes(const Tile& tile, float (&acc)[kTall][kNumbers]) {
#pragma unroll 1
    for (int stage = tile.begin; stage < tile.end; ++stage) {
      wait();
      if constexpr (Shape::kX == StreamedX::kE4M3) {
        multiply_at_once(acc);
      } else {
#pragma unroll
        for (int tall = 0; tall < kTall; ++tall) {
          Sums sums;
          multiply_stage(tall, sums);
          device::wgmma_wait<0>();
          promote(acc[tall], sums);
        }
      }
      release();
    }
  }
  __device__ void multiply_stage(int tall, Sums& sums) const {
    device::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kPieces; ++i) device::wgmma_ss_e4m3(sums, weights(tall) + 2 * i, inputs() + 2 * i, i > 0);
    device::wgmma_commit();
  }
  /// All tiles of a stage: sums of one are added while tensor cores make those of the next.
  __device__ void multiply_at_once(float (&acc)[kTall][kNumbers]) const {
    static_assert(kTall <= 2);
    Sums sums[kTall];
#pragma unroll
    for (int tall = 0; tall < kTall; ++tall) multiply_stage(tall, sums[tall]);
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

  /// Adds the sums of the blocks that share the tile, in their order, and stores them: each block has some of the rows.
  __device__ void add_up(const Tile& tile, const float (&acc)[kTall][kNumbers]) {
#pragma unroll
    for (int round = 0; round < Shape::kRows / kSumRows; ++round) {
      if (call_.together > 1) device::mbarrier_wait_cluster(shared_ + Shape::kSumsRead, sum_parity_ ^ 1);
      put_sums(round, acc);
      tell(Shape::kSumsThere);
      if (call_.together > 1) device::mbarrier_wait_cluster(shared_ + Shape::kSumsThere, sum_parity_);
      switch (tile.sharing) {
        case 1: add_rows<1>(tile, round); break;
        case 2: add_rows<2>(tile, round); break;
        case 3: add_rows<3>(tile, round); break;
        case 4: add_rows<4>(tile, round); break;
        case 5: add_rows<5>(tile, round); break;
        case 6: add_rows<6>(tile, round); break;
        case 7: add_rows<7>(tile, round); break;
        default: add_rows<8>(tile, round);
      }
      tell(Shape::kSumsRead);
      sum_parity_ ^= 1;
    }
  }
  /// The warp's sums of kSumRows rows, for all blocks to read.
  __device__ void put_sums(int round, const float (&acc)[kTall][kNumbers]) const {
    const std::uint32_t to = shared_ + Shape::kSums + (2 * (lane_ % 4) * Shape::kSumStride + output_ + lane_ / 4) * 4;
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
  }
  /// Tells a barrier of all blocks of the cluster that this warp is done. A lone block's consumers wait for each other.
  __device__ void tell(std::uint32_t barrier) const {
    __syncwarp();
    if (call_.together == 1) {
      device::bar_sync(kMeet, kConsumers * kGroupThreads);
    } else if (lane_ < call_.together) {
      device::mbarrier_arrive_cluster(shared_ + barrier, lane_);
    }
  }
  template <int kSharing>
  __device__ static float4 sums_at(std::uint32_t at) {
    if constexpr (kSharing > 1) return device::ld_shared_cluster_v4(at);
    const uint4 v = device::ld_shared_v4(at);
    return {__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w)};
  }
  /// The block's rows of a tile that kSharing blocks share. Loads from up to four blocks are on their way at a time.
  template <int kSharing>
  __device__ void add_rows(const Tile& tile, int round) const {
    constexpr int kFours = kOutputs / 4;
    constexpr int kAtOnce = 4;
    const int share = device::cluster_rank() - tile.first;
    const int first = kSumRows * share / kSharing;  // of the round's rows
    const int rows = kSumRows * (share + 1) / kSharing - first;
    std::uint32_t sums[kSharing];
#pragma unroll
    for (int i = 0; i < kSharing; ++i) {
      sums[i] = shared_ + Shape::kSums;
      if (kSharing > 1) sums[i] = device::place_in_block(sums[i], tile.first + i);
    }
    float unit = 1;  // of NVFP4 weights
    if constexpr (Shape::kX == StreamedX::kBesideNvfp4) unit = *call_.part[tile.number].w_scale;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < rows * kFours; i += kConsumers * kGroupThreads) {
      const int row = first + i / kFours;
      const std::uint32_t at = (row * Shape::kSumStride + i % kFours * 4) * 4;
      float4 sum = {};
#pragma unroll
      for (int begin = 0; begin < kSharing; begin += kAtOnce) {
        float4 part[kAtOnce];
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j)
          if (begin + j < kSharing) part[j] = sums_at<kSharing>(sums[begin + j] + at);
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          if (begin + j >= kSharing) continue;
          const float4& p = part[j];
          sum = begin + j == 0 ? p : float4{sum.x + p.x, sum.y + p.y, sum.z + p.z, sum.w + p.w};
        }
      }
      const StreamPart& part = call_.part[tile.number];
      const std::int64_t of_tensor = tile.row + round * kSumRows + row;
      const std::int64_t column = tile.column + i % kFours * 4;
      if (Shape::kChained && tile.number != 0 && call_.chained.halved) {
        meet(tile, of_tensor, column, sum);
        continue;
      }
      if (of_tensor >= call_.m || column >= part.n) continue;
      if constexpr (Shape::kX == StreamedX::kBesideNvfp4) sum = device::scaled(device::scaled(sum, kNvfp4Unit), unit);
      store(part, tile, of_tensor, column, sum);
      if (call_.quantised.values != nullptr) quantise(part, tile, of_tensor, column, sum);
    }
  }

  /// Tells the blocks that multiply this block's rows of a tile of the first product that they are stored.
  __device__ void tell_made(const Tiles<Shape>& tiles, const Tile& tile) const {
    device::bar_sync(kMeet, kConsumers * kGroupThreads);
    if (threadIdx.x != 0 || tiles.workers() == 0) return;
    const std::int64_t number = (tile.group * static_cast<std::int64_t>(call_.part[0].n) + tile.column) / kOutputs;
    device::st_release(call_.chained.made + 2 * number + device::cluster_rank(), call_.chained.nonce);
  }
  /// Of a tile of the second product that two clusters share: the later one of a row adds the other's sums. A warp has
  /// a row.
  __device__ void meet(const Tile& tile, std::int64_t row, std::int64_t column, const float4& sum) const {
    if (row >= call_.m) return;
    const ChainedProduct& chained = call_.chained;
    const auto sums = [&](int half) {
      return reinterpret_cast<float4*>(chained.sums + (half * std::int64_t{Shape::kRows} + row) * chained.width +
                                       column);
    };
    __stcg(sums(tile.half), sum);
    __syncwarp();
    bool last = false;
    if (lane_ == 0)
      last = device::count_up(chained.met + tile.column / kOutputs * Shape::kRows + row, chained.nonce, 2);
    if (!__any_sync(0xFFFF'FFFFU, last)) return;
    const float4 other = __ldcg(sums(1 - tile.half));
    // The same bits whichever is later: a sum of two.
    const float4 both = {sum.x + other.x, sum.y + other.y, sum.z + other.z, sum.w + other.w};
    if (column < call_.part[1].n) store(call_.part[1], tile, row, column, both);
  }
  /// Whether y is bf16, not float32; of E4M3 weights always.
  __device__ static bool gives_bf16(const StreamPart& part) { return Shape::kX == StreamedX::kE4M3 || part.y_bf16; }

  __device__ void store(const StreamPart& part, const Tile& tile, std::int64_t row, std::int64_t column,
                        const float4& v) const {
    const std::int64_t at = row * part.y_row + tile.group * part.y_group + column;
    const bool bf16 = gives_bf16(part);
    const auto address = reinterpret_cast<std::uint64_t>(part.y) + at * (bf16 ? 2 : 4);
    const bool whole = column + 3 < part.n && address % (bf16 ? 8 : 16) == 0;
    if (!whole) {
      part.store(row, tile.group, column, v.x);
      if (column + 1 < part.n) part.store(row, tile.group, column + 1, v.y);
      if (column + 2 < part.n) part.store(row, tile.group, column + 2, v.z);
      if (column + 3 < part.n) part.store(row, tile.group, column + 3, v.w);
    } else if (bf16) {
      *reinterpret_cast<uint2*>(address) = make_uint2(device::bf16_pair(v.x, v.y), device::bf16_pair(v.z, v.w));
    } else {
      *reinterpret_cast<float4*>(address) = v;
    }
  }

  /// Quantises outputs column..column+3 of each lane as they were stored: a warp has the 128 of a scale.
  __device__ void quantise(const StreamPart& part, const Tile& tile, std::int64_t row, std::int64_t column,
                           const float4& v) const {
    static_assert(kOutputs % Projection::kScaleGroup == 0 && Projection::kScaleGroup == 4 * 32);
    const QuantisedY& y = call_.quantised;
    std::uint32_t codes = 0;
    const int exponent = device::quantised(gives_bf16(part) ? device::widened(device::computed<BF16>(v)) : v, codes);
    const std::int64_t output = tile.group * static_cast<std::int64_t>(part.n) + column;
    device::store_vec4<true>(y.values + row * y.values_row + output, 0, 4, codes);
    float* const scale = y.scales + output / Projection::kScaleGroup * y.scale_chunk + row;
    if (lane_ == 0) *scale = exp2_int(exponent);
    if (row + 1 == call_.m && lane_ < y.padding) scale[1 + lane_] = 0;
  }

  const StreamCall& call_;
  const Tiles<Shape>& tiles_;
  std::uint32_t shared_;
  int group_, lane_;
  int output_;  ///< the first of the warp's in a tile
  int slot_ = 0;
  std::uint32_t parity_ = 0;      ///< of the ring's round
  std::uint32_t sum_parity_ = 0;  ///< of the sums' round
};

}  // namespace smla::projection::sm90
