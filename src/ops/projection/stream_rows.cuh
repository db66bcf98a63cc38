#pragma once

#include "device/ptx/cp_async.cuh"
#include "device/ptx/mma_sm80.cuh"
#include "device/ptx/pdl.cuh"
#include "device/ptx/shared.cuh"
#include "ops/projection/few_rows.cuh"
#include "ops/projection/operands.cuh"

namespace smla::projection {

// Few rows of bf16 x by weights that are read once, of one or several weights in one launch. Weights are the matrix A
// of mma.sync, 16 outputs a tile, and rows of x its matrix B, 8 a tile. The eight warps of a block divide k: warp w has
// the inputs of chunks w, w + 8, ... of 128. Each warp copies its weights through a ring of its own in shared memory;
// a lane reads back only what it has copied itself, so no warp waits for another before the sums are added. Weights do
// not depend on the kernel before, so the ring is filled before pdl_wait().
//
// The order of additions depends on k and the weights' dtype alone: not on the rows, the tiles or the other weights.

constexpr int kStreamWarps = 8;
constexpr int kStreamThreads = 32 * kStreamWarps;
constexpr int kStreamUnit = 64;  ///< inputs of x that a warp holds at once

/// One of the weights of a call, and what is made with it.
struct StreamPart {
  const void* w = nullptr;
  const float* w_scale = nullptr;  ///< of E4M3 w
  void* y = nullptr;
  std::int64_t y_row = 0, y_group = 0;  ///< strides in elements
  std::int64_t w_scale_group = 0, w_scale_row = 0;
  std::int64_t n = 0;
  std::uint32_t first = 0;            ///< the number of its first tile among all tiles of the call
  std::uint32_t tiles_of_group = 0;   ///< its tiles in a group
  bool e4m3 = false, y_bf16 = false;  ///< dtypes; otherwise w is bf16 and y float32

  __device__ void store(std::int64_t row, std::int64_t group, std::int64_t column, float v) const {
    const std::int64_t at = row * y_row + group * y_group + column;
    if (y_bf16) {
      static_cast<BF16*>(y)[at] = to_bf16(v);
    } else {
      static_cast<float*>(y)[at] = v;
    }
  }
};

/// The weights of one input.
struct StreamCall {
  static constexpr int kMaxParts = 8;
  const BF16* x = nullptr;
  std::int64_t x_row = 0, x_group = 0;  ///< strides in elements
  std::int64_t m = 0, k = 0;
  std::uint32_t row_blocks = 1;
  int parts = 0;
  StreamPart part[kMaxParts];
};

/// kTall: tiles of 16 outputs of a block; kWide: tiles of 8 rows of x.
template <int kTall, int kWide>
struct StreamShape {
  static constexpr int kOutputs = 16 * kTall;
  static constexpr int kRows = 8 * kWide;
  static constexpr int kStages = kTall == 1 ? 4 : 3;
  static constexpr int kStageBytes = 2048 * kTall;  ///< of a warp: 64 inputs of bf16, 128 of E4M3
  static constexpr int kShared = kStreamWarps * kStages * kStageBytes;
  static constexpr int kSumStride = kOutputs + 4;  ///< floats from row to row: no two lanes of a store in one bank
  static constexpr int kBlocks = kTall > 1 ? 1 : kWide == 1 ? 3 : 2;  ///< of a multiprocessor at once, by registers
  static_assert(kStreamWarps * kRows * kSumStride * 4 <= kShared);    // the sums take the place of the ring
};

/// The sixteen weights of a lane's rows r and r + 8 that meet a Sixteen of x.
struct TwoRows {
  Sixteen top, bottom;
};
__device__ inline void multiply(float (&d)[4], const TwoRows& w, const Sixteen& x) {
  device::mma_m16n8k16_bf16(d, w.top.low.x, w.bottom.low.x, w.top.low.y, w.bottom.low.y, x.low.x, x.low.y);
  device::mma_m16n8k16_bf16(d, w.top.low.z, w.bottom.low.z, w.top.low.w, w.bottom.low.w, x.low.z, x.low.w);
  device::mma_m16n8k16_bf16(d, w.top.high.x, w.bottom.high.x, w.top.high.y, w.bottom.high.y, x.high.x, x.high.y);
  device::mma_m16n8k16_bf16(d, w.top.high.z, w.bottom.high.z, w.top.high.w, w.bottom.high.w, x.high.z, x.high.w);
}

/// A warp's part of a tile: the products of its chunks, in `acc`.
template <bool kE4M3, int kTall, int kWide>
__device__ inline void stream_tile(const StreamCall& call, const StreamPart& part, std::int64_t row, std::int64_t group,
                                   std::int64_t column, std::uint32_t ring, float (&acc)[kTall][kWide][4]) {
  using Shape = StreamShape<kTall, kWide>;
  constexpr int kBytes = kE4M3 ? 1 : 2;
  constexpr int kInputs = kE4M3 ? kChunk : kStreamUnit;  // of a stage
  constexpr int kUnits = kInputs / kStreamUnit;
  constexpr int kTogether = kWide < 4 ? kWide : 4;  // tiles of x with sums of their own before a scale
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int quarter = lane % 4;
  const int inputs = static_cast<int>(call.k);
  const int chunks = (inputs + kChunk - 1) / kChunk;
  const int stages = (chunks + kStreamWarps - 1 - warp) / kStreamWarps * (kChunk / kInputs);
  const auto input_of = [&](int stage) {
    return kE4M3 ? (warp + kStreamWarps * stage) * kChunk
                 : (warp + kStreamWarps * (stage / 2)) * kChunk + stage % 2 * kStreamUnit;
  };

  const std::uint32_t own = ring + warp * Shape::kStages * Shape::kStageBytes + 16 * lane;
  const std::int64_t first = column + lane / 4;
  const int outputs = static_cast<int>(min(part.n - first, std::int64_t{Shape::kOutputs}));  // from the lane's first on
  const auto* weights = static_cast<const std::uint8_t*>(part.w) + (group * part.n + first) * call.k * kBytes;
  const auto fetch = [&](int stage) {
    if (stage < stages) {
      const int input = input_of(stage) + 16 / kBytes * quarter;
      const std::uint32_t to = own + stage % Shape::kStages * Shape::kStageBytes;
#pragma unroll
      for (int i = 0; i < 2 * kTall; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int k = input + 64 / kBytes * j;
          const bool there = 8 * i < outputs && k < inputs;
          const std::uint8_t* from = weights + (8 * i * call.k + k) * kBytes;
          device::cp_async<16>(to + 512 * (2 * i + j), there ? from : part.w, there);
        }
      }
    }
    device::cp_async_commit();
  };
  // A lane's sixteen inputs of a unit: bf16 weights come eight at a time, E4M3 sixteen.
  const BF16* xs = call.x + (row + lane / 4) * call.x_row + group * call.x_group;
  const int rows = static_cast<int>(min(call.m - row - lane / 4, std::int64_t{Shape::kRows}));
  const auto load = [&](int tile, int input) {
    constexpr int kApart = kE4M3 ? 8 : 32;
    const int k = input + (kE4M3 ? 16 : 8) * quarter;
    const BF16* at = xs + 8 * tile * call.x_row + k;
    Sixteen x;
    if (8 * tile < rows && k < inputs) x.low = *reinterpret_cast<const uint4*>(at);
    if (8 * tile < rows && k + kApart < inputs) x.high = *reinterpret_cast<const uint4*>(at + kApart);
    return x;
  };
  const auto weights_of = [&](std::uint32_t stage_at, int tile, int unit) {
    const auto piece = [&](int half, int j) {
      return device::ld_shared_v4(stage_at + 512 * (4 * tile + 2 * half + j));
    };
    if constexpr (kE4M3) {
      return TwoRows{sixteen_of_e4m3(piece(0, unit)), sixteen_of_e4m3(piece(1, unit))};
    } else {
      return TwoRows{{piece(0, 0), piece(0, 1)}, {piece(1, 0), piece(1, 1)}};
    }
  };

#pragma unroll
  for (int stage = 0; stage < Shape::kStages; ++stage) fetch(stage);
  device::pdl_wait_and_trigger();
  Sixteen next;
  if constexpr (kWide == 1) next = load(0, input_of(0));
  for (int stage = 0; stage < stages; ++stage) {
    const int input = input_of(stage);
    float scale = 1;
    if constexpr (kE4M3)
      scale = part.w_scale[group * part.w_scale_group + column / Projection::kWeightBlock * part.w_scale_row +
                           input / Projection::kWeightBlock];
    device::cp_async_wait<Shape::kStages - 1>();
#pragma unroll
    for (int begin = 0; begin < kWide; begin += kTogether) {
      float sums[kTall][kTogether][4] = {};
#pragma unroll
      for (int unit = 0; unit < kUnits; ++unit) {
        TwoRows w[kTall];
#pragma unroll
        for (int t = 0; t < kTall; ++t) w[t] = weights_of(own + stage % Shape::kStages * Shape::kStageBytes, t, unit);
#pragma unroll
        for (int n = 0; n < kTogether; ++n) {
          Sixteen x;
          if constexpr (kWide == 1) {  // there is room for the next one
            x = next;
            next = load(0, unit + 1 < kUnits ? input + kStreamUnit * (unit + 1) : input_of(stage + 1));
          } else {
            x = load(begin + n, input + kStreamUnit * unit);
          }
#pragma unroll
          for (int t = 0; t < kTall; ++t) multiply(kE4M3 ? sums[t][n] : acc[t][begin + n], w[t], x);
        }
      }
      if constexpr (kE4M3) {
#pragma unroll
        for (int t = 0; t < kTall; ++t) {
#pragma unroll
          for (int n = 0; n < kTogether; ++n) {
#pragma unroll
            for (int v = 0; v < 4; ++v) acc[t][begin + n][v] += scale * sums[t][n][v];
          }
        }
      }
    }
    fetch(stage + Shape::kStages);
  }
}

template <int kTall, int kWide>
__global__ void __launch_bounds__(kStreamThreads, StreamShape<kTall, kWide>::kBlocks)
    stream_rows(const __grid_constant__ StreamCall call) {
  using Shape = StreamShape<kTall, kWide>;
  extern __shared__ __align__(128) std::uint8_t stream_shared[];
  const std::uint32_t ring = device::shared_address(stream_shared);
  // Blocks of rows are innermost, so that those that run together share their weights in L2.
  const std::uint32_t tile = blockIdx.x / call.row_blocks;
  const std::int64_t row = std::int64_t{blockIdx.x % call.row_blocks} * Shape::kRows;
  int number = 0;
  while (number + 1 < call.parts && tile >= call.part[number + 1].first) ++number;
  const StreamPart& part = call.part[number];
  const std::int64_t group = (tile - part.first) / part.tiles_of_group;
  const std::int64_t column = std::int64_t{(tile - part.first) % part.tiles_of_group} * Shape::kOutputs;

  float acc[kTall][kWide][4] = {};
  if (part.e4m3) {
    stream_tile<true, kTall, kWide>(call, part, row, group, column, ring, acc);
  } else {
    stream_tile<false, kTall, kWide>(call, part, row, group, column, ring, acc);
  }

  // The sums of the warps, [warp][row][output], are added in the warps' order.
  auto* sums = reinterpret_cast<float*>(stream_shared);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int output = static_cast<int>(threadIdx.x) % 32 / 4;
  const int pair = static_cast<int>(threadIdx.x) % 4 * 2;
  device::cp_async_wait<0>();
  __syncthreads();
#pragma unroll
  for (int t = 0; t < kTall; ++t) {
#pragma unroll
    for (int n = 0; n < kWide; ++n) {
      float* at = sums + (warp * Shape::kRows + 8 * n + pair) * Shape::kSumStride + 16 * t + output;
      at[0] = acc[t][n][0];
      at[Shape::kSumStride] = acc[t][n][1];
      at[8] = acc[t][n][2];
      at[Shape::kSumStride + 8] = acc[t][n][3];
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < Shape::kRows * Shape::kOutputs; i += kStreamThreads) {
    const int r = i / Shape::kOutputs;
    const int j = i % Shape::kOutputs;
    if (row + r >= call.m || column + j >= part.n) continue;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kStreamWarps; ++w) sum += sums[(w * Shape::kRows + r) * Shape::kSumStride + j];
    part.store(row + r, group, column + j, sum);
  }
}

}  // namespace smla::projection
