#pragma once

// A token's row of the compressor's state, as SaveState writes it: values, and logits with the ape added.

#include "cache/cache_view.cuh"
#include "device/copy.cuh"
#include "device/numbers.cuh"
#include "device/ptx/prefetch.cuh"
#include "sparsemla/ops/compressor.h"

namespace smla::compressor {

/// Loads four neighbouring numbers of a row.
struct Vec4 {
  float v[4];
};

template <bool kVector>
__device__ inline Vec4 load(const float* from) {
  if constexpr (kVector) {
    const float4 v = *reinterpret_cast<const float4*>(from);
    return {{v.x, v.y, v.z, v.w}};
  } else {
    return {{from[0], from[1], from[2], from[3]}};
  }
}

/// Of a row that another kernel has just written: past L1, which may have what it was before as long as no wait for
/// other kernels has ended.
template <bool kVector>
__device__ inline Vec4 load_row(const float* from) {
  if constexpr (kVector) {
    const float4 v = __ldcg(reinterpret_cast<const float4*>(from));
    return {{v.x, v.y, v.z, v.w}};
  } else {
    return load<kVector>(from);
  }
}

template <bool kVector>
__device__ inline Vec4 load(const std::uint16_t* from) {
  if constexpr (kVector) {
    const uint2 v = *reinterpret_cast<const uint2*>(from);
    return {{__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xFFFF'0000U), __uint_as_float(v.y << 16),
             __uint_as_float(v.y & 0xFFFF'0000U)}};
  } else {
    return {{device::from_bf16(from[0]), device::from_bf16(from[1]), device::from_bf16(from[2]),
             device::from_bf16(from[3])}};
  }
}

template <bool kVector>
__device__ void store(float* to, const Vec4& q) {
  if constexpr (kVector) {
    *reinterpret_cast<float4*>(to) = make_float4(q.v[0], q.v[1], q.v[2], q.v[3]);
  } else {
    to[0] = q.v[0], to[1] = q.v[1], to[2] = q.v[2], to[3] = q.v[3];
  }
}

/// The arguments of SaveState.
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
  bool few = false;  ///< tokens

  template <bool kVector>
  __device__ Vec4 bias(std::int64_t at) const {
    return ape_bf16 ? load<kVector>(static_cast<const std::uint16_t*>(ape) + at)
                    : load<kVector>(static_cast<const float*>(ape) + at);
  }
};

/// Writes numbers [begin, end) of a token's row, as thread `thread` of `threads`; all of these are multiples of 4.
template <bool kVector>
__device__ void save_row(const Save& c, std::int64_t t, int begin, int end, int thread, int threads) {
  const std::int64_t slot = c.slots[t];
  const std::int64_t pos = c.positions[t];
  const float* from = c.kv_score + t * c.kv_score_stride;
  // With few tokens: prefetched before the slot is known. With many, other tokens hide the wait.
  for (int i = begin + 32 * thread; c.few && i < end; i += 32 * threads) device::prefetch(from + i);
  if (slot < 0 || slot >= c.state.num_slots || pos < 0) return;
  auto* to = reinterpret_cast<float*>(c.state.data(slot));
  const std::int64_t ape = pos % c.ratio * c.ape_stride;
#pragma unroll 4
  for (int i = begin + 4 * thread; i < end; i += 4 * threads) {
    Vec4 q = load_row<kVector>(from + i);
    if (i >= c.half) {
      const Vec4 a = c.bias<kVector>(ape + i - c.half);
#pragma unroll
      for (int k = 0; k < 4; ++k) q.v[k] += a.v[k];
    }
    store<kVector>(to + i, q);
  }
}

inline Save save_of(const SaveState::Problem& p, const SaveState::Args& a) {
  return {.ratio = p.ratio,
          .half = p.coff() * p.dim,
          .kv_score = static_cast<const float*>(a.kv_score.data),
          .kv_score_stride = a.kv_score.stride[0],
          .ape = a.ape.data,
          .ape_bf16 = a.ape.dtype == DType::kBF16,
          .ape_stride = a.ape.stride[0],
          .positions = static_cast<const std::int64_t*>(a.positions.data),
          .slots = static_cast<const std::int64_t*>(a.state_slots.data),
          .state = device::view_of_cache(a.state),
          .few = a.state_slots.size(0) <= 2048};
}

/// Whether the rows can be read and written four numbers at a time.
inline bool by_fours(const Save& c) {
  const std::int64_t ape_size = c.ape_bf16 ? 2 : 4;
  return device::common_word(c.kv_score, 4 * c.kv_score_stride, c.state.base, c.state.block_stride) == 16 &&
         device::common_word(c.ape, ape_size * c.ape_stride) >= 4 * ape_size;
}

}  // namespace smla::compressor
