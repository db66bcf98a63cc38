// Sparse attention on any GPU in fp32 throughout: a block for a token and eight heads, a warp for a head. Rows are decoded once a block; nothing but the
// rows that an index list names is read.
#include <cmath>

#include "cache/cache_view.cuh"
#include "device/launch.cuh"
#include "device/numbers.cuh"
#include "ops/cuda_op.h"
#include "sparsemla/ops/attention.h"

namespace smla {

namespace {

constexpr int kWarps = 8;  ///< heads of a block
constexpr int kKeys = 16;  ///< rows in shared memory at once
constexpr int kMaxDim = 512;
constexpr int kLane = kMaxDim / 32;  ///< dims of a lane

struct Scope {
  device::CacheView cache;
  const std::int32_t* indices = nullptr;
  std::int64_t index_stride = 0;
  const std::int32_t* lens = nullptr;
  std::int64_t lens_stride = 0;
  std::int64_t width = 0;
};

struct Call {
  std::int64_t heads = 0;
  std::int64_t out_heads = 0;
  int dim = 0;
  int scopes = 1;
  float scale = 0;
  float q_scale = 1;
  bool partial = false;
  DType q_dtype = DType::kBF16;
  DType o_dtype = DType::kBF16;
  const void* q = nullptr;
  std::int64_t q_stride[2] = {0, 0};
  void* o = nullptr;
  std::int64_t o_stride[2] = {0, 0};
  float* lse = nullptr;
  std::int64_t lse_stride[2] = {0, 0};
  const float* sink = nullptr;
  std::int64_t sink_stride = 0;
  Scope scope[SparseAttention::kMaxScopes];
};

__device__ float load_q(const Call& c, std::int64_t token, std::int64_t head, int d) {
  const std::int64_t i = token * c.q_stride[0] + head * c.q_stride[1] + d;
  if (c.q_dtype == DType::kBF16) return device::from_bf16(static_cast<const std::uint16_t*>(c.q)[i]);
  if (c.q_dtype == DType::kE4M3) return device::from_e4m3(static_cast<const std::uint8_t*>(c.q)[i]) * c.q_scale;
  return static_cast<const float*>(c.q)[i];
}

__device__ float warp_sum(float v) {
  for (int i = 16; i > 0; i /= 2) v += __shfl_xor_sync(0xFFFF'FFFFU, v, i);
  return v;
}

/// One head's running softmax: m the largest score, l the sum of exp(s - m), acc the lane's dims of the weighted sum of rows.
struct Running {
  float m = -INFINITY;
  float l = 0;
  float acc[kLane] = {};

  __device__ void add(const float* row, float s) {
    const float next = fmaxf(m, s);
    const float old = __expf(m - next);
    const float p = __expf(s - next);
    l = l * old + p;
    m = next;
#pragma unroll
    for (int i = 0; i < kLane; ++i) acc[i] = acc[i] * old + p * row[32 * i + threadIdx.x % 32];
  }
};

__global__ void __launch_bounds__(32 * kWarps) attend(const __grid_constant__ Call c) {
  __shared__ float rows[kKeys][kMaxDim];
  __shared__ std::int32_t slots[kKeys];
  const std::int64_t groups = (c.out_heads + kWarps - 1) / kWarps;
  const std::int64_t token = blockIdx.x / groups;
  const std::int64_t head = blockIdx.x % groups * kWarps + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool mine = head < c.heads;

  float q[kLane];
#pragma unroll
  for (int i = 0; i < kLane; ++i) q[i] = mine && 32 * i + lane < c.dim ? load_q(c, token, head, 32 * i + lane) : 0;

  Running run;
  for (int s = 0; s < c.scopes; ++s) {
    const Scope& scope = c.scope[s];
    std::int64_t entries = scope.width;
    if (scope.lens != nullptr) entries = min(max(static_cast<std::int64_t>(scope.lens[token * scope.lens_stride]), std::int64_t{0}), scope.width);
    for (std::int64_t base = 0; base < entries; base += kKeys) {
      // Look up the rows of this round.
      if (threadIdx.x < kKeys) {
        std::int32_t slot = -1;
        if (base + threadIdx.x < entries) slot = scope.indices[token * scope.index_stride + base + threadIdx.x];
        slots[threadIdx.x] = slot >= 0 && slot < scope.cache.num_slots ? slot : -1;
      }
      __syncthreads();
      // Decode them.
      for (int i = static_cast<int>(threadIdx.x); i < kKeys * kMaxDim; i += 32 * kWarps) {
        const int key = i / kMaxDim;
        const int d = i % kMaxDim;
        rows[key][d] = slots[key] >= 0 && d < c.dim ? scope.cache.number(slots[key], d) : 0;
      }
      __syncthreads();
      // Score and add.
      for (int key = 0; mine && key < kKeys; ++key) {
        if (slots[key] < 0) continue;
        float dot = 0;
#pragma unroll
        for (int i = 0; i < kLane; ++i) dot += q[i] * rows[key][32 * i + lane];
        run.add(rows[key], warp_sum(dot) * c.scale);
      }
      __syncthreads();
    }
  }

  if (head >= c.out_heads) return;
  const bool empty = run.l == 0;
  const float lse = empty ? (c.partial ? -INFINITY : INFINITY) : run.m + logf(run.l);
  float factor = 0;
  if (mine && !empty) {
    const float sink = c.sink == nullptr || c.partial ? -INFINITY : c.sink[head * c.sink_stride];
    // exp(sink - m) may overflow, and then the answer is 0, as it should be.
    factor = 1.0F / (run.l + expf(sink - run.m));
  }
#pragma unroll
  for (int i = 0; i < kLane; ++i) {
    const int d = 32 * i + lane;
    if (d >= c.dim) continue;
    const float v = mine && !empty && factor > 0 ? run.acc[i] * factor : 0;
    const std::int64_t at = token * c.o_stride[0] + head * c.o_stride[1] + d;
    if (c.o_dtype == DType::kBF16) {
      static_cast<std::uint16_t*>(c.o)[at] = device::to_bf16_bits(v);
    } else {
      static_cast<float*>(c.o)[at] = v;
    }
  }
  if (mine && c.lse != nullptr && lane == 0) c.lse[token * c.lse_stride[0] + head * c.lse_stride[1]] = lse;
}

}  // namespace

template <>
std::string CudaOp<SparseAttention>::refuse(const SparseAttention::Problem& p, const PlanOptions&) {
  if (p.dim > kMaxDim || p.dim % 32 != 0) {
    return "rows of " + std::to_string(p.dim) + " numbers; it takes multiples of 32 up to " + std::to_string(kMaxDim);
  }
  return needs_gpu();
}

template <>
std::size_t CudaOp<SparseAttention>::workspace_bytes(const SparseAttention::Problem&, int) {
  return 0;
}

template <>
void CudaOp<SparseAttention>::run(const SparseAttention::Problem& p, const SparseAttention::Args& a, const RunContext& context) {
  if (p.tokens == 0) return;
  Call c{.heads = p.heads,
         .out_heads = p.padded_heads(),
         .dim = p.dim,
         .scopes = p.scopes,
         .scale = p.softmax_scale(),
         .q_scale = p.q_scale,
         .partial = p.partial,
         .q_dtype = p.q,
         .o_dtype = p.o,
         .q = a.q.data,
         .q_stride = {a.q.stride[0], a.q.stride[1]},
         .o = a.o.data,
         .o_stride = {a.o.stride[0], a.o.stride[1]},
         .lse = static_cast<float*>(a.lse.data),
         .lse_stride = {a.lse.stride[0], a.lse.stride[1]},
         .sink = static_cast<const float*>(a.sink.data),
         .sink_stride = a.sink.stride[0]};
  for (int s = 0; s < p.scopes; ++s) {
    const SparseAttention::Scope& from = a.scopes[static_cast<std::size_t>(s)];
    c.scope[s] = {.cache = device::view_of_cache(from.cache),
                  .indices = static_cast<const std::int32_t*>(from.indices.data),
                  .index_stride = from.indices.stride[0],
                  .lens = static_cast<const std::int32_t*>(from.lens.data),
                  .lens_stride = from.lens.stride[0],
                  .width = p.scope[static_cast<std::size_t>(s)].width};
  }
  const std::int64_t groups = (c.out_heads + kWarps - 1) / kWarps;
  attend<<<blocks_for(p.tokens * groups, 1), 32 * kWarps, 0, stream_of(context.stream)>>>(c);
  check_launch("sparse_attention attend");
}

}  // namespace smla
