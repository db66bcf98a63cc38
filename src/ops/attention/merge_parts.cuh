#pragma once

// The merge: the second kernel of a call whose key lists are cut into parts. It adds the parts' sums up to the output.

#include "device/launch_pdl.cuh"
#include "ops/attention/attention_block.cuh"

namespace smla::attention {

constexpr int kMergeGroups = 4;
constexpr int kMergeShared = 8;  ///< from this many parts on the thread groups of a block share the parts of one head

/// Merges the parts of a head. A thread has four columns of all parts, with kShare of every fourth part. When only one
/// part has keys, the result has the bits that its block would have written without the others.
template <bool kShare>
static __global__ void __launch_bounds__(kMergeGroups* kDim / 4, 2)
    merge(const __grid_constant__ TileCall c, std::int64_t rows) {
  __shared__ float4 others[kShare ? kMergeGroups - 1 : 1][kDim / 4];
  device::pdl_wait();
  const int group = static_cast<int>(threadIdx.x) / (kDim / 4);
  const int vec4 = static_cast<int>(threadIdx.x) % (kDim / 4);
  const std::int64_t row = kShare ? blockIdx.x : static_cast<std::int64_t>(blockIdx.x) * kMergeGroups + group;
  const int first = kShare ? group : 0;
  constexpr int kStep = kShare ? kMergeGroups : 1;
  if (row >= rows) return;
  const std::int64_t head = row % c.a.out_heads;
  const std::int64_t local = row / c.a.out_heads;
  const std::int64_t token = c.first_token + local;
  const std::int64_t out = token * c.a.o_stride[0] + head * c.a.o_stride[1] + 4 * vec4;
  if (head >= c.a.heads) {
    if (first == 0) store(c, out, make_float4(0, 0, 0, 0));
    return;
  }
  const int parts = static_cast<int>(c.parts);
  const float2* states = c.states + local * c.parts * c.a.heads + head;
  float reference = -INFINITY;
#pragma unroll 4
  for (int i = 0; i < parts; ++i) reference = fmaxf(reference, states[i * c.a.heads].x);
  const float shift = reference == -INFINITY ? 0 : reference;
  float sum = 0;
#pragma unroll 4
  for (int i = 0; i < parts; ++i) {
    const float2 part = states[i * c.a.heads];
    sum = fmaf(part.y, exp2f(part.x - shift), sum);
  }
  const float* sums = c.sums + (local * c.parts * c.a.heads + head) * kDim + 4 * vec4;
  float4 total{0, 0, 0, 0};
#pragma unroll 4
  for (int i = first; i < parts; i += kStep) {
    const float2 part = states[i * c.a.heads];
    if (part.y == 0) continue;  // no key: the sums were not written
    const float weight = exp2f(part.x - shift);
    const float4 v = *reinterpret_cast<const float4*>(sums + i * c.a.heads * kDim);
    total.x = fmaf(v.x, weight, total.x), total.y = fmaf(v.y, weight, total.y);
    total.z = fmaf(v.z, weight, total.z), total.w = fmaf(v.w, weight, total.w);
  }
  if constexpr (kShare) {
    if (group > 0) others[group - 1][vec4] = total;
    __syncthreads();
    if (group > 0) return;
#pragma unroll
    for (int g = 0; g < kMergeGroups - 1; ++g) {
      const float4 v = others[g][vec4];
      total.x += v.x, total.y += v.y, total.z += v.z, total.w += v.w;
    }
  }
  const Finish f = finish(c.a, head, reference, sum);
  if (f.factor == 0) total = make_float4(0, 0, 0, 0);  // infinite sums times 0 would be NaN
  store(c, out, c.rotated_back(c.back_row(token), 4 * vec4, finished(total, f.factor * c.unit)));
  if (vec4 == 0 && c.a.lse != nullptr) c.a.lse[token * c.a.lse_stride[0] + head * c.a.lse_stride[1]] = f.lse;
}

/// Merges the parts of `tokens` tokens from c.first_token on.
inline void launch_merge(const TileCall& c, std::int64_t tokens, cudaStream_t stream) {
  const std::int64_t rows = tokens * c.a.out_heads;
  const bool share = c.parts >= kMergeShared;
  const auto start = share ? device::launch_pdl<merge<true>, TileCall, std::int64_t>
                           : device::launch_pdl<merge<false>, TileCall, std::int64_t>;
  start("sparse_attention merge", blocks_for(rows, share ? 1 : kMergeGroups), kMergeGroups * kDim / 4, 0, stream, c,
        rows);
}

}  // namespace smla::attention
