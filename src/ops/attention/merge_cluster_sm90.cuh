#pragma once

#include "device/ptx/cluster_sm90.cuh"
#include "ops/attention/attention_block.cuh"
#include "ops/attention/cluster_split.h"

namespace smla::attention {

/// The merge of a call whose parts of a list are the blocks of a cluster (sm_90 and later): each block leaves its sums
/// in its own shared memory, and then finishes a share of the heads and columns out of everybody's. It adds in the
/// order in which the merge of merge_parts.cuh adds fewer than eight parts.
template <AttentionTile kTile>
class ClusterMerge {
 public:
  static constexpr int kVec4s = kDim / 4;
  static constexpr int kStatesAt = kTile.heads * AttentionTile::kDim * 4;
  static constexpr int kAllAt = kStatesAt + kTile.heads * 8;
  /// Bytes of shared memory, over what the loop over keys has used.
  static constexpr int kBytes = kAllAt + ClusterSplit::kMostParts * kTile.heads * 8;

  __device__ explicit ClusterMerge(std::uint8_t* shared)
      : sums_(reinterpret_cast<float4*>(shared)),
        states_(reinterpret_cast<float2*>(shared + kStatesAt)),
        all_(reinterpret_cast<float2*>(shared + kAllAt)) {}

  /// A head's reference score and its sum of weights; its sums at four neighbouring columns.
  __device__ void put_state(int head, float reference, float sum) { states_[head] = make_float2(reference, sum); }
  __device__ void put(int head, int column, const float4& v) { *place(head, column / 4) = v; }
  /// The same of all heads out of the workspace, where attend_exactly() left them.
  __device__ void take(const TileCall& c, std::int64_t state, int heads) {
    const int thread = static_cast<int>(threadIdx.x);
    if (thread < heads) states_[thread] = c.states[state + thread];
#pragma unroll 1
    for (int i = thread; i < heads * kVec4s; i += kThreads)
      *place(i / kVec4s, i % kVec4s) = *reinterpret_cast<const float4*>(c.sums + state * kDim + 4 * i);
  }

  /// Adds up and stores this block's share. All threads of all blocks of the cluster call it.
  __device__ void finish(const TileCall& c, std::int64_t token, const BlockWork& work) {
    const int thread = static_cast<int>(threadIdx.x);
    const auto parts = static_cast<int>(c.parts);
    const int heads = work.heads<kTile>(c);
    device::cluster_arrive();
    device::cluster_wait();
    for (int i = thread; i < parts * kTile.heads; i += kThreads)
      all_[i] = device::ld_shared_cluster(states_ + i % kTile.heads, static_cast<unsigned>(i / kTile.heads));
    __syncthreads();
    const float* const back = c.back_row(token);
#pragma unroll 1
    for (int i = static_cast<int>(work.part) * kThreads + thread; i < heads * kVec4s; i += parts * kThreads) {
      const int h = i / kVec4s;
      const int column = 4 * (i % kVec4s);
      float reference = -INFINITY;
      for (int p = 0; p < parts; ++p) reference = fmaxf(reference, all_[p * kTile.heads + h].x);
      const float shift = reference == -INFINITY ? 0 : reference;
      float sum = 0;
      float4 total{0, 0, 0, 0};
#pragma unroll 4
      for (int p = 0; p < parts; ++p) {
        const float2 part = all_[p * kTile.heads + h];
        const float4 v = device::ld_shared_cluster(place(h, column / 4), static_cast<unsigned>(p));
        const float weight = exp2f(part.x - shift);
        sum = fmaf(part.y, weight, sum);
        total.x = fmaf(v.x, weight, total.x), total.y = fmaf(v.y, weight, total.y);
        total.z = fmaf(v.z, weight, total.z), total.w = fmaf(v.w, weight, total.w);
      }
      const std::int64_t head = work.first_head + h;
      const Finish f = smla::attention::finish(c.a, head, reference, sum);
      if (f.factor == 0) total = make_float4(0, 0, 0, 0);  // infinite sums times 0 would be NaN
      store(c, token * c.a.o_stride[0] + head * c.a.o_stride[1] + column,
            c.rotated_back(back, column, finished(total, f.factor * c.unit)));
      if (column == 0 && c.a.lse != nullptr) c.a.lse[token * c.a.lse_stride[0] + head * c.a.lse_stride[1]] = f.lse;
    }
    // No block ends while another one reads its sums.
    device::cluster_arrive();
    device::cluster_wait();
  }

 private:
  /// Eight heads of the same columns begin in two sets of banks.
  __device__ float4* place(int head, int vec4) const { return sums_ + head * kVec4s + (vec4 ^ ((head & 1) << 2)); }

  float4* sums_;    ///< [heads of a tile, 128]
  float2* states_;  ///< [heads of a tile]
  float2* all_;     ///< [parts, heads of a tile], of all blocks
};

}  // namespace smla::attention
