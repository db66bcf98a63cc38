#pragma once

#include "device/launch_pdl.cuh"
#include "device/ptx/mma_sm80.cuh"
#include "ops/indexer/index_codes.cuh"

namespace smla::indexer {

// Index scores on tensor cores.

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kTile = 32;    ///< keys that a warp computes at a time
constexpr int kMaxRows = 8;  ///< rows of a block

/// Blocks that fit on a multiprocessor.
template <Element kElement>
constexpr int resident() {
  return kElement == Element::kE4M3 ? 3 : 2;
}

/// The queries of a row in shared memory: fragments, weights and, for e2m1 rows, group scales. Heads come in groups of
/// 16
/// ("sixteens").
struct SharedQ {
  std::uint32_t* fragments;  ///< [sixteen][step][lane][4]
  float* weights;            ///< [head]
  float* scales;             ///< [head][group]

  static constexpr int bytes(int sixteens, bool scaled) {
    return sixteens * (16 * kTensorDim * 2 + 16 * 4 + (scaled ? 16 * kGroups * 4 : 0));
  }

  __device__ SharedQ(uint4* memory, int row, int sixteens, bool scaled)
      : fragments(
            reinterpret_cast<std::uint32_t*>(reinterpret_cast<std::uint8_t*>(memory) + row * bytes(sixteens, scaled))),
        weights(reinterpret_cast<float*>(fragments + sixteens * kSteps * 128)),
        scales(weights + 16 * sixteens) {}

  /// Fills it. A thread takes four words of a head at a time, which go to the same place in the fragments of four
  /// products.
  template <Element kElement, bool kWide>
  __device__ void fill(const LogitsCall& c, std::int64_t row, int sixteens) const {
    using C = Codes<kElement>;
    constexpr int kFours = C::kWords / 4;  // of a head
    constexpr int kAtOnce = 4;             // loads in flight
    const std::uint8_t* from = c.q + row * c.q_stride[0];
    for (int base = static_cast<int>(threadIdx.x); base < 16 * sixteens * kFours; base += kAtOnce * kThreads) {
      uint4 four[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const int head = (base + k * kThreads) / kFours;
        four[k] = make_uint4(0, 0, 0, 0);
        if (head < c.heads)
          four[k] = load_four<kWide>(from + head * c.q_stride[1] + 16 * ((base + k * kThreads) % kFours));
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const int head = (base + k * kThreads) / kFours;
        const int first = (base + k * kThreads) % kFours * 4;
        if (head >= 16 * sixteens) break;
        const std::uint32_t word[4] = {four[k].x, four[k].y, four[k].z, four[k].w};
        std::uint32_t* to = fragments + head / 16 * kSteps * 128 + head % 8 * 16 + head % 16 / 8;
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          std::uint32_t pairs[C::kPairs];
          C::widen(word[w], pairs);
#pragma unroll
          for (int p = 0; p < C::kPairs; ++p) {
            to[(C::step_of(first) + C::step_after(w) + p / 2) * 128 + (C::quarter_of(first) + C::quarter_after(w)) * 4 +
               p % 2 * 2] = pairs[p];
          }
        }
      }
    }
    for (int head = static_cast<int>(threadIdx.x); head < 16 * sixteens; head += kThreads) {
      weights[head] = head < c.heads ? c.weights[row * c.weight_stride + head] : 0.0F;
    }
    if constexpr (kElement == Element::kE2M1) {
      for (int i = static_cast<int>(threadIdx.x); i < 16 * sixteens * kGroups; i += kThreads) {
        const int head = i / kGroups;
        scales[i] =
            head < c.heads
                ? device::from_ue8m0(c.q_scale[row * c.q_scale_stride[0] + head * c.q_scale_stride[1] + i % kGroups])
                : 0.0F;
      }
    }
  }
};

/// Adds relu(dot) * weight of one head (`upper`: of the second eight) to sum[2t + i], for keys 8t + 2 quarter + i.
__device__ inline void add_head(float (&sum)[8], const float (&dots)[4][4], int upper, float weight) {
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    sum[2 * t] = fmaf(fmaxf(dots[t][2 * upper], 0.0F), weight, sum[2 * t]);
    sum[2 * t + 1] = fmaf(fmaxf(dots[t][2 * upper + 1], 0.0F), weight, sum[2 * t + 1]);
  }
}

/// Adds the sums of the eight lanes that share keys, in a tree that is the same for every key. Lane l gets key
/// key_of(l).
__device__ inline float fold(const float (&sum)[8], int lane) {
  float four[4];
  float two[2];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool high = (lane & 16) != 0;
    four[i] = (high ? sum[4 + i] : sum[i]) + __shfl_xor_sync(0xFFFF'FFFFU, high ? sum[i] : sum[4 + i], 16);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const bool high = (lane & 8) != 0;
    two[i] = (high ? four[2 + i] : four[i]) + __shfl_xor_sync(0xFFFF'FFFFU, high ? four[i] : four[2 + i], 8);
  }
  const bool high = (lane & 4) != 0;
  return (high ? two[1] : two[0]) + __shfl_xor_sync(0xFFFF'FFFFU, high ? two[0] : two[1], 4);
}

/// The key of a tile whose block a lane looks up and whose score it stores, and the inverse.
__device__ inline int key_of(int lane) { return (lane & 24) + 2 * (lane & 3) + ((lane >> 2) & 1); }
__device__ inline int lane_of(int key) { return (key & 24) + ((key & 1) << 2) + ((key >> 1) & 3); }

/// Scores 32 keys with all heads of one row. Returns the score of the lane's key before the key's own scale. kSixteens:
/// the number of groups of 16 heads, 0 when it is not a constant.
template <Element kElement, int kSixteens>
__device__ inline float score_tile(const SharedQ& q, int sixteens, const std::uint32_t (&keys)[4][2 * kSteps],
                                   const float* key_scales, int lane) {
  const int row = lane / 4;
  float sum[8] = {};
  __syncwarp();  // mma.sync needs all lanes converged; they may have branched at loads and stores
#pragma unroll(kSixteens > 0 ? 4 : 1)
  for (int h = 0; h < (kSixteens > 0 ? kSixteens : sixteens); ++h) {
    const uint4* a = reinterpret_cast<const uint4*>(q.fragments) + h * kSteps * 32 + lane;
    float dots[4][4] = {};
    if constexpr (kElement == Element::kE4M3) {
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const uint4 heads = a[32 * s];
#pragma unroll
        for (int t = 0; t < 4; ++t) device::mma_m16n8k16_f16(dots[t], heads, keys[t][2 * s], keys[t][2 * s + 1]);
      }
    } else {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        float part[4][4] = {};
#pragma unroll
        for (int s = 2 * g; s < 2 * g + 2; ++s) {
          const uint4 heads = a[32 * s];
#pragma unroll
          for (int t = 0; t < 4; ++t) device::mma_m16n8k16_f16(part[t], heads, keys[t][2 * s], keys[t][2 * s + 1]);
        }
        const float low = q.scales[(16 * h + row) * kGroups + g];
        const float high = q.scales[(16 * h + 8 + row) * kGroups + g];
#pragma unroll
        for (int t = 0; t < 4; ++t) {
          const float2 k = *reinterpret_cast<const float2*>(key_scales + kTile * g + 8 * t + 2 * (lane % 4));
          dots[t][0] = fmaf(part[t][0] * low, k.x, dots[t][0]);
          dots[t][1] = fmaf(part[t][1] * low, k.y, dots[t][1]);
          dots[t][2] = fmaf(part[t][2] * high, k.x, dots[t][2]);
          dots[t][3] = fmaf(part[t][3] * high, k.y, dots[t][3]);
        }
      }
    }
    add_head(sum, dots, 0, q.weights[16 * h + row]);
    add_head(sum, dots, 1, q.weights[16 * h + 8 + row]);
  }
  return fold(sum, lane);
}

/// A block has up to kMaxRows rows and every parts-th run of kWarps tiles, one tile for each warp. Rows of one request
/// share the loaded keys. kWide: keys and queries are aligned to 16 bytes.
template <Element kElement, int kSixteens, bool kWide>
__global__ void __launch_bounds__(kThreads, resident<kElement>()) score_tensor(const __grid_constant__ LogitsCall c) {
  using C = Codes<kElement>;
  constexpr bool kScaled = kElement == Element::kE2M1;
  extern __shared__ uint4 memory[];
  __shared__ Span spans[kMaxRows];
  __shared__ std::int32_t requests[kMaxRows];
  __shared__ float2 group_scales[kWarps][kScaled ? kGroups * kTile / 2 : 1];

  device::pdl_wait();
  const std::int64_t first = blockIdx.x % c.groups * c.group_rows;
  const std::int64_t part = blockIdx.x / c.groups;
  const int rows = static_cast<int>(min(static_cast<std::int64_t>(c.group_rows), c.rows - first));
  const int sixteens = (c.heads + 15) / 16;
  if (static_cast<int>(threadIdx.x) < rows) {
    spans[threadIdx.x] = c.span(first + threadIdx.x);
    requests[threadIdx.x] = c.row_to_req == nullptr ? 0 : c.row_to_req[first + threadIdx.x];
  }
  __syncthreads();
  std::int32_t begin = c.width;
  std::int32_t end = 0;
  for (int r = 0; r < rows; ++r) {
    if (spans[r].end > 0) begin = min(begin, spans[r].begin);
    end = max(end, spans[r].end);
  }
  const std::int64_t block_tile = begin / kTile + part * kWarps;
  if (block_tile * kTile >= end) return;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t hop = static_cast<std::int64_t>(c.parts) * kWarps * kTile;
  float* key_scales = reinterpret_cast<float*>(group_scales[warp]);
  for (int r = 0, next_request = 0; r < rows; r = next_request) {
    std::int32_t last = spans[r].end;
    for (next_request = r + 1; next_request < rows && requests[next_request] == requests[r]; ++next_request)
      last = max(last, spans[next_request].end);
    std::int64_t j = (block_tile + warp) * kTile + key_of(lane);
    const auto find = [&](std::int64_t at) { return at < last ? c.keys.find(requests[r], at) : EntryPlace{}; };
    EntryPlace next = find(j);
    std::uint32_t scale_bits = 0;
    bool exists = false;  // the entry whose score this lane stores
    typename C::Raw raw[4];
    // The next tile's keys are loaded while this one is computed. For an entry that does not exist queries are loaded
    // instead; its score is not used.
    const auto fetch = [&](EntryPlace of) {
      exists = c.keys.holds(of);
      scale_bits = load_word(exists ? c.keys.scales_at(of) : c.q);
      const auto row = reinterpret_cast<std::uint64_t>(exists ? c.keys.data_at(of) : c.q);
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        const auto from = __shfl_sync(0xFFFF'FFFFU, row, lane_of(8 * t + lane / 4));
        raw[t] = C::template fetch<kWide>(reinterpret_cast<const std::uint8_t*>(from), lane % 4);
      }
    };
    fetch(next);
    next = find(j + hop);
    for (int i = r; i < next_request; ++i) {
      if (spans[i].end > 0)
        SharedQ(memory, i, sixteens, kScaled).template fill<kElement, kWide>(c, first + i, sixteens);
    }
    __syncthreads();
    device::pdl_trigger();
    for (std::int64_t base = (block_tile + warp) * kTile; base < last; base += hop, j += hop) {
      std::uint32_t keys[4][2 * kSteps];
#pragma unroll
      for (int t = 0; t < 4; ++t) C::widen(raw[t], keys[t]);
      float scale = 1.0F;
      if constexpr (kScaled) {
        __syncwarp();
#pragma unroll
        for (int g = 0; g < kGroups; ++g)
          key_scales[kTile * g + key_of(lane)] = device::from_ue8m0(static_cast<std::uint8_t>(scale_bits >> (8 * g)));
        __syncwarp();
      } else {
        scale = __uint_as_float(scale_bits);
      }
      const bool found = exists;
      fetch(next);  // after the last tile too: under a condition the compiler would wait for the loads and copy them
      next = find(j + 2 * hop);
      for (int i = r; i < next_request; ++i) {
        if (spans[i].begin >= base + kTile || spans[i].end <= base) continue;
        const float score =
            score_tile<kElement, kSixteens>(SharedQ(memory, i, sixteens, kScaled), sixteens, keys, key_scales, lane) *
            C::unit() * scale;
        if (j >= spans[i].begin && j < spans[i].end)
          c.logits[(first + i) * c.logit_stride + j] = found ? score : -INFINITY;
      }
    }
  }
}

}  // namespace smla::indexer
