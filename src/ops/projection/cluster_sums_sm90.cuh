#pragma once

#include "device/ptx/barrier.cuh"
#include "device/ptx/bulk_copy_sm90.cuh"
#include "device/ptx/cluster_sm90.cuh"
#include "device/ptx/flags.cuh"
#include "device/ptx/mbarrier_sm90.cuh"
#include "device/ptx/shared.cuh"
#include "device/vec4.cuh"
#include "ops/norm_rope/quantise.cuh"
#include "ops/projection/stream_tiles_sm90.cuh"
#include "ops/projection/widen_codes.cuh"

namespace smla::projection::sm90 {

constexpr int kMeet = 1;  ///< barrier of the consumers of a block

/// What a warp of a consumer warpgroup does with the sums that it has made of a tile: the blocks of a cluster that
/// share the tile add theirs, and store y.
template <class Shape>
class ClusterSums {
  static constexpr int kTall = Shape::kTall;
  static constexpr int kOutputs = Shape::kOutputs;
  static constexpr int kSumRows = Shape::kSumRows;

 public:
  static constexpr int kNumbers = Shape::kRows / 2;  ///< of a product that a lane has
  using Numbers = float[kNumbers];

  /// @param output: the warp's first in a tile
  __device__ ClusterSums(const StreamCall& call, std::uint32_t shared, int output)
      : call_(call), shared_(shared), lane_(static_cast<int>(threadIdx.x) % 32), output_(output) {}

  /// Adds the sums of the blocks that share the tile, in their order, and stores them: each block has some of the rows.
  __device__ void add_up(const Tile& tile, const float (&acc)[kTall][kNumbers]) {
#pragma unroll
    for (int round = 0; round < Shape::kRows / kSumRows; ++round) {
      if (call_.together > 1) device::mbarrier_wait_cluster(shared_ + Shape::kSumsRead, parity_ ^ 1);
      if constexpr (Shape::kChained) {
        send_sums(acc[0]);
      } else {
        put_sums(round, acc);
        tell<device::mbarrier_arrive_cluster>(Shape::kSumsThere);
      }
      if (call_.together > 1) device::mbarrier_wait_cluster(shared_ + Shape::kSumsThere, parity_);
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
      tell<device::mbarrier_arrive_read>(Shape::kSumsRead);
      parity_ ^= 1;
    }
  }

 private:
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
    static_assert(!Shape::kChained || (kTall == 1 && kSumRows == Shape::kRows));
    const int own = device::cluster_rank();
#pragma unroll
    for (int j = 0; j < kSumRows / 8; ++j) {
      const float* four = acc + 4 * j;
      const int block = (8 * j + 2 * (lane_ % 4)) / kSentRows;
      const int row = 8 * j + 2 * (lane_ % 4) - block * kSentRows;
      const std::uint32_t place =
          shared_ + Shape::kSums + ((own * kSentRows + row) * Shape::kSumStride + output_ + lane_ / 4) * 4;
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

  /// Tells a barrier of all blocks of the cluster that this warp is done. A lone block's consumers wait for each other.
  template <auto kArrive>
  __device__ void tell(std::uint32_t barrier) const {
    __syncwarp();
    if (call_.together == 1) {
      device::bar_sync(kMeet, kConsumers * kGroupThreads);
    } else if (lane_ < call_.together) {
      kArrive(shared_ + barrier, lane_);
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
  std::uint32_t shared_;
  int lane_;
  int output_;
  std::uint32_t parity_ = 0;  ///< of the sums' round
};

}  // namespace smla::projection::sm90
