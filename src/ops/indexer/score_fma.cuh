#pragma once

#include "ops/indexer/indexer_call.cuh"

namespace smla::indexer {

// Index scores in fp32 throughout.

constexpr int kFmaThreads = 128;
constexpr int kFmaKeys = 64;
constexpr int kFmaHeads = 32;
constexpr int kFmaDims = 32;

/// Number d of a row of codes; `scales`: the row's group scales (UE8M0), if it has any.
template <Element kElement>
__device__ float number(const std::uint8_t* row, int align, const std::uint8_t* scales, int group, int d) {
  if constexpr (kElement == Element::kE4M3) return device::from_e4m3(row[d]);
  if constexpr (kElement == Element::kE2M1) {
    return device::from_e2m1(d % 2 == 0 ? row[d / 2] & 15U : static_cast<unsigned>(row[d / 2] >> 4)) *
           device::from_ue8m0(scales[d / group]);
  }
  return load_float(row + 4 * d, align);
}

/// Scores in fp32. A block has one row and every parts-th tile of 64 keys; a thread has 4 keys and 4 of 32 heads at a
/// time.
template <Element kElement>
__global__ void __launch_bounds__(kFmaThreads, 4) score_fma(const __grid_constant__ LogitsCall c) {
  __shared__ float keys[kFmaDims][kFmaKeys + 1];
  __shared__ float heads[kFmaDims][kFmaHeads + 1];
  __shared__ float sums[8][kFmaKeys];
  __shared__ EntryPlace places[kFmaKeys];
  const std::int64_t row = blockIdx.x % c.rows;
  const std::int64_t part = blockIdx.x / c.rows;
  const Span span = c.span(row);
  const std::int64_t request = c.row_to_req == nullptr ? 0 : c.row_to_req[row];
  const int thread = static_cast<int>(threadIdx.x);
  const int x = thread % 16;
  const int y = thread / 16;

  for (std::int64_t base = span.begin + part * kFmaKeys; base < span.end;
       base += static_cast<std::int64_t>(c.parts) * kFmaKeys) {
    if (thread < kFmaKeys) {
      const EntryPlace place = base + thread < span.end ? c.keys.find(request, base + thread) : EntryPlace{};
      places[thread] = c.keys.holds(place) ? place : EntryPlace{};
    }
    __syncthreads();
    float sum[4] = {};
    for (int h = 0; h < c.heads; h += kFmaHeads) {
      float dots[4][4] = {};
      for (int d = 0; d < c.dim; d += kFmaDims) {
        for (int i = thread; i < kFmaKeys * kFmaDims; i += kFmaThreads) {
          const EntryPlace p = places[i / kFmaDims];
          const int at = i % kFmaDims;
          keys[at][i / kFmaDims] = p.block < 0 ? 0.0F
                                               : number<kElement>(c.keys.data_at(p), c.keys.data_align,
                                                                  c.keys.scales_at(p), c.group, d + at);
        }
        for (int i = thread; i < kFmaHeads * kFmaDims; i += kFmaThreads) {
          const int head = h + i / kFmaDims;
          const int at = i % kFmaDims;
          heads[at][i / kFmaDims] =
              head >= c.heads ? 0.0F
                              : number<kElement>(c.q + row * c.q_stride[0] + head * c.q_stride[1], c.q_align,
                                                 c.q_scale + row * c.q_scale_stride[0] + head * c.q_scale_stride[1],
                                                 c.group, d + at);
        }
        __syncthreads();
        for (int at = 0; at < kFmaDims; ++at) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
#pragma unroll
            for (int k = 0; k < 4; ++k) dots[i][k] = fmaf(heads[at][y + 8 * i], keys[at][x + 16 * k], dots[i][k]);
          }
        }
        __syncthreads();
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int head = h + y + 8 * i;
        const float weight = head < c.heads ? c.weights[row * c.weight_stride + head] : 0.0F;
#pragma unroll
        for (int k = 0; k < 4; ++k) sum[k] = fmaf(fmaxf(dots[i][k], 0.0F), weight, sum[k]);
      }
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) sums[y][x + 16 * k] = sum[k];
    __syncthreads();
    if (thread < kFmaKeys && base + thread < span.end) {
      const EntryPlace p = places[thread];
      float score = 0;
      for (int i = 0; i < 8; ++i) score += sums[i][thread];
      if constexpr (kElement == Element::kE4M3) {
        if (p.block >= 0) score *= load_float(c.keys.scales_at(p), c.keys.scale_align);
      }
      c.logits[row * c.logit_stride + base + thread] = p.block >= 0 ? score : -INFINITY;
    }
    __syncthreads();
  }
}

}  // namespace smla::indexer
