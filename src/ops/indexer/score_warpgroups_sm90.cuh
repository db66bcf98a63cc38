#pragma once

#include <string>
#include <type_traits>

#include "device/launch_pdl.cuh"
#include "device/ptx/mbarrier_sm90.cuh"
#include "device/ptx/wgmma_sm90.cuh"
#include "ops/indexer/key_stream_sm90.cuh"

namespace smla::indexer::sm90 {

// Index scores of e4m3 rows by Hopper's FP8 products. A warpgroup multiplies 64 keys, 16 of each warp in its registers,
// with kN heads of a row in shared memory.

constexpr int kGroupThreads = 128;  ///< of a warpgroup
constexpr int kGroups = 2;          ///< warpgroups of a block, each with tiles of its own
constexpr int kThreads = kGroups * kGroupThreads;
constexpr int kResident = 2;           ///< blocks that fit on a multiprocessor
constexpr int kTile = 64;              ///< keys of a warpgroup at a time
constexpr int kRun = kGroups * kTile;  ///< and of a block
constexpr int kMaxRows = 8;            ///< rows of a block
constexpr int kMaxColumns = 512;       ///< their heads, padded

/// Why the kernels do not take rows; empty where they do.
inline std::string score_refusal(const RowFormat& format, int dim) {
  if (format.nope == Element::kE4M3 && dim == kDim) return "";
  return std::string(format.name) + " rows of " + std::to_string(dim) + " numbers; it takes e4m3 rows of " +
         std::to_string(kDim);
}

/// Whether the kernels can read the tensors: they copy 16 bytes of queries and keys at a time. One row of a tensor goes
/// where several would go, so that its bits are theirs; a stride shorter than a row is of a tensor that has no other.
inline bool readable(const LogitsCall& c) {
  const bool strided = c.q_stride[0] >= std::int64_t{c.heads} * kDim;
  return c.q_align >= 16 && !(strided && c.q_stride[0] % 16 != 0) && c.keys.data_align >= 16 && c.keys.scale_align >= 4;
}

/// The number of the calling thread's warpgroup in its block.
__device__ inline int warpgroup() { return __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kGroupThreads, 0); }

/// A row of a block.
struct RowInfo {
  float* logits;
  std::int32_t begin;   ///< its first column
  std::uint32_t count;  ///< of columns

  /// Whether it has columns in the tile from `base` on.
  __device__ bool meets(std::uint32_t base) const {
    const auto first = static_cast<std::uint32_t>(begin);
    return count > 0 && first < base + kTile && first + count > base;
  }
};

/// Shared memory of a block of `kBlockThreads`, in bytes from its 1,024-byte aligned beginning. Heads come in blocks of
/// kN, the last one padded with zeros.
template <int kN, int kBlockThreads = kThreads>
struct Place {
  static constexpr int kWarps = kBlockThreads / 32;
  static constexpr int kQueryBytes = kN * kDim;         ///< of a block of heads: a head is a row of 128 bytes, swizzled
  static constexpr int kStageBytes = kWarpKeys * kDim;  ///< of a warp's keys, swizzled alike
  static constexpr int kScaleBytes = kWarpKeys * 4;
  /// A lane's weights of a block of heads lie together; four more numbers keep the four lanes off each other's banks.
  static constexpr int kLaneWeightBytes = (kN / 4 + 4) * 4;
  static constexpr int kWeightBytes = 4 * kLaneWeightBytes;
  static constexpr int kKeyBytes = kWarps * kStages * kStageBytes;
  static constexpr int kKeyScaleBytes = kWarps * kStages * kScaleBytes;
  static constexpr int kRowBytes = kMaxRows * 20;  ///< what rows are, and their requests

  /// `units`: rows times blocks of heads.
  __host__ __device__ static constexpr int keys(int units) { return units * kQueryBytes; }
  __host__ __device__ static constexpr int scales(int units) { return keys(units) + kKeyBytes; }
  __host__ __device__ static constexpr int weights(int units) { return scales(units) + kKeyScaleBytes; }
  __host__ __device__ static constexpr int rows(int units) { return weights(units) + units * kWeightBytes; }
  __host__ __device__ static constexpr int bytes(int units) { return rows(units) + kRowBytes; }
};

/// Copies the queries of `rows` rows to shared memory, those of padded heads and of rows without entries as zeros, and
/// their weights.
template <int kN, int kBlocks, int kBlockThreads>
__device__ inline void bring_queries(const LogitsCall& c, std::int64_t first, int rows, const RowInfo* infos,
                                     std::uint32_t queries, std::uint32_t weights) {
  constexpr int kColumns = kBlocks * kN;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < rows * kColumns * (kDim / 16); i += kBlockThreads) {
    const int line = i / 8;
    const int row = line / kColumns;
    const int head = line % kColumns;
    const bool there = head < c.heads && infos[row].count > 0;
    const std::uint8_t* from = c.q + (there ? (first + row) * c.q_stride[0] + head * c.q_stride[1] + i % 8 * 16 : 0);
    device::cp_async<16>(queries + line * kDim + ((i ^ line) % 8) * 16, from, there);
  }
  device::cp_async_commit();
  for (int i = thread; i < rows * kColumns; i += kBlockThreads) {
    const int row = i / kColumns;
    const int head = i % kColumns;
    const int column = i % kN;
    const float weight = head < c.heads ? c.weights[(first + row) * c.weight_stride + head] : 0.0F;
    device::st_shared_f32(weights + i / kN * Place<kN>::kWeightBytes + column % 8 / 2 * Place<kN>::kLaneWeightBytes +
                              (column / 8 * 2 + column % 2) * 4,
                          weight);
  }
}

/// What a lane adds up of the keys lane / 4 and lane / 4 + 8 of its warp: two chains each.
struct Sums {
  float low[2] = {};
  float high[2] = {};

  /// Adds a tile's products with a block of heads. `weights`: where the lane's of these are.
  template <int kN>
  __device__ void add(const float (&dots)[kN / 2], std::uint32_t weights) {
#pragma unroll
    for (int j = 0; j < kN / 8; j += 2) {
      const uint4 four = device::ld_shared_v4(weights + 8 * j);
      add<kN>(dots, j, __uint_as_float(four.x), __uint_as_float(four.y));
      add<kN>(dots, j + 1, __uint_as_float(four.z), __uint_as_float(four.w));
    }
  }
  /// The same of two heads.
  template <int kN>
  __device__ void add(const float (&dots)[kN / 2], int j, float first, float second) {
    low[0] = fmaf(fmaxf(dots[4 * j], 0.0F), first, low[0]);
    high[0] = fmaf(fmaxf(dots[4 * j + 2], 0.0F), first, high[0]);
    low[1] = fmaf(fmaxf(dots[4 * j + 1], 0.0F), second, low[1]);
    high[1] = fmaf(fmaxf(dots[4 * j + 3], 0.0F), second, high[1]);
  }
  /// The sum over the four lanes that share keys, in one order for every key: of key lane / 4 in even lanes, of key
  /// lane / 4 + 8 in odd ones.
  __device__ float all(int lane) const {
    const float a = low[0] + low[1];
    const float b = high[0] + high[1];
    const bool odd = lane % 2 != 0;
    const float pair = (odd ? b : a) + __shfl_xor_sync(kAllLanes, odd ? a : b, 1);
    return pair + __shfl_xor_sync(kAllLanes, pair, 2);
  }
};

/// The rows of a block and where it has their queries.
struct BlockRows {
  std::int64_t first;  ///< of the call's rows
  int count;
  int units;  ///< rows times blocks of heads that its shared memory is laid out for
  const RowInfo* infos;
  const std::int32_t* requests;
  std::uint32_t shared;  ///< the beginning of its shared memory

  __device__ std::int32_t end_of(int row) const {
    return static_cast<std::int32_t>(infos[row].begin + infos[row].count);
  }
};

/// The tiles of a warpgroup: every hop-th entry from `first` on, below `limit`.
struct EntryTiles {
  std::uint32_t first;
  std::uint32_t hop;
  std::uint32_t limit;
};

/// Copies the queries of a block's rows to shared memory and scores the entries that this thread's warpgroup has.
/// put(row, info, entry, score): a score of one of the row's own columns; two lanes of four call it. Contains a barrier
/// of the block, before which nothing is scored. A row's heads are kBlocks times kN. kRuns: in_runs().
template <int kN, int kBlocks, int kBlockThreads, bool kRuns, class Put>
__device__ void score_rows(const LogitsCall& c, const BlockRows& b, const EntryTiles& tiles, const Put& put) {
  using P = Place<kN, kBlockThreads>;
  const std::uint32_t weights = b.shared + P::weights(b.units);
  bring_queries<kN, kBlocks, kBlockThreads>(c, b.first, b.count, b.infos, b.shared, weights);

  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / 32, 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::uint64_t heads = device::wgmma_matrix(b.shared, 16, 1024);
  const std::uint32_t lane_weights = weights + lane % 4 * P::kLaneWeightBytes;
  const auto multiply = [&](float(&dots)[kN / 2], const std::uint32_t(&keys)[kDim / 32][4], unsigned row, int sub) {
    const std::uint64_t of = heads + (row * kBlocks * P::kQueryBytes + sub * P::kQueryBytes) / 16;
    device::wgmma_fence();
#pragma unroll
    for (int s = 0; s < kDim / 32; ++s) device::wgmma_rs_e4m3(dots, keys[s], of + 2 * s, s > 0);
    device::wgmma_commit();
  };
  // A tile's scores of one or two rows. While a product's numbers are added up, the next one runs: of the other row, or
  // of the same row's other heads.
  const auto score_tile = [&](auto count, const std::uint32_t(&keys)[kDim / 32][4], unsigned first, unsigned second,
                              std::uint32_t entry, float scale, bool found) {
    constexpr int kProducts = decltype(count)::value * kBlocks;
    float dots[2][kN / 2];
    multiply(dots[0], keys, first, 0);
    Sums sums;
#pragma unroll
    for (int i = 0; i < kProducts; ++i) {
      const unsigned row = i < kBlocks ? first : second;
      const int sub = i % kBlocks;
      if (i + 1 < kProducts) multiply(dots[(i + 1) % 2], keys, i + 1 < kBlocks ? first : second, (i + 1) % kBlocks);
      if (i + 1 < kProducts) {
        device::wgmma_wait<1>();
      } else {
        device::wgmma_wait<0>();
      }
      sums.add<kN>(dots[i % 2], lane_weights + (row * kBlocks + sub) * P::kWeightBytes);
      if (sub + 1 < kBlocks) continue;
      const float score = sums.all(lane) * scale;
      const RowInfo info = b.infos[row];
      if (lane % 4 < 2 && entry - info.begin < info.count) put(row, info, entry, found ? score : -INFINITY);
      sums = {};
    }
  };
  for (int r = 0, next_request = 0; r < b.count; r = next_request) {
    auto last = static_cast<std::uint32_t>(b.end_of(r));
    for (next_request = r + 1; next_request < b.count && b.requests[next_request] == b.requests[r]; ++next_request)
      last = max(last, static_cast<std::uint32_t>(b.end_of(next_request)));
    last = min(last, tiles.limit);
    KeyStream<kRuns> stream{.next = {c, b.requests[r]},
                            .keys = b.shared + P::keys(b.units) + warp * kStages * P::kStageBytes,
                            .scales = b.shared + P::scales(b.units) + warp * kStages * P::kScaleBytes,
                            .last = last,
                            .entry = tiles.first + warp % 4 * kWarpKeys + (kRuns ? 0 : lane % kWarpKeys),
                            .hop = tiles.hop,
                            .lane = lane};
    stream.begin();
    if (r == 0) {
      device::cp_async_wait<kStages>();
      device::fence_proxy_async();
      __syncthreads();
      device::pdl_trigger();
    }
    // The columns of the row that this lane stands for, one of r to next_request - 1; in registers where there are
    // some.
    const bool has_row = lane >= r && lane < next_request;
    const auto begin = has_row ? static_cast<std::uint32_t>(b.infos[lane].begin) : 0U;
    const std::uint32_t end = has_row ? begin + b.infos[lane].count : 0U;
    const auto meets = [&](std::uint32_t base) {
      if constexpr (kRuns) return begin < base + kTile && end > base;
      return has_row && b.infos[lane].meets(base);
    };
    int stage = 0;
#pragma unroll 1
    for (std::uint32_t base = tiles.first; base < last; base += tiles.hop) {
      std::uint32_t keys[kDim / 32][4];
      stream.take(stage, keys);
      const int key = lane / 4 + lane % 2 * 8;  // whose score this lane has in the end
      const float scale = stream.scale(stage, key);
      const bool found = (stream.exists[0] >> (kRuns ? 0 : key) & 1U) != 0;
      __syncwarp();
      stream.ask(stage);
      stage = (stage + 1) % kStages;
      const std::uint32_t entry = base + warp % 4 * kWarpKeys + key;
      std::uint32_t wanted = __ballot_sync(kAllLanes, meets(base));
      const auto one = [&] {
        const unsigned row = __ffs(static_cast<int>(wanted)) - 1;
        wanted &= wanted - 1;
        return row;
      };
      if constexpr (kBlocks == 1) {
#pragma unroll 1
        while ((wanted & (wanted - 1)) != 0) {
          const unsigned first = one();
          const unsigned second = one();
          score_tile(std::integral_constant<int, 2>{}, keys, first, second, entry, scale, found);
        }
      }
#pragma unroll 1
      while (wanted != 0) {
        const unsigned row = one();
        score_tile(std::integral_constant<int, 1>{}, keys, row, row, entry, scale, found);
      }
    }
    device::cp_async_wait<0>();
    __syncwarp();
  }
}

/// A block has up to kMaxRows rows and every parts-th run of their entries. Rows of one request share the keys. Blocks
/// of later rows, which are the longer ones in a prefill, come first. A row's heads are kBlocks times kN.
template <int kN, int kBlocks, bool kRuns>
__global__ void __launch_bounds__(kThreads, kResident) score_warpgroups(const __grid_constant__ LogitsCall c) {
  using P = Place<kN>;
  extern __shared__ __align__(1024) std::uint8_t dynamic[];
  const int units = c.group_rows * kBlocks;
  auto* infos = reinterpret_cast<RowInfo*>(dynamic + P::rows(units));
  auto* requests = reinterpret_cast<std::int32_t*>(infos + kMaxRows);

  device::pdl_wait();
  const std::int64_t first = (c.groups - 1 - blockIdx.x / c.parts) * c.group_rows;
  const std::uint32_t part = blockIdx.x % static_cast<std::uint32_t>(c.parts);
  const BlockRows block{.first = first,
                        .count = static_cast<int>(min(static_cast<std::int64_t>(c.group_rows), c.rows - first)),
                        .units = units,
                        .infos = infos,
                        .requests = requests,
                        .shared = device::shared_address(dynamic)};
  if (static_cast<int>(threadIdx.x) < block.count) {
    const std::int64_t row = first + threadIdx.x;
    const Span span = c.span(row);
    infos[threadIdx.x] = {c.logits + row * c.logit_stride, span.begin,
                          static_cast<std::uint32_t>(span.end - span.begin)};
    requests[threadIdx.x] = c.row_to_req == nullptr ? 0 : c.row_to_req[row];
  }
  __syncthreads();
  std::int32_t begin = c.width;
  std::int32_t end = 0;
  for (int r = 0; r < block.count; ++r) {
    if (infos[r].count > 0) begin = min(begin, infos[r].begin);
    end = max(end, block.end_of(r));
  }
  const std::uint32_t block_first = (begin / kTile + part * kGroups) * kTile;
  if (block_first >= static_cast<std::uint32_t>(end)) return;
  const EntryTiles tiles{.first = block_first + warpgroup() * kTile,
                         .hop = static_cast<std::uint32_t>(c.parts) * kRun,
                         .limit = INT32_MAX};
  score_rows<kN, kBlocks, kThreads, kRuns>(c, block, tiles,
                                           [](unsigned /*row*/, const RowInfo& info, std::uint32_t entry, float score) {
                                             __stcg(info.logits + entry, score);
                                           });
}

}  // namespace smla::indexer::sm90
