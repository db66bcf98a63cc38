#pragma once

#include "device/ptx/cp_async.cuh"
#include "device/ptx/mma_sm80.cuh"
#include "device/ptx/pdl.cuh"
#include "device/ptx/shared.cuh"
#include "ops/projection/few_rows.cuh"
#include "ops/projection/stream_call.cuh"
#include "ops/projection/widen_codes.cuh"

namespace smla::projection {

// Few rows of bf16 x by weights that are read once, of one or several weights in one launch. Weights are the matrix A
// of mma.sync, 16 outputs a tile, and rows of x its matrix B, 8 a tile. The eight warps of a block divide k: warp w has
// pieces w, w + 8, ... of a weight row, each 64 inputs of bf16 or 128 of others. Each warp copies its weights through a
// ring of its own in shared memory; a lane reads back only what it has copied itself, so no warp waits for another
// before the sums are added. Blocks stay: each computes one tile after the other, and its rings are filled across their
// ends. Weights do not depend on the kernel before, so the rings are filled before pdl_wait().
//
// The order of additions depends on k and the weights' dtype alone: not on the rows, the tiles or the other weights.

constexpr int kStreamWarps = 8;
constexpr int kStreamThreads = 32 * kStreamWarps;
constexpr int kStreamPiece = 128;  ///< bytes of a weight row in a stage; NVFP4 weights fill half of them
constexpr int kStreamUnit = 64;    ///< inputs of x that a warp holds at once

/// What weights are.
enum class StreamFormat : std::uint8_t { kBF16, kE4M3, kNvfp4 };

/// What is read in place of inputs that are not there.
__device__ const uint4 kStreamZeros = {0, 0, 0, 0};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr bool kStreamNeedsRegisters = true;  // as nvcc 13.0 compiles for sm_100 and sm_120, which would spill
#else
constexpr bool kStreamNeedsRegisters = false;
#endif

/// kTall: tiles of 16 outputs of a block; kWide: tiles of 8 rows of x; kDeep: stages of a ring.
template <int kTall, int kWide, int kDeep>
struct StreamShape {
  static constexpr int kOutputs = 16 * kTall;
  static constexpr int kRows = 8 * kWide;
  static constexpr int kStageBytes = kOutputs * kStreamPiece;  ///< of a warp
  static constexpr int kRings = kStreamWarps * kDeep * kStageBytes;
  static constexpr int kSumStride = kOutputs + 4;  ///< floats from row to row: no two lanes of a store in one bank
  static constexpr int kShared = kRings + kStreamWarps * 8 * kSumStride * 4;  ///< sums are added 8 rows at a time
  static constexpr int kBlocks = kWide > 2 ? 1 : 2;  ///< of a multiprocessor at once, by registers
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

__device__ inline Sixteen widen_sixteen(const uint4& codes, std::uint32_t& nans) {
  const uint2 a = widen_e4m3(codes.x, nans);
  const uint2 b = widen_e4m3(codes.y, nans);
  const uint2 c = widen_e4m3(codes.z, nans);
  const uint2 d = widen_e4m3(codes.w, nans);
  return {make_uint4(a.x, a.y, b.x, b.y), make_uint4(c.x, c.y, d.x, d.y)};
}
/// Inputs of x in the order of widen_sixteen().
__device__ inline uint4 as_widened(const uint4& x) {
  return make_uint4(__byte_perm(x.x, x.y, 0x5410), __byte_perm(x.x, x.y, 0x7632), __byte_perm(x.z, x.w, 0x5410),
                    __byte_perm(x.z, x.w, 0x7632));
}

/// A lane's sixteen NVFP4 weights whose scale is byte `i` of `scales`.
__device__ inline Sixteen widen_sixteen(const uint2& codes, std::uint32_t scales, unsigned i) {
  const std::uint32_t scale = widen_nvfp4_scale(scales, i);
  return {widen_nvfp4(codes.x, scale), widen_nvfp4(codes.y, scale)};
}
/// Inputs of x in the order of weights of a format.
template <StreamFormat kFormat>
__device__ inline uint4 in_order_of(const uint4& x) {
  if constexpr (kFormat == StreamFormat::kNvfp4) return in_nvfp4_order(x);
  return kFormat == StreamFormat::kE4M3 ? as_widened(x) : x;
}

/// A tile of a block, and how to get to the next one: rows are innermost, so that blocks that run together share their
/// weights in L2, then outputs, groups, weights.
template <class Shape>
struct StreamTile {
  std::uint32_t left;  ///< tiles of the block from this one on; with none the others mean nothing
  int number;          ///< of the weight
  std::uint32_t group, row_block;
  int column;

  __device__ StreamTile(const StreamCall& call, std::uint32_t tile, std::uint32_t count) : left(count), number(0) {
    while (number + 1 < call.parts && tile >= call.part[number].tiles) tile -= call.part[number++].tiles;
    const auto columns = static_cast<std::uint32_t>((call.part[number].n + Shape::kOutputs - 1) / Shape::kOutputs);
    row_block = tile % call.row_blocks;
    column = static_cast<int>(tile / call.row_blocks % columns) * Shape::kOutputs;
    group = tile / call.row_blocks / columns;
  }
  __device__ void step(const StreamCall& call) {
    --left;
    if (++row_block < call.row_blocks) return;
    row_block = 0;
    column += Shape::kOutputs;
    if (column < call.part[number].n) return;
    column = 0;
    if (++group < call.groups) return;
    group = 0;
    ++number;
  }
};

/// What a warp does of a block's tiles. kNvfp4: whether there may be NVFP4 weights, for which others would wait.
template <int kTall, int kWide, int kDeep, bool kNvfp4>
class StreamWarp {
 public:
  using Shape = StreamShape<kTall, kWide, kDeep>;
  using Tile = StreamTile<Shape>;
  static constexpr int kUnderWay = 2;  ///< stages of a warp that are on their way before x is there

  __device__ static StreamFormat format_of(const StreamPart& part) {
    if (kNvfp4 && part.nvfp4) return StreamFormat::kNvfp4;
    return part.e4m3 ? StreamFormat::kE4M3 : StreamFormat::kBF16;
  }

  __device__ StreamWarp(const StreamCall& call, std::uint32_t ring, const Tile& first)
      : call_(call),
        warp_(static_cast<int>(threadIdx.x) / 32),
        lane_(static_cast<int>(threadIdx.x) % 32),
        ring_(ring + warp_ * kDeep * Shape::kStageBytes + 16 * lane_),
        fetched_(first) {
    aim_at_weights();
#pragma unroll 1
    for (int stage = 0; stage < kDeep; ++stage) {
      // What the kernel ahead still loads would arrive behind a whole ring.
      if (stage >= kUnderWay) device::cp_async_wait<kUnderWay - 1>();
      fetch(stage);
    }
  }

  /// Asks for the first inputs that a tile's weights are multiplied by, after pdl_wait().
  __device__ void aim_at_inputs(const Tile& tile) {
    const bool any = tile.left > 0;
    const StreamPart& part = call_.part[any ? tile.number : 0];
    format_ = format_of(part);
    const bool bf16 = format_ == StreamFormat::kBF16;
    units_ = any ? stages_of(format_) * (bf16 ? 1 : 2) : 0;
    const int k = warp_ * piece_inputs(format_);
    const int row = static_cast<int>(tile.row_block) * Shape::kRows + lane_ / 4;
    inputs_ = call_.k - k;
    rows_ = max(call_.m - 1 - row, 0);
    x_ = call_.x + min(row, call_.m - 1) * call_.x_row + tile.group * call_.x_group + k + own_inputs();
    const float* scales = part.w_scale + tile.group * part.w_scale_group +
                          tile.column / Projection::kWeightBlock * part.w_scale_row + (is_nvfp4(format_) ? 0 : warp_);
    scales_ = !bf16 && units_ > 0 ? scales : reinterpret_cast<const float*>(&kStreamZeros);
    scale_ = *scales_;
    if constexpr (kAsks) ask();
  }

  /// The products of the warp's pieces of the tile whose inputs were asked for, in `acc`.
  template <StreamFormat kFormat>
  __device__ void multiply_tile(float (&acc)[kTall][kWide][4]) {
    constexpr bool kE4M3 = kFormat == StreamFormat::kE4M3;
    constexpr int kUnits = kFormat == StreamFormat::kBF16 ? 1 : 2;
    const int stages = stages_of(kFormat);
    std::uint32_t nans[kTall][2] = {};  // of the lane's upper and lower row of a tile
#pragma unroll 1
    for (int stage = 0; stage < stages; ++stage) {
      device::cp_async_wait<kDeep - 1>();
      const std::uint32_t at = ring_ + slot_ * Shape::kStageBytes;
      const float scale = scale_;
      if constexpr (kE4M3) {
        scales_ += stage + 1 < stages ? kStreamWarps : 0;
        scale_ = *scales_;
      }
#pragma unroll
      for (int from = 0; from < kWide; from += kTogether) {
        float sums[kTall][kTogether][4] = {};
#pragma unroll(kAsks || (kWide == 4 && !kStreamNeedsRegisters) ? kUnits : 1)
        for (int unit = 0; unit < kUnits; ++unit) {
          Sixteen x[kTogether];
#pragma unroll
          for (int i = 0; i < kTogether; ++i) {
            x[i] = kAsks ? next_[i] : inputs(unit_step(kFormat) * unit, from + i);
            x[i] = {in_order_of<kFormat>(x[i].low), in_order_of<kFormat>(x[i].high)};
          }
          if constexpr (kAsks) ask();
#pragma unroll
          for (int t = 0; t < kTall; ++t) {
            const TwoRows w = weights<kFormat>(at, t, unit, nans[t]);
#pragma unroll
            for (int i = 0; i < kTogether; ++i) multiply(kE4M3 ? sums[t][i] : acc[t][from + i], w, x[i]);
          }
        }
        if constexpr (kE4M3) {
#pragma unroll
          for (int t = 0; t < kTall; ++t) {
#pragma unroll
            for (int i = 0; i < kTogether; ++i) {
#pragma unroll
              for (int v = 0; v < 4; ++v) acc[t][from + i][v] += scale * sums[t][i][v];
            }
          }
        }
      }
      if constexpr (!kAsks) {
#pragma unroll
        for (int unit = 0; unit < kUnits; ++unit) leave_unit();
      }
      fetch(slot_);
      slot_ = slot_ + 1 == kDeep ? 0 : slot_ + 1;
    }
    if constexpr (kE4M3) {
#pragma unroll
      for (int t = 0; t < kTall; ++t) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          // The four lanes of a row have all of its inputs.
          std::uint32_t found = nans[t][half] & 0x8080'8080U;
          found |= __shfl_xor_sync(0xFFFF'FFFFU, found, 1);
          found |= __shfl_xor_sync(0xFFFF'FFFFU, found, 2);
          if (found == 0) continue;
#pragma unroll
          for (int i = 0; i < kWide; ++i) acc[t][i][2 * half] = acc[t][i][2 * half + 1] = __int_as_float(0x7FC0'0000);
        }
      }
    }
    if constexpr (kFormat == StreamFormat::kNvfp4) {
#pragma unroll
      for (int t = 0; t < kTall; ++t) {
#pragma unroll
        for (int i = 0; i < kWide; ++i) {
#pragma unroll
          for (int v = 0; v < 4; ++v) acc[t][i][v] = acc[t][i][v] * kNvfp4Unit * scale_;
        }
      }
    }
  }

 private:
  /// Tiles of x with sums of their own before a scale.
  static constexpr int kTogether = kWide < 4 ? kWide : (kStreamNeedsRegisters ? 2 : 4);
  static constexpr bool kAsks = kTall * kWide <= 2;  ///< whether there are registers for the inputs that come next

  __device__ static constexpr bool is_nvfp4(StreamFormat format) { return kNvfp4 && format == StreamFormat::kNvfp4; }
  __device__ int row_bytes(StreamFormat format) const {
    return is_nvfp4(format) ? call_.k / 2 : call_.k * (format == StreamFormat::kBF16 ? 2 : 1);
  }
  __device__ static int piece_bytes(StreamFormat format) { return is_nvfp4(format) ? kStreamPiece / 2 : kStreamPiece; }
  __device__ static int piece_inputs(StreamFormat format) {
    return format == StreamFormat::kBF16 ? kStreamUnit : 2 * kStreamUnit;
  }
  /// Inputs from a piece's first unit to its second: of NVFP4 a lane has its 32 codes of both together.
  __device__ static constexpr int unit_step(StreamFormat format) { return is_nvfp4(format) ? 16 : kStreamUnit; }
  /// Pieces of a weight row that are the warp's.
  __device__ int stages_of(StreamFormat format) const {
    const int inputs = piece_inputs(format);
    return ((call_.k + inputs - 1) / inputs + kStreamWarps - 1 - warp_) / kStreamWarps;
  }

  __device__ void aim_at_weights() {
    if (fetched_.left == 0) return;
    const StreamPart& part = call_.part[fetched_.number];
    const int first = fetched_.column + lane_ / 4;
    const StreamFormat format = format_of(part);
    const int at = warp_ * piece_bytes(format) + 16 * (lane_ % 4);
    const int row = row_bytes(format);
    outputs_ = part.n - first;
    behind_ = row - at;
    eight_rows_ = std::int64_t{8} * row;
    weights_ = static_cast<const std::uint8_t*>(part.w) +
               (static_cast<std::int64_t>(fetched_.group) * part.n + first) * row + at;
    stages_ = stages_of(format);
  }
  /// Asks for a stage of NVFP4 weights: 16 bytes of a row in its first half, four of the row's scales in the second. A
  /// lane needs two of those, and has a place of its own for them.
  __device__ void fetch_nvfp4(std::uint32_t to) {
    const StreamPart& part = call_.part[fetched_.number];
    const std::int64_t at = weights_ - static_cast<const std::uint8_t*>(part.w) - 16 * (lane_ % 4);
    const std::uint8_t* scales = part.group_scale + at / 8 + lane_ % 4 / 2 * 4;
    const std::uint8_t* row = weights_;
#pragma unroll
    for (int i = 0; i < 2 * kTall; ++i) {
      const bool there = behind_ > 0 && 8 * i < outputs_;
      device::cp_async_once(to + 1024 * i, there ? row : part.w, there);
      device::cp_async<4>(to + 1024 * i + 512, there ? scales : part.group_scale, there);
      row += eight_rows_;
      scales += call_.k / 2;
    }
    weights_ += kStreamWarps * kStreamPiece / 2;
    behind_ -= kStreamWarps * kStreamPiece / 2;
  }
  /// Asks for the next stage of weights, where there is one.
  __device__ void fetch(int slot) {
    while (fetched_.left > 0 && stages_ == 0) {
      fetched_.step(call_);
      aim_at_weights();
    }
    if (kNvfp4 && fetched_.left > 0 && call_.part[fetched_.number].nvfp4) {
      fetch_nvfp4(ring_ + slot * Shape::kStageBytes);
      --stages_;
    } else if (fetched_.left > 0) {
      const std::uint32_t to = ring_ + slot * Shape::kStageBytes;
      constexpr int kEights = 2 * kTall;
      if (behind_ > kStreamPiece / 2 && outputs_ > 8 * (kEights - 1)) {
        const std::uint8_t* row = weights_;
#pragma unroll
        for (int i = 0; i < kEights; ++i) {
          device::cp_async_once(to + 1024 * i, row, true);
          device::cp_async_once(to + 1024 * i + 512, row + kStreamPiece / 2, true);
          row += eight_rows_;
        }
      } else {
#pragma unroll 1
        for (int i = 0; i < 2 * kEights; ++i) {
          const int along = i % 2 * (kStreamPiece / 2);
          const bool there = i / 2 * 8 < outputs_ && along < behind_;
          device::cp_async_once(to + 512 * i, there ? weights_ + i / 2 * eight_rows_ + along : call_.part[0].w, there);
        }
      }
      weights_ += kStreamWarps * kStreamPiece;
      behind_ -= kStreamWarps * kStreamPiece;
      --stages_;
    }
    device::cp_async_commit();
  }

  template <StreamFormat kFormat>
  __device__ TwoRows weights(std::uint32_t at, int tile, int unit, std::uint32_t (&nans)[2]) const {
    const auto piece = [&](int half, int j) { return device::ld_shared_v4(at + 512 * (4 * tile + 2 * half + j)); };
    if constexpr (kFormat == StreamFormat::kNvfp4) {
      const auto row = [&](int half) {
        const std::uint32_t of = at + 1024 * (2 * tile + half);
        return widen_sixteen(device::ld_shared_v2(of + 8 * unit), device::ld_shared_u32(of + 512),
                             static_cast<unsigned>(2 * (lane_ % 2) + unit));
      };
      return {row(0), row(1)};
    } else if constexpr (kFormat == StreamFormat::kE4M3) {
      return {widen_sixteen(piece(0, unit), nans[0]), widen_sixteen(piece(1, unit), nans[1])};
    } else {
      return {{piece(0, 0), piece(0, 1)}, {piece(1, 0), piece(1, 1)}};
    }
  }

  /// Where a lane's inputs of a unit begin: bf16 weights come eight at a time, E4M3 sixteen, NVFP4 two times sixteen.
  __device__ int own_inputs() const {
    return (is_nvfp4(format_) ? 32 : format_ == StreamFormat::kBF16 ? 8 : 16) * (lane_ % 4);
  }
  __device__ int apart() const { return format_ == StreamFormat::kBF16 ? 32 : 8; }
  /// A lane's sixteen inputs of the i-th 8 rows, `ahead` inputs from the next unit's on, zeros behind the end of x. Of
  /// rows that are not there it has those of the last one, which make outputs that nobody stores. No branch here: the
  /// moves that join its ways would wait for what is loaded.
  __device__ Sixteen inputs(int ahead, int i) const {
    const BF16* at = x_ + (i == 0 ? 0 : min(8 * i, rows_) * call_.x_row) + ahead;
    const int left = units_ > 0 ? inputs_ - ahead - own_inputs() : 0;
    return {*(left > 0 ? reinterpret_cast<const uint4*>(at) : &kStreamZeros),
            *(left > apart() ? reinterpret_cast<const uint4*>(at + apart()) : &kStreamZeros)};
  }
  /// Asks for the inputs of the tile's next unit.
  __device__ void ask() {
#pragma unroll
    for (int i = 0; i < kWide; ++i) next_[i] = inputs(0, i);
    leave_unit();
  }
  __device__ void leave_unit() {
    --units_;
    const bool bf16 = format_ == StreamFormat::kBF16;
    const int within = unit_step(format_);
    const bool stays = !bf16 && units_ % 2 != 0;  // in its piece
    const int step = stays ? within : kStreamWarps * piece_inputs(format_) - (bf16 ? 0 : within);
    x_ += step;
    inputs_ -= step;
  }

  const StreamCall& call_;
  int warp_, lane_;
  std::uint32_t ring_;
  int slot_ = 0;
  // The weights that are fetched next.
  Tile fetched_;
  const std::uint8_t* weights_ = nullptr;  ///< the lane's of its first row
  std::int64_t eight_rows_ = 0;            ///< bytes
  int behind_ = 0, outputs_ = 0;           ///< bytes and outputs from there on
  int stages_ = 0;                         ///< of the tile
  // The inputs that are asked for next, or multiplied next where none are asked for ahead.
  const BF16* x_ = nullptr;  ///< the lane's of its first row
  const float* scales_ = nullptr;
  int inputs_ = 0, rows_ = 0;  ///< from the unit's first on, rows behind the lane's first
  int units_ = 0;              ///< of the tile
  StreamFormat format_ = StreamFormat::kBF16;
  Sixteen next_[kAsks ? kWide : 1];
  float scale_ = 1;
};

template <int kTall, int kWide, int kDeep, bool kNvfp4>
__global__ void __launch_bounds__(kStreamThreads, ((kStreamNeedsRegisters || kNvfp4) && kWide > 1)
                                                      ? 1
                                                      : StreamShape<kTall, kWide, kDeep>::kBlocks)
    stream_rows(const __grid_constant__ StreamCall call) {
  using Warp = StreamWarp<kTall, kWide, kDeep, kNvfp4>;
  using Shape = typename Warp::Shape;
  extern __shared__ __align__(128) std::uint8_t stream_shared[];
  // Blocks have tiles that follow one another, the first ones one more where they do not come out even.
  const std::uint32_t each = call.tiles / gridDim.x;
  const std::uint32_t more = call.tiles % gridDim.x;
  const std::uint32_t first = blockIdx.x * each + min(blockIdx.x, more);
  typename Warp::Tile tile(call, first, each + (blockIdx.x < more ? 1 : 0));
  Warp own(call, device::shared_address(stream_shared), tile);
  device::pdl_wait_and_trigger();
  own.aim_at_inputs(tile);

  auto* sums = reinterpret_cast<float*>(stream_shared + Shape::kRings);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int output = static_cast<int>(threadIdx.x) % 32 / 4;
  const int pair = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll 1
  while (tile.left > 0) {
    float acc[kTall][kWide][4] = {};
    const StreamFormat format = Warp::format_of(call.part[tile.number]);
    if (format == StreamFormat::kNvfp4) {
      if constexpr (kNvfp4) own.template multiply_tile<StreamFormat::kNvfp4>(acc);
    } else if (format == StreamFormat::kE4M3) {
      own.template multiply_tile<StreamFormat::kE4M3>(acc);
    } else {
      own.template multiply_tile<StreamFormat::kBF16>(acc);
    }
    typename Warp::Tile ahead = tile;
    ahead.step(call);
    own.aim_at_inputs(ahead);
    // The sums of the warps, [warp][row][output], are added in the warps' order.
    const StreamPart& part = call.part[tile.number];
#pragma unroll
    for (int n = 0; n < kWide; ++n) {
      __syncthreads();  // the sums before are read
#pragma unroll
      for (int t = 0; t < kTall; ++t) {
        float* at = sums + (warp * 8 + pair) * Shape::kSumStride + 16 * t + output;
        at[0] = acc[t][n][0];
        at[Shape::kSumStride] = acc[t][n][1];
        at[8] = acc[t][n][2];
        at[Shape::kSumStride + 8] = acc[t][n][3];
      }
      __syncthreads();
      const int r = static_cast<int>(threadIdx.x) / Shape::kOutputs;
      const int j = static_cast<int>(threadIdx.x) % Shape::kOutputs;
      const std::int64_t row = static_cast<std::int64_t>(tile.row_block) * Shape::kRows + 8 * n + r;
      if (r < 8 && row < call.m && tile.column + j < part.n) {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < kStreamWarps; ++w) sum += sums[(w * 8 + r) * Shape::kSumStride + j];
        part.store(row, tile.group, tile.column + j, sum);
      }
    }
    tile = ahead;
  }
}

}  // namespace smla::projection
