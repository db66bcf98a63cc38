#pragma once

#include "device/ptx/barrier.cuh"
#include "device/ptx/bulk_copy_sm90.cuh"
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

  /// Adds the sums of the blocks that share the tile, in their order, and stores them: each block has some of the rows.
  __device__ void add_up(const Tile& tile, const float (&acc)[kTall][kNumbers]) {
#pragma unroll
    for (int round = 0; round < Shape::kRows / kSumRows; ++round) {
      if (call_.together > 1) device::mbarrier_wait_cluster(shared_ + Shape::kSumsRead, sum_parity_ ^ 1);
      if constexpr (Shape::kChained) {
        send_sums(acc[0]);
      } else {
        put_sums(round, acc);
        tell_there();
      }
      if (call_.together > 1) device::mbarrier_wait_cluster(shared_ + Shape::kSumsThere, sum_parity_);
      if constexpr (Shape::kChained) {
        add_rows<kChainedBlocks>(tile, round);
      } else {
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
      }
      tell_read();
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
  /// Of a chained call: sends the warp's sums to the block that adds their rows, the first half of them or the second.
  /// Stores to another block count their bytes at its barrier by themselves, so that none waits for what this one has
  /// stored before. Rows that x does not have are not sent.
  __device__ void send_sums(const Numbers& acc) const {
    static_assert(!Shape::kChained ||
                  (kChainedBlocks == 2 && kTall == 1 && kSumRows == 16 && kSumRows == Shape::kRows));
    const int own = device::cluster_rank();
    const int row = 2 * (lane_ % 4);
    const std::uint32_t place =
        shared_ + Shape::kSums + ((own * kSentRows + row) * Shape::kSumStride + output_ + lane_ / 4) * 4;
#pragma unroll
    for (int block = 0; block < kChainedBlocks; ++block) {
      const float* four = acc + 4 * block;
      if (block == own) {
        device::st_shared_f32(place, four[0]);
        device::st_shared_f32(place + Shape::kSumStride * 4, four[1]);
        device::st_shared_f32(place + 32, four[2]);
        device::st_shared_f32(place + Shape::kSumStride * 4 + 32, four[3]);
      } else {
        const std::uint32_t to = device::place_in_block(place, block);
        const std::uint32_t barrier = device::place_in_block(shared_ + Shape::kSumsThere, block);
        const auto send = [&](std::uint32_t at, float v) { device::st_async(at, __float_as_uint(v), barrier); };
        if (row < sent_rows(block)) {
          send(to, four[0]);
          send(to + 32, four[2]);
        }
        if (row + 1 < sent_rows(block)) {
          send(to + Shape::kSumStride * 4, four[1]);
          send(to + Shape::kSumStride * 4 + 32, four[3]);
        }
      }
    }
    __syncwarp();
    if (lane_ != 0) return;
    if (threadIdx.x == 0) {
      device::mbarrier_arrive_expect(shared_ + Shape::kSumsThere, sent_rows(own) * kOutputs * 4);
    } else {
      device::mbarrier_arrive(shared_ + Shape::kSumsThere);
    }
  }
  static constexpr int kSentRows = kSumRows / kChainedBlocks;  ///< most, to a block
  __device__ int sent_rows(int block) const { return max(min(call_.m - block * kSentRows, kSentRows), 0); }

  /// Tells all blocks of the cluster that this warp's sums are there, or that it has read theirs. A lone block's
  /// consumers wait for each other.
  __device__ void tell_there() const {
    __syncwarp();
    if (call_.together == 1) {
      device::bar_sync(kMeet, kConsumers * kGroupThreads);
    } else if (lane_ < call_.together) {
      device::mbarrier_arrive_cluster(shared_ + Shape::kSumsThere, lane_);
    }
  }
  __device__ void tell_read() const {
    __syncwarp();
    if (call_.together == 1) {
      device::bar_sync(kMeet, kConsumers * kGroupThreads);
    } else if (lane_ < call_.together) {
      device::mbarrier_arrive_read(shared_ + Shape::kSumsRead, lane_);
    }
  }
  template <int kSharing>
  __device__ static float4 sums_at(std::uint32_t at) {
    if constexpr (kSharing > 1 && !Shape::kChained) return device::ld_shared_cluster_v4(at);
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
      if (Shape::kChained) {
        sums[i] += i * kSentRows * Shape::kSumStride * 4;
      } else if (kSharing > 1) {
        sums[i] = device::place_in_block(sums[i], tile.first + i);
      }
    }
    float unit = 1;  // of NVFP4 weights
    if constexpr (Shape::kX == StreamedX::kBesideNvfp4) unit = *call_.part[tile.number].w_scale;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < rows * kFours; i += kConsumers * kGroupThreads) {
      const int row = first + i / kFours;
      const std::int64_t of_tensor = tile.row + round * kSumRows + row;
      if (of_tensor >= call_.m) continue;
      const std::uint32_t at = ((Shape::kChained ? row - first : row) * Shape::kSumStride + i % kFours * 4) * 4;
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
      const std::int64_t column = tile.column + i % kFours * 4;
      if (Shape::kChained && tile.number != 0 && call_.chained.halved) {
        meet(tile, of_tensor, column, sum);
        continue;
      }
      if (column >= part.n) continue;
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
