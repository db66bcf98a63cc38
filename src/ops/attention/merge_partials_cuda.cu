// MergePartials on any GPU: a block for each head of each token, four numbers for each thread.
#include <cmath>

#include "device/copy.cuh"
#include "device/launch.cuh"
#include "device/numbers.cuh"
#include "ops/cuda_row.h"
#include "sparsemla/ops/attention.h"

namespace smla {

namespace {

constexpr int kThreads = 128;
constexpr unsigned kAll = 0xFFFF'FFFFU;

struct MergeCall {
  std::int64_t slices = 0;
  std::int64_t heads = 0;
  int dim = 0;
  bool bf16 = true;
  const float* partial = nullptr;
  std::int64_t partial_stride[3] = {0, 0, 0};
  const float* partial_lse = nullptr;
  std::int64_t partial_lse_stride[3] = {0, 0, 0};
  const float* sink = nullptr;
  std::int64_t sink_stride = 0;
  void* o = nullptr;
  std::int64_t o_stride[2] = {0, 0};
  float* lse = nullptr;
  std::int64_t lse_stride[2] = {0, 0};
};

__device__ float warp_max(float v) {
  for (int i = 16; i > 0; i /= 2) v = fmaxf(v, __shfl_xor_sync(kAll, v, i));
  return v;
}
__device__ float warp_sum(float v) {
  for (int i = 16; i > 0; i /= 2) v += __shfl_xor_sync(kAll, v, i);
  return v;
}

/// kVector: a thread has four neighbours, and all rows are aligned to that; otherwise four numbers kThreads apart.
template <bool kVector>
__global__ void __launch_bounds__(kThreads) merge(const __grid_constant__ MergeCall c) {
  const std::int64_t t = blockIdx.x / c.heads;
  const std::int64_t h = blockIdx.x % c.heads;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float* slice_lse = c.partial_lse + t * c.partial_lse_stride[1] + h * c.partial_lse_stride[2];

  // Every warp computes for itself the largest lse and the sum of exp(lse - largest).
  float largest = -INFINITY;
  for (std::int64_t s = lane; s < c.slices; s += 32) largest = fmaxf(largest, slice_lse[s * c.partial_lse_stride[0]]);
  largest = warp_max(largest);
  float sum = 0;
  if (largest != -INFINITY) {
    for (std::int64_t s = lane; s < c.slices; s += 32) sum += expf(slice_lse[s * c.partial_lse_stride[0]] - largest);
  }
  sum = warp_sum(sum);
  const float sink = c.sink == nullptr ? -INFINITY : c.sink[h * c.sink_stride];
  // exp(sink - largest) may overflow to infinity; the weights are 0 then, which is right.
  const float factor = largest == -INFINITY ? 1.0F : 1.0F / (sum + expf(sink - largest));

  const float* partial = c.partial + t * c.partial_stride[1] + h * c.partial_stride[2];
  for (int begin = 0; begin < c.dim; begin += 4 * kThreads) {
    int d[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      d[i] = begin + static_cast<int>(kVector ? 4 * threadIdx.x + i : threadIdx.x + i * kThreads);
    float total[4] = {};
    for (std::int64_t base = 0; base < c.slices; base += 32) {
      const float mine = base + lane < c.slices ? slice_lse[(base + lane) * c.partial_lse_stride[0]] : -INFINITY;
      const float weight = mine == -INFINITY || factor == 0 ? 0 : expf(mine - largest) * factor;
      const int n = static_cast<int>(min(c.slices - base, std::int64_t{32}));
#pragma unroll 4
      for (int j = 0; j < n; ++j) {
        const float w = __shfl_sync(kAll, weight, j);
        const float* part = partial + (base + j) * c.partial_stride[0];
        // A slice of weight 0 is not read: it may hold NaN.
        if constexpr (kVector) {
          const float4 v = w != 0 && d[0] < c.dim ? *reinterpret_cast<const float4*>(part + d[0]) : float4{};
          total[0] += w * v.x, total[1] += w * v.y, total[2] += w * v.z, total[3] += w * v.w;
        } else {
#pragma unroll
          for (int i = 0; i < 4; ++i) total[i] += w != 0 && d[i] < c.dim ? w * part[d[i]] : 0;
        }
      }
    }
    const std::int64_t out = t * c.o_stride[0] + h * c.o_stride[1];
    if constexpr (kVector) {
      if (d[0] >= c.dim) continue;
      if (c.bf16) {
        const std::uint32_t low =
            device::to_bf16_bits(total[0]) | static_cast<std::uint32_t>(device::to_bf16_bits(total[1])) << 16;
        const std::uint32_t high =
            device::to_bf16_bits(total[2]) | static_cast<std::uint32_t>(device::to_bf16_bits(total[3])) << 16;
        *reinterpret_cast<uint2*>(static_cast<std::uint16_t*>(c.o) + out + d[0]) = make_uint2(low, high);
      } else {
        *reinterpret_cast<float4*>(static_cast<float*>(c.o) + out + d[0]) =
            make_float4(total[0], total[1], total[2], total[3]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (d[i] >= c.dim) continue;
        if (c.bf16) {
          static_cast<std::uint16_t*>(c.o)[out + d[i]] = device::to_bf16_bits(total[i]);
        } else {
          static_cast<float*>(c.o)[out + d[i]] = total[i];
        }
      }
    }
  }
  if (c.lse != nullptr && threadIdx.x == 0) {
    c.lse[t * c.lse_stride[0] + h * c.lse_stride[1]] = largest == -INFINITY ? INFINITY : largest + logf(sum);
  }
}

void run(const MergePartials::Problem& p, const MergePartials::Args& a, const RunContext& context) {
  if (p.tokens == 0) return;
  const MergeCall c{.slices = p.slices,
                    .heads = p.heads,
                    .dim = p.dim,
                    .bf16 = p.o == DType::kBF16,
                    .partial = static_cast<const float*>(a.partial_o.data),
                    .partial_stride = {a.partial_o.stride[0], a.partial_o.stride[1], a.partial_o.stride[2]},
                    .partial_lse = static_cast<const float*>(a.partial_lse.data),
                    .partial_lse_stride = {a.partial_lse.stride[0], a.partial_lse.stride[1], a.partial_lse.stride[2]},
                    .sink = static_cast<const float*>(a.sink.data),
                    .sink_stride = a.sink.stride[0],
                    .o = a.o.data,
                    .o_stride = {a.o.stride[0], a.o.stride[1]},
                    .lse = static_cast<float*>(a.lse.data),
                    .lse_stride = {a.lse.stride[0], a.lse.stride[1]}};
  const std::int64_t size = size_of(p.o);
  const int read = device::common_word(c.partial, 4 * c.partial_stride[0], 4 * c.partial_stride[1],
                                       4 * c.partial_stride[2], 4 * p.dim);
  const int written = device::common_word(c.o, size * c.o_stride[0], size * c.o_stride[1], size * p.dim);
  const unsigned blocks = blocks_for(p.tokens * p.heads, 1);
  if (read == 16 && written >= 4 * size) {
    merge<true><<<blocks, kThreads, 0, stream_of(context.stream)>>>(c);
  } else {
    merge<false><<<blocks, kThreads, 0, stream_of(context.stream)>>>(c);
  }
  check_launch("merge_partials");
}

}  // namespace

template <>
Implementation<MergePartials> cuda_row() {
  return any_gpu_row<MergePartials>(run);
}

}  // namespace smla
