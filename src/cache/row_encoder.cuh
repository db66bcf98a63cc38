#pragma once

// Encodes cache rows in kernels, with the bytes of encode_row in cache/row_codec.h:
//
// - encode_row(cache, slot, row, clamp, warp, warps)
//   row: a __shared__ or global const float*, aligned to 16 bytes.
// - encode_row_of(cache, slot, clamp, warp, warps, vec4_at)
//   vec4_at(q) gives numbers 4q..4q+3 as a float4; it is called once for each q, by one thread.
// - encode_part_of(..., begin, end)
//   encode_row_of for q in [begin, end) only, which must be whole groups of a scale.
// - encode_sixteens(cache, slot, clamp, first, v)
//   a row in the registers of neighbouring lanes, sixteen numbers each.
//
// `warps` whole warps of a block call these together, with all 32 lanes, each warp with its own number `warp` and all
// with the same other arguments. They contain no barrier: a row in shared memory must be complete before the call
// (__syncthreads, or __syncwarp for one warp) and may be changed only after another barrier. `slot` must be in the
// cache. Base and block stride are arbitrary: where a store cannot be wide, it is narrow.

#include <string>

#include "cache/cache_view.cuh"
#include "cache/row_codec.h"
#include "device/copy.cuh"
#include "device/vec4.cuh"

namespace smla::device {

/// Why kernels cannot encode such rows; empty when they can. The number of dims that share a scale must be a power of
/// two from 4 to 128, and each scale is written once.
inline std::string encoder_refusal(const RowFormat& f) {
  const bool whole = f.dim % 4 == 0 && f.nope_dim % 4 == 0;
  const bool groups =
      f.group == 0 || (f.group >= 4 && f.group <= 128 && (f.group & (f.group - 1)) == 0 && f.nope_dim % f.group == 0);
  if (f.scale == ScaleKind::kUe8m0 && f.groups() == 1)
    return std::string(f.name) + " rows: a scale that is written several times";
  return whole && groups ? "" : std::string(f.name) + " rows: dims or groups that a warp cannot share out by fours";
}

/// Four numbers as e2m1 codes, the first in the lowest bits.
__device__ inline std::uint16_t e2m1_codes(float4 v) {
  return static_cast<std::uint16_t>(to_e2m1(v.x) | to_e2m1(v.y) << 4 | to_e2m1(v.z) << 8 | to_e2m1(v.w) << 12);
}

template <class Word>
__device__ bool aligned(const void* p) {
  return reinterpret_cast<std::uintptr_t>(p) % sizeof(Word) == 0;
}

/// Stores a word at an address of any alignment.
__device__ inline void put(std::uint8_t* to, std::uint16_t word) {
  if (aligned<std::uint16_t>(to)) {
    *reinterpret_cast<std::uint16_t*>(to) = word;
    return;
  }
  to[0] = static_cast<std::uint8_t>(word);
  to[1] = static_cast<std::uint8_t>(word >> 8);
}
__device__ inline void put(std::uint8_t* to, std::uint32_t word) {
  if (aligned<std::uint32_t>(to)) {
    *reinterpret_cast<std::uint32_t*>(to) = word;
    return;
  }
  put(to, static_cast<std::uint16_t>(word));
  put(to + 2, static_cast<std::uint16_t>(word >> 16));
}
__device__ inline void put(std::uint8_t* to, uint2 words) {
  if (aligned<uint2>(to)) {
    *reinterpret_cast<uint2*>(to) = words;
    return;
  }
  put(to, words.x);
  put(to + 4, words.y);
}
__device__ inline void put(std::uint8_t* to, uint4 words) {
  if (aligned<uint4>(to)) {
    *reinterpret_cast<uint4*>(to) = words;
    return;
  }
  put(to, uint2{words.x, words.y});
  put(to + 8, uint2{words.z, words.w});
}

/// Stores numbers 4q..4q+3 of the part of a row that begins at `bytes`, each rounded once.
__device__ inline void store_part(Element element, std::uint8_t* bytes, int q, float4 v) {
  switch (element) {
    case Element::kF32: put(bytes + 16 * q, narrowed<float>(v)); break;
    case Element::kBF16: put(bytes + 8 * q, narrowed<BF16>(v)); break;
    case Element::kE4M3: put(bytes + 4 * q, narrowed<E4M3>(v)); break;
    case Element::kE2M1: put(bytes + 2 * q, e2m1_codes(v)); break;
  }
}

/// The exponent of a group's scale; stores the scale's bytes.
__device__ inline int group_exponent(Element element, float amax, ClampRule clamp) {
  return element == Element::kE2M1 ? e2m1_group_exponent(amax) : e4m3_group_exponent(amax, clamp == ClampRule::kScale);
}
__device__ inline void store_scale(ScaleKind kind, std::uint8_t* scales, int g, int e) {
  if (kind == ScaleKind::kUe8m0) {
    scales[g] = static_cast<std::uint8_t>(min(max(e + 127, 0), 255));
  } else {
    put(scales + 4 * g, __float_as_uint(exp2_int(e)));
  }
}

/// See encode_row_of and encode_part_of above.
template <class Vec4At>
__device__ __forceinline__ void encode_part_of(const CacheView& cache, std::int64_t slot, ClampRule clamp, int warp,
                                               int warps, Vec4At vec4_at, int begin, int end) {
  const auto [data, scales] = cache.place(slot);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int nope = min(cache.nope_dim / 4, end);
  const int lanes = cache.group / 4;
#pragma unroll 1
  for (int first = begin + 32 * warp; lanes > 0 && first < nope; first += 32 * warps) {
    const int q = first + lane;
    const float4 v = q < nope ? rounded_to_bf16(vec4_at(q)) : float4{0, 0, 0, 0};
    const int e = group_exponent(cache.nope, max_of_lanes(largest_magnitude(v), lanes), clamp);
    if (q >= nope) continue;
    store_part(cache.nope, data, q, scaled(v, exp2_int(-e)));
    if (q % lanes == 0) store_scale(cache.kind, scales, q / lanes, e);
  }
  const int thread = 32 * warp + lane;
  const int threads = 32 * warps;
  if (lanes == 0) {
    const bool divide = cache.kind == ScaleKind::kPerTensor;
    const float factor = divide ? 1.0F / cache.scale : 1.0F;
#pragma unroll 1
    for (int q = begin + thread; q < nope; q += threads)
      store_part(cache.nope, data, q, divide ? scaled(vec4_at(q), factor) : vec4_at(q));
  }
#pragma unroll 1
  for (int q = max(cache.nope_dim / 4, begin) + thread; q < end; q += threads) {
    store_part(cache.rope, data + cache.rope_offset(), q - cache.nope_dim / 4, vec4_at(q));
  }
  if (end < cache.dim / 4) return;
  // The rest of a scale slot is 0.
  const int written = lanes == 0 ? 0 : cache.nope_dim / 4 / lanes * (cache.kind == ScaleKind::kUe8m0 ? 1 : 4);
#pragma unroll 1
  for (int i = written + thread; i < cache.scale_bytes + cache.inline_scale_bytes; i += threads) scales[i] = 0;
}

template <class Vec4At>
__device__ void encode_row_of(const CacheView& cache, std::int64_t slot, ClampRule clamp, int warp, int warps,
                              Vec4At vec4_at) {
  encode_part_of(cache, slot, clamp, warp, warps, vec4_at, 0, cache.dim / 4);
}

/// Whether encode_sixteens() can encode such rows: their parts must be aligned to 16 bytes.
inline bool has_sixteens(const PagedCache& cache) {
  const RowFormat& f = *cache.format;
  const bool groups = f.group == 0 || (f.group % 16 == 0 && (f.group & (f.group - 1)) == 0);
  const bool dims = f.dim % 16 == 0 && f.nope_dim % 16 == 0 && f.dim <= 16 * 32;
  return groups && dims && common_word(cache.base, cache.block_stride_bytes, f.data_bytes, rope_offset(f)) == 16;
}

/// Stores sixteen numbers of a part of a row, each rounded once.
__device__ inline void store_sixteen(Element element, std::uint8_t* part, int first, const float4 (&v)[4]) {
  switch (element) {
    case Element::kF32:
#pragma unroll
      for (int j = 0; j < 4; ++j) reinterpret_cast<uint4*>(part + 4 * first)[j] = narrowed<float>(v[j]);
      break;
    case Element::kBF16:
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const uint2 low = narrowed<BF16>(v[2 * j]);
        const uint2 high = narrowed<BF16>(v[2 * j + 1]);
        reinterpret_cast<uint4*>(part + 2 * first)[j] = {low.x, low.y, high.x, high.y};
      }
      break;
    case Element::kE4M3:
      *reinterpret_cast<uint4*>(part + first) = {narrowed<E4M3>(v[0]), narrowed<E4M3>(v[1]), narrowed<E4M3>(v[2]),
                                                 narrowed<E4M3>(v[3])};
      break;
    case Element::kE2M1: {
      const auto pair = [&](int j) {
        return e2m1_codes(v[j]) | static_cast<std::uint32_t>(e2m1_codes(v[j + 1])) << 16;
      };
      *reinterpret_cast<uint2*>(part + first / 2) = {pair(0), pair(2)};
      break;
    }
  }
}

/// Encodes numbers first..first+15 of the row of a slot. 2^n neighbouring lanes hold a row, sixteen numbers each, in
/// order. All lanes of a warp call it together; lanes with slot -1 write nothing. kExact: the numbers are bf16 already.
template <bool kExact>
__device__ __forceinline__ void encode_sixteens(const CacheView& cache, std::int64_t slot, ClampRule clamp, int first,
                                                float4 (&v)[4]) {
  const auto [data, scales] = cache.place(max(slot, std::int64_t{0}));
  const bool coded = first < cache.nope_dim;
  if (const int lanes = cache.group / 16; lanes > 0) {
    float amax = 0;
#pragma unroll
    for (int j = 0; j < 4 && coded; ++j) {
      if constexpr (!kExact) v[j] = rounded_to_bf16(v[j]);
      amax = fmaxf(amax, largest_magnitude(v[j]));
    }
    const int e = group_exponent(cache.nope, max_of_lanes(amax, lanes), clamp);
#pragma unroll
    for (int j = 0; j < 4 && coded; ++j) v[j] = scaled(v[j], exp2_int(-e));
    if (const int i = first / 16; slot >= 0 && coded && i % lanes == 0) store_scale(cache.kind, scales, i / lanes, e);
  } else if (cache.kind == ScaleKind::kPerTensor && coded) {
    const float factor = 1.0F / cache.scale;
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = scaled(v[j], factor);
  }
  if (slot < 0) return;
  if (coded) {
    store_sixteen(cache.nope, data, first, v);
  } else {
    store_sixteen(cache.rope, data + cache.rope_offset(), first - cache.nope_dim, v);
  }
  // The rest of a scale slot is 0.
  const int written = cache.group == 0 ? 0 : cache.nope_dim / cache.group * (cache.kind == ScaleKind::kUe8m0 ? 1 : 4);
#pragma unroll 1
  for (int i = written + first / 16; i < cache.scale_bytes + cache.inline_scale_bytes; i += cache.dim / 16)
    scales[i] = 0;
}

/// See encode_row above.
__device__ inline void encode_row(const CacheView& cache, std::int64_t slot, const float* row, ClampRule clamp,
                                  int warp = 0, int warps = 1) {
  encode_row_of(cache, slot, clamp, warp, warps, [row](int q) { return reinterpret_cast<const float4*>(row)[q]; });
}

}  // namespace smla::device
