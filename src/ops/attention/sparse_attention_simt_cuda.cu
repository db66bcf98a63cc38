// Sparse attention in fp32 throughout, for what the tensor-core kernel refuses: any element type, any row. A block has
// one token and eight heads, one for each warp, and decodes each row once. Only rows that an index list names are read.
#include <cmath>

#include "device/launch.cuh"
#include "device/numbers.cuh"
#include "ops/attention/attention_call.cuh"
#include "ops/attention/implementations.h"
#include "ops/norm_rope/implementations.h"

namespace smla {

namespace {

constexpr int kWarps = 8;  ///< heads of a block, one for each warp
constexpr int kKeys = 16;  ///< rows in shared memory at once
constexpr int kMaxDim = 640;

__device__ float warp_sum(float v) {
  for (int i = 16; i > 0; i /= 2) v += __shfl_xor_sync(0xFFFF'FFFFU, v, i);
  return v;
}

/// Online softmax of a head: m is the largest score, l the sum of exp(s - m), acc the lane's dims (128 k + 4 lane and
/// the next three) of the weighted sum of rows.
template <int kVec4s>
struct Running {
  float m = -INFINITY;
  float l = 0;
  float4 acc[kVec4s] = {};

  __device__ void add(const float4 (&row)[kVec4s], float s) {
    const float next = fmaxf(m, s);
    const float old = __expf(m - next);
    const float p = __expf(s - next);
    l = l * old + p;
    m = next;
#pragma unroll
    for (int k = 0; k < kVec4s; ++k) {
      acc[k].x = acc[k].x * old + p * row[k].x, acc[k].y = acc[k].y * old + p * row[k].y;
      acc[k].z = acc[k].z * old + p * row[k].z, acc[k].w = acc[k].w * old + p * row[k].w;
    }
  }
};

/// Attention over rows of up to 128 kVec4s numbers. Bounded to two blocks a multiprocessor, since ptxas saves registers
/// for three without a bound and spills.
template <int kVec4s>
__global__ void __launch_bounds__(32 * kWarps, 2) attend(const __grid_constant__ AttentionCall c) {
  constexpr int kRow = 128 * kVec4s;
  __shared__ alignas(16) float rows[kKeys][kRow];
  __shared__ std::int32_t slots[kKeys];
  const std::int64_t groups = (c.out_heads + kWarps - 1) / kWarps;
  const std::int64_t token = blockIdx.x / groups;
  const std::int64_t head = blockIdx.x % groups * kWarps + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool mine = head < c.heads;

  float4 q[kVec4s] = {};
  if (mine) c.queries(token, head, c.q_row(token, head), q);

  Running<kVec4s> run;
  for (int s = 0; s < c.scopes; ++s) {
    const KeyList& list = c.keys[s];
    const std::int64_t entries = list.entries(token);
    for (std::int64_t base = 0; base < entries; base += kKeys) {
      // Look up the rows of this round.
      if (threadIdx.x < kKeys) {
        slots[threadIdx.x] = base + threadIdx.x < entries ? list.slot(token, base + threadIdx.x) : -1;
      }
      __syncthreads();
      // Decode them.
      for (int i = static_cast<int>(threadIdx.x); i < kKeys * kRow; i += 32 * kWarps) {
        const int key = i / kRow;
        const int d = i % kRow;
        rows[key][d] = slots[key] >= 0 && d < c.dim ? list.cache.number(slots[key], d) : 0;
      }
      __syncthreads();
      // Score and add.
#pragma unroll 4
      for (int key = 0; key < kKeys; ++key) {
        float4 row[kVec4s];
        float dot = 0;
#pragma unroll
        for (int k = 0; k < kVec4s; ++k) {
          row[k] = *reinterpret_cast<const float4*>(&rows[key][128 * k + 4 * lane]);
          dot += q[k].x * row[k].x + q[k].y * row[k].y + q[k].z * row[k].z + q[k].w * row[k].w;
        }
        // Summed by every warp for every key: a shuffle that some warps skip costs registers that spill.
        const float score = warp_sum(dot) * c.scale;
        if (mine && slots[key] >= 0) run.add(row, score);
      }
      __syncthreads();
    }
  }

  if (head >= c.out_heads) return;
  const bool empty = run.l == 0;
  const float lse = empty ? (c.partial ? -INFINITY : INFINITY) : run.m + logf(run.l);
  float factor = 0;
  if (mine && !empty) {
    const float sink = c.partial ? -INFINITY : c.sink_of(head);
    // exp(sink - m) may overflow to infinity; o is 0 then, which is right.
    factor = 1.0F / (run.l + expf(sink - run.m));
  }
#pragma unroll
  for (int k = 0; k < kVec4s; ++k) {
    const int d = 128 * k + 4 * lane;
    if (d >= c.out_dim) continue;
    const float4 v = factor == 0 ? make_float4(0, 0, 0, 0) : device::scaled(run.acc[k], factor);
    c.store(token, head, d, v.x), c.store(token, head, d + 1, v.y);
    c.store(token, head, d + 2, v.z), c.store(token, head, d + 3, v.w);
  }
  if (mine && c.lse != nullptr && lane == 0) c.lse[token * c.lse_stride[0] + head * c.lse_stride[1]] = lse;
}

Decision decide(const SparseAttention::Problem& p, const PlanOptions& /*options*/, const Machine& machine) {
  if (p.dim > kMaxDim || p.dim % 32 != 0) {
    return refused("rows of " + std::to_string(p.dim) + " numbers; it takes multiples of 32 up to " +
                   std::to_string(kMaxDim));
  }
  if (p.out_dim() % 32 != 0)
    return refused("values of " + std::to_string(p.out_dim()) + " numbers; it takes multiples of 32");
  return refused(needs_gpu(machine));
}

void run(const SparseAttention::Problem& p, const SparseAttention::Args& a, const RunContext& context) {
  if (p.tokens == 0) return;
  const AttentionCall c = attention_call(p, a);
  const std::int64_t groups = (c.out_heads + kWarps - 1) / kWarps;
  const auto kernel = p.dim <= 512 ? attend<4> : attend<5>;
  kernel<<<blocks_for(p.tokens * groups, 1), 32 * kWarps, 0, stream_of(context.stream)>>>(c);
  check_launch("sparse_attention attend, simt");
  if (p.output_epilogue) inverse_rope_cuda(rope_problem(p), rope_args(p, a), context);
}

}  // namespace

Implementation<SparseAttention> sparse_attention_simt_row() {
  Implementation<SparseAttention> row = any_gpu_row<SparseAttention>(run, decide);
  row.name = "cuda_simt";
  return row;
}

}  // namespace smla
