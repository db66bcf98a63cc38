#pragma once

#include "ops/attention/attention_block.cuh"
#include "ops/head_rows.cuh"

namespace smla::attention {

/// Writes a head's query to shared memory, with the bits of Queries::norm_and_rotate but fewer registers.
__device__ inline void norm_and_rotate(const TileCall& c, float* q, const float* cos_sin) {
  const auto each_vec4 = [&](auto&& f) {
#pragma unroll 1
    for (int d = 4 * static_cast<int>(threadIdx.x % 32); d < kDim; d += 128) f(d, *reinterpret_cast<float4*>(q + d));
  };
  device::Squares squares;
  each_vec4([&](int, const float4& v) { squares.add(v); });
  const float inverse = inverse_root(device::sum_of_warp(squares.all()), kDim, c.a.q_eps);
  each_vec4([&](int d, float4& v) {
    v = device::rounded_to_bf16(c.a.q_rope.rotated(device::scaled(v, inverse), d, cos_sin));
  });
  __syncwarp();
}

/// Computes one head in fp32, number by number, when fp16 cannot represent its numbers; slow and rare. One warp does it
/// and writes what the block would have written. `scratch`: 3 x 512 numbers of shared memory for each warp.
template <AttentionTile kTile, bool kQuantised = false>
__device__ void attend_exactly(const TileCall& c, const ListPart& of, std::uint32_t head, float* scratch) {
  const Run<kTile> run(c, of);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float* const q = scratch + static_cast<int>(threadIdx.x) / 32 * 3 * kDim;
  float* const row = q + kDim;
  float* const sums = row + kDim;
  const auto each = [&](auto&& f) {
#pragma unroll 1
    for (int d = lane; d < kDim; d += 32) f(d);
  };
  __syncwarp();  // other lanes may still read the head before this one
  each([&](int d) { q[d] = c.a.query(run.token, head, d), sums[d] = 0; });
  __syncwarp();
  if (const float* cos_sin = c.a.q_row(run.token, head); cos_sin != nullptr) norm_and_rotate(c, q, cos_sin);
  each([&](int d) { q[d] *= c.a.scale * kLog2E; });
  float largest = -INFINITY;
  float sum = 0;
#pragma unroll 1
  for (int entry = run.begin; entry < run.end; ++entry) {
    const int base = run.begin + (entry - run.begin) / kTile.keys * kTile.keys;
    const std::int32_t slot = run.slot(c, base, entry - base, run.listed(c, base, entry - base));
    if (slot < 0) continue;
    const KeyList& keys = c.a.keys[run.scope(base)];
    if (c.a.packed > 1) {
      const int2 columns = keys.range(c.a.token_of(run.token, head));
      const int column = run.in_scope(base, entry);
      if (column < columns.x || column >= columns.y) continue;
    }
    const device::CacheView& cache = keys.cache;
    float score = 0;
    each([&](int d) {
      row[d] = cache.number(slot, d);
      score += q[d] * row[d];
    });
#pragma unroll
    for (int i = 16; i > 0; i /= 2) score += __shfl_xor_sync(kAll, score, i);
    const float next = fmaxf(largest, score);
    const float rescale = exp2f(largest - next);
    const float weight = exp2f(score - next);
    sum = sum * rescale + weight;
    largest = next;
    each([&](int d) { sums[d] = sums[d] * rescale + weight * row[d]; });
  }
  if (of.parts > 1) {
    const std::int64_t state = of.state(c, head);
    if (lane == 0) c.states[state] = make_float2(largest, c.half_sums ? -sum : sum);
    each([&](int d) { c.sums[state * kDim + d] = sums[d] / c.unit; });
    return;
  }
  const Finish f = finish(c.a, head, largest, sum);
  if (lane == 0 && c.a.lse != nullptr) c.a.lse[run.token * c.a.lse_stride[0] + head * c.a.lse_stride[1]] = f.lse;
  __syncwarp();
  const float* const back = c.back_row(run.token, head);
#pragma unroll 1
  for (int d = 4 * lane; d < kDim; d += 128) {
    float4 v = f.factor == 0 ? make_float4(0, 0, 0, 0) : finished(*reinterpret_cast<const float4*>(sums + d), f.factor);
    v = c.rotated_back(back, d, v);
    store_columns<kQuantised>(c, run.token, head, d, back != nullptr, v);
  }
}

}  // namespace smla::attention
