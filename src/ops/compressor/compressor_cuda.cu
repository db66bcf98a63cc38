// The compressor. A token's state row is written by one block; an entry is pooled, normed, rotated and encoded by one, in one pass over its window's rows.
#include <cmath>

#include "cache/row_encoder.cuh"
#include "device/copy.cuh"
#include "device/early_launch.cuh"
#include "device/hadamard.cuh"
#include "ops/compressor/implementations.h"
#include "ops/cuda_op.h"
#include "sparsemla/ops/compressor.h"

namespace smla {

namespace {

constexpr unsigned kAll = 0xFFFF'FFFFU;

/// Four neighbours of a row.
struct Quad {
  float v[4];
};

template <bool kVector>
__device__ Quad load(const float* from) {
  if constexpr (kVector) {
    const float4 v = *reinterpret_cast<const float4*>(from);
    return {{v.x, v.y, v.z, v.w}};
  } else {
    return {{from[0], from[1], from[2], from[3]}};
  }
}

template <bool kVector>
__device__ Quad load(const std::uint16_t* from) {
  if constexpr (kVector) {
    const uint2 v = *reinterpret_cast<const uint2*>(from);
    return {{__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xFFFF'0000U), __uint_as_float(v.y << 16), __uint_as_float(v.y & 0xFFFF'0000U)}};
  } else {
    return {{device::from_bf16(from[0]), device::from_bf16(from[1]), device::from_bf16(from[2]), device::from_bf16(from[3])}};
  }
}

template <bool kVector>
__device__ void store(float* to, const Quad& q) {
  if constexpr (kVector) {
    *reinterpret_cast<float4*>(to) = make_float4(q.v[0], q.v[1], q.v[2], q.v[3]);
  } else {
    to[0] = q.v[0], to[1] = q.v[1], to[2] = q.v[2], to[3] = q.v[3];
  }
}

constexpr int kSaveThreads = 128;

struct Save {
  int ratio = 4;
  int half = 0;
  const float* kv_score = nullptr;
  std::int64_t kv_score_stride = 0;
  const void* ape = nullptr;
  bool ape_bf16 = false;
  std::int64_t ape_stride = 0;
  const std::int64_t* positions = nullptr;
  const std::int64_t* slots = nullptr;
  device::CacheView state;

  template <bool kVector>
  __device__ Quad bias(std::int64_t at) const {
    return ape_bf16 ? load<kVector>(static_cast<const std::uint16_t*>(ape) + at) : load<kVector>(static_cast<const float*>(ape) + at);
  }
};

/// A token's row, by a block of kThreads.
template <bool kVector, int kThreads>
__device__ void save_row(const Save& c, std::int64_t t) {
  const std::int64_t slot = c.slots[t];
  const std::int64_t pos = c.positions[t];
  if (slot < 0 || slot >= c.state.num_slots || pos < 0) return;
  const float* from = c.kv_score + t * c.kv_score_stride;
  auto* to = reinterpret_cast<float*>(c.state.data(slot));
  const std::int64_t ape = pos % c.ratio * c.ape_stride;
#pragma unroll 4
  for (int i = 4 * static_cast<int>(threadIdx.x); i < 2 * c.half; i += 4 * kThreads) {
    Quad q = load<kVector>(from + i);
    if (i >= c.half) {
      const Quad a = c.bias<kVector>(ape + i - c.half);
#pragma unroll
      for (int k = 0; k < 4; ++k) q.v[k] += a.v[k];
    }
    store<kVector>(to + i, q);
  }
}

template <bool kVector>
__global__ void __launch_bounds__(kSaveThreads) save(const __grid_constant__ Save c) {
  device::take_turn();
  save_row<kVector, kSaveThreads>(c, blockIdx.x);
}

struct Pool {
  const std::int64_t* positions = nullptr;
  const std::int32_t* request = nullptr;
  const std::int64_t* state_slots = nullptr;
  const std::int64_t* entry_slots = nullptr;
  const std::int32_t* table = nullptr;
  std::int64_t table_stride = 0;
  std::int64_t requests = 0;
  std::int64_t columns = 0;
  const void* weight = nullptr;
  bool weight_bf16 = false;
  const float* cos_sin = nullptr;
  std::int64_t cos_sin_stride = 0;
  std::int64_t rope_rows = 0;
  int rope_dim = 0;
  float eps = 0;
  bool hadamard = false;
  ClampRule clamp = ClampRule::kAmax;
  device::CacheView state;
  std::int64_t state_blocks = 0;
  device::CacheView entries;
  Save save;  ///< with kSave: this call's own rows
};

/// Threads of an entry: a thread for four channels, and groups of threads that share the rows of a long window out.
template <int kDim, int kRatio>
struct Shape {
  static constexpr int kCoff = kRatio == 4 ? 2 : 1;
  static constexpr int kWindow = kCoff * kRatio;
  static constexpr int kLanes = kDim / 4;
  static constexpr int kGroups = kWindow > 32 ? 4 : 1;
  static constexpr int kRows = kWindow / kGroups;  ///< of a group
  static constexpr int kThreads = kLanes * kGroups;
};

/// Four channels' softmax over rows seen so far: m the largest logit, l the sum of exp(logit - m), acc the sum of exp(logit - m) * value.
struct Running {
  float m[4];
  float l[4];
  float acc[4];
};

/// What logits are subtracted from: finite where all were -inf, so that their weights are 0.
__device__ float pivot(float largest) { return largest == -INFINITY ? 0 : largest; }

/// `bias`: of each row, what is added to its logits: an offset in the ape, -1 for nothing.
template <int kDim, int kRatio, bool kVector, bool kSave>
__device__ Running pool_rows(const Save& save, const float* const* rows, const int* bias, int channel) {
  using S = Shape<kDim, kRatio>;
  constexpr int kBatch = 8;  // rows in flight
  Running run;
#pragma unroll
  for (int k = 0; k < 4; ++k) run.m[k] = -INFINITY, run.l[k] = 0, run.acc[k] = 0;
#pragma unroll 1
  for (int base = 0; base < S::kRows; base += kBatch) {
    Quad value[kBatch];
    Quad logit[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const float* row = rows[base + i];
      logit[i] = row == nullptr ? Quad{{-INFINITY, -INFINITY, -INFINITY, -INFINITY}} : load<kVector>(row + S::kCoff * kDim + channel);
      value[i] = row == nullptr ? Quad{{0, 0, 0, 0}} : load<kVector>(row + channel);
      if constexpr (kSave) {
        if (bias[base + i] >= 0) {
          const Quad a = save.bias<kVector>(bias[base + i] + channel);
#pragma unroll
          for (int k = 0; k < 4; ++k) logit[i].v[k] += a.v[k];
        }
      }
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      float largest = run.m[k];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) largest = fmaxf(largest, logit[i].v[k]);
      const float old = expf(run.m[k] - pivot(largest));
      run.m[k] = largest;
      run.l[k] *= old;
      run.acc[k] *= old;
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const float weight = expf(logit[i].v[k] - pivot(largest));
        run.l[k] += weight;
        run.acc[k] += weight * value[i].v[k];
      }
    }
  }
  return run;
}

/// One entry. Nothing but the rows that its window names is read. kSave: a token's own state row is written before, and rows of the call's other tokens
/// are taken from where those take them, as their blocks may not have written them yet.
template <int kDim, int kRatio, bool kVector, bool kSave>
__global__ void __launch_bounds__(Shape<kDim, kRatio>::kThreads) compress(const __grid_constant__ Pool c) {
  using S = Shape<kDim, kRatio>;
  __shared__ const float* rows[S::kWindow];
  __shared__ int bias[kSave ? S::kWindow : 1];
  __shared__ float merged[S::kGroups][3][S::kGroups > 1 ? kDim : 1];
  __shared__ float warp_squares[S::kLanes / 32];
  __shared__ __align__(16) float row[kDim];

  device::take_turn();
  const std::int64_t t = blockIdx.x;
  if constexpr (kSave) save_row<kVector, S::kThreads>(c.save, t);
  const std::int64_t pos = c.positions[t];
  const std::int64_t entry = c.entry_slots[t];
  if (c.state_slots[t] < 0 || pos < 0 || pos % kRatio != kRatio - 1 || entry < 0 || entry >= c.entries.num_slots) return;
  const std::int64_t request = c.request[t];
  const std::int64_t first = pos - (kRatio - 1);
  if (request < 0 || request >= c.requests || first >= c.rope_rows) return;

  // Look the window up.
  const int thread = static_cast<int>(threadIdx.x);
  bool found = false;
  if (thread < S::kWindow) {
    const std::int64_t at = pos - (S::kWindow - 1) + thread;
    const std::int64_t column = at / c.state.block_size;
    rows[thread] = nullptr;
    if constexpr (kSave) bias[thread] = -1;
    if (at >= 0 && column < c.columns) {
      const std::int64_t block = max(c.table[request * c.table_stride + column], 0);
      found = block < c.state_blocks;
      // Overlap: a row gives its first half of channels to the next group's entry, its second half to its own group's.
      const std::int64_t slot = block * c.state.block_size + at % c.state.block_size;
      const int half = thread / kRatio * kDim;
      if (found) rows[thread] = reinterpret_cast<const float*>(c.state.data(slot)) + half;
      if constexpr (kSave) {
        const std::int64_t own = t - (pos - at);  // the token of that position, if the call has it
        if (found && own >= 0 && c.positions[own] == at && c.request[own] == request && c.state_slots[own] == slot) {
          rows[thread] = c.save.kv_score + own * c.save.kv_score_stride + half;
          bias[thread] = static_cast<int>(at % kRatio * c.save.ape_stride) + half;
        }
      }
    }
  }
  if (__syncthreads_or(found ? 1 : 0) == 0) return;

  const int group = thread / S::kLanes;
  const int channel = 4 * (thread % S::kLanes);
  Running run = pool_rows<kDim, kRatio, kVector, kSave>(c.save, rows + group * S::kRows, bias + (kSave ? group * S::kRows : 0), channel);
  if constexpr (S::kGroups > 1) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      merged[group][0][channel + k] = run.m[k];
      merged[group][1][channel + k] = run.l[k];
      merged[group][2][channel + k] = run.acc[k];
    }
    __syncthreads();
    if (group == 0) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        float largest = -INFINITY;
        float l = 0;
        float acc = 0;
#pragma unroll
        for (int g = 0; g < S::kGroups; ++g) largest = fmaxf(largest, merged[g][0][channel + k]);
#pragma unroll
        for (int g = 0; g < S::kGroups; ++g) {
          const float old = expf(merged[g][0][channel + k] - pivot(largest));
          l += merged[g][1][channel + k] * old;
          acc += merged[g][2][channel + k] * old;
        }
        run.l[k] = l, run.acc[k] = acc;
      }
    }
  }

  // Norm, by the first group from here on.
  float y[4];
  float squares = 0;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    y[k] = run.l[k] == 0 ? 0 : run.acc[k] / run.l[k];
    squares += y[k] * y[k];
  }
  if (group == 0) {
    for (int i = 16; i > 0; i /= 2) squares += __shfl_xor_sync(kAll, squares, i);
    if (thread % 32 == 0) warp_squares[thread / 32] = squares;
  }
  __syncthreads();
  if (group == 0) {
    float total = 0;
#pragma unroll
    for (int w = 0; w < S::kLanes / 32; ++w) total += warp_squares[w];
    const float inverse = 1.0F / sqrtf(total / kDim + c.eps);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float w = c.weight_bf16 ? device::from_bf16(static_cast<const std::uint16_t*>(c.weight)[channel + k])
                                    : static_cast<const float*>(c.weight)[channel + k];
      y[k] = __fmul_rn(__fmul_rn(y[k], inverse), w);
    }
    const int rope = channel - (kDim - c.rope_dim);
    const float* cos_row = c.cos_sin + first * c.cos_sin_stride;
#pragma unroll
    for (int k = 0; k < 4; k += 2) {
      if (rope + k < 0) continue;
      const float cosine = cos_row[(rope + k) / 2];
      const float sine = cos_row[c.rope_dim / 2 + (rope + k) / 2];
      const float even = y[k];
      const float odd = y[k + 1];
      y[k] = __fsub_rn(__fmul_rn(even, cosine), __fmul_rn(odd, sine));
      y[k + 1] = __fadd_rn(__fmul_rn(odd, cosine), __fmul_rn(even, sine));
    }
    float4 quad = make_float4(y[0], y[1], y[2], y[3]);
    const bool exact = c.entries.nope == Element::kF32;
    if (!exact) quad = device::rounded_to_bf16(quad);
    if constexpr (kDim == 128) {
      if (c.hadamard) {
        float4 x[1] = {quad};
        device::hadamard(x, kDim);
        quad = exact ? x[0] : device::rounded_to_bf16(x[0]);
      }
    }
    reinterpret_cast<float4*>(row)[thread] = quad;
  }
  __syncthreads();
  device::encode_row(c.entries, entry, row, c.clamp, thread / 32, S::kThreads / 32);
}

template <int kDim, int kRatio>
void launch_compress(const Pool& c, std::int64_t tokens, bool vector, cudaStream_t stream) {
  const auto start = [&]<bool kVector, bool kSave>() {
    device::launch_early<compress<kDim, kRatio, kVector, kSave>>("compress_store", blocks_for(tokens, 1), Shape<kDim, kRatio>::kThreads, 0, stream,
                                                                 c);
  };
  const bool saves = c.save.kv_score != nullptr;
  if (vector) {
    saves ? start.template operator()<true, true>() : start.template operator()<true, false>();
  } else {
    saves ? start.template operator()<false, true>() : start.template operator()<false, false>();
  }
}

Save save_of(const SaveState::Problem& p, const SaveState::Args& a) {
  return {.ratio = p.ratio,
          .half = p.coff() * p.dim,
          .kv_score = static_cast<const float*>(a.kv_score.data),
          .kv_score_stride = a.kv_score.stride[0],
          .ape = a.ape.data,
          .ape_bf16 = a.ape.dtype == DType::kBF16,
          .ape_stride = a.ape.stride[0],
          .positions = static_cast<const std::int64_t*>(a.positions.data),
          .slots = static_cast<const std::int64_t*>(a.state_slots.data),
          .state = device::view_of_cache(a.state)};
}

/// Whether its rows can be read and written by fours.
bool by_fours(const Save& c) {
  const std::int64_t ape_size = c.ape_bf16 ? 2 : 4;
  return device::common_word(c.kv_score, 4 * c.kv_score_stride, c.state.base, c.state.block_stride) == 16 &&
         device::common_word(c.ape, ape_size * c.ape_stride) >= 4 * ape_size;
}

}  // namespace

SMLA_CUDA_OP(SaveState, 0) {
  const std::int64_t tokens = a.state_slots.size(0);
  if (tokens == 0) return;
  const Save c = save_of(p, a);
  const unsigned blocks = blocks_for(tokens, 1);
  if (by_fours(c)) {
    device::launch_early<save<true>>("save_state", blocks, kSaveThreads, 0, stream_of(context.stream), c);
  } else {
    device::launch_early<save<false>>("save_state", blocks, kSaveThreads, 0, stream_of(context.stream), c);
  }
}

template <>
std::string CudaOp<CompressStore>::refuse(const CompressStore::Problem& p, const PlanOptions&) {
  const std::string refusal = device::encoder_refusal(*p.format);
  return refusal.empty() ? needs_gpu() : refusal;
}

template <>
std::size_t CudaOp<CompressStore>::workspace_bytes(const CompressStore::Problem&, int) {
  return 0;
}

template <>
void CudaOp<CompressStore>::run(const CompressStore::Problem& p, const CompressStore::Args& a, const RunContext& context) {
  const std::int64_t tokens = a.state_slots.size(0);
  if (tokens == 0) return;
  Pool c{.positions = static_cast<const std::int64_t*>(a.positions.data),
         .request = static_cast<const std::int32_t*>(a.token_to_req.data),
         .state_slots = static_cast<const std::int64_t*>(a.state_slots.data),
         .entry_slots = static_cast<const std::int64_t*>(a.entry_slots.data),
         .table = static_cast<const std::int32_t*>(a.block_table.data),
         .table_stride = a.block_table.stride[0],
         .requests = a.block_table.size(0),
         .columns = a.block_table.size(1),
         .weight = a.norm_weight.data,
         .weight_bf16 = a.norm_weight.dtype == DType::kBF16,
         .cos_sin = static_cast<const float*>(a.cos_sin.data),
         .cos_sin_stride = a.cos_sin.stride[0],
         .rope_rows = a.cos_sin.size(0),
         .rope_dim = p.rope_dim,
         .eps = p.eps,
         .hadamard = p.hadamard,
         .clamp = p.clamp,
         .state = device::view_of_cache(a.state),
         .state_blocks = a.state.num_blocks,
         .entries = device::view_of_cache(a.entries)};
  if (!a.kv_score.absent()) c.save = save_of(save_problem(p), save_args(a));
  const bool vector = device::common_word(c.state.base, c.state.block_stride, c.state.data_bytes) == 16 && (a.kv_score.absent() || by_fours(c.save));
  if (p.dim == 128) {
    launch_compress<128, 4>(c, tokens, vector, stream_of(context.stream));
  } else if (p.ratio == 4) {
    launch_compress<512, 4>(c, tokens, vector, stream_of(context.stream));
  } else {
    launch_compress<512, 128>(c, tokens, vector, stream_of(context.stream));
  }
}

}  // namespace smla
