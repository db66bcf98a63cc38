#pragma once

#include <type_traits>

#include "device/numbers.cuh"

namespace smla::device {

// A vec4 is four neighbouring elements of a row, which a thread loads, computes and stores together.

__device__ inline float4 scaled(float4 v, float factor) {
  return {__fmul_rn(v.x, factor), __fmul_rn(v.y, factor), __fmul_rn(v.z, factor), __fmul_rn(v.w, factor)};
}
__device__ inline float4 product(float4 v, float4 w) {
  return {__fmul_rn(v.x, w.x), __fmul_rn(v.y, w.y), __fmul_rn(v.z, w.z), __fmul_rn(v.w, w.w)};
}
/// Whether the GPU's conversion instructions give the bits of core/codecs.h: not for NaN, whose sign they lose. May be
/// false for infinities too.
__device__ inline bool plain(float4 v) {
  const float sum = (v.x + v.y) + (v.z + v.w);
  return sum == sum;
}
/// Two numbers as bf16 by the GPU's conversion instruction, the first in the lower half.
__device__ inline std::uint32_t bf16_pair(float low, float high) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  std::uint32_t bits;
  memcpy(&bits, &both, 4);
  return bits;
}
__device__ inline float4 rounded_to_bf16(float4 v) {
  if (!plain(v))
    return {to_float(to_bf16(v.x)), to_float(to_bf16(v.y)), to_float(to_bf16(v.z)), to_float(to_bf16(v.w))};
  const std::uint32_t low = bf16_pair(v.x, v.y);
  const std::uint32_t high = bf16_pair(v.z, v.w);
  return {__uint_as_float(low << 16), __uint_as_float(low & 0xFFFF'0000U), __uint_as_float(high << 16),
          __uint_as_float(high & 0xFFFF'0000U)};
}
/// The larger of two numbers; NaN is ignored.
__device__ inline float largest_magnitude(float4 v) {
  return fmaxf(fmaxf(fmaxf(fmaxf(0.0F, fabsf(v.x)), fabsf(v.y)), fabsf(v.z)), fabsf(v.w));
}

/// The largest number of each `lanes` neighbouring lanes (a power of two). No number may be negative or NaN.
__device__ inline float max_of_lanes(float v, int lanes) {
  // Numbers that are not negative are ordered like their bits.
  if (lanes == 32) return __uint_as_float(__reduce_max_sync(0xFFFF'FFFFU, __float_as_uint(v)));
  for (int i = lanes / 2; i > 0; i /= 2) v = fmaxf(v, __shfl_xor_sync(0xFFFF'FFFFU, v, i));
  return v;
}

/// The sum over a warp, with the same bits in every lane.
__device__ inline float sum_of_warp(float v) {
  for (int i = 16; i > 0; i /= 2) v += __shfl_xor_sync(0xFFFF'FFFFU, v, i);
  return v;
}

/// Four elements of a row as they are stored, the first in the lowest bits.
template <class T>
struct RawOf;
template <>
struct RawOf<float> {
  using type = uint4;
};
template <>
struct RawOf<BF16> {
  using type = uint2;
};
template <>
struct RawOf<E4M3> {
  using type = std::uint32_t;
};
template <class T>
using Raw = typename RawOf<T>::type;

__device__ inline float widened(float v) { return v; }
__device__ inline float widened(BF16 v) { return to_float(v); }
__device__ inline float4 widened(uint4 raw) {
  return {__uint_as_float(raw.x), __uint_as_float(raw.y), __uint_as_float(raw.z), __uint_as_float(raw.w)};
}
__device__ inline float4 widened(uint2 raw) {
  return {__uint_as_float(raw.x << 16), __uint_as_float(raw.x & 0xFFFF'0000U), __uint_as_float(raw.y << 16),
          __uint_as_float(raw.y & 0xFFFF'0000U)};
}

/// Four numbers as E4M3, the first in the lowest bits, rounded as in core/codecs.h, but a NaN loses its sign.
__device__ inline std::uint32_t e4m3_codes(float4 v) {
#if __CUDA_ARCH__ >= 890
  std::uint16_t low;
  std::uint16_t high;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(v.y), "f"(v.x));
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(v.w), "f"(v.z));
  return low | static_cast<std::uint32_t>(high) << 16;
#else
  const auto byte = [](float a) { return static_cast<std::uint32_t>(to_e4m3(a).bits); };
  return byte(v.x) | byte(v.y) << 8 | byte(v.z) << 16 | byte(v.w) << 24;
#endif
}
/// The same with the signs of four others: arithmetic on the GPU loses the sign of a NaN.
__device__ inline std::uint32_t e4m3_codes(float4 v, float4 signs) {
  const std::uint32_t top =
      __byte_perm(__byte_perm(__float_as_uint(signs.x), __float_as_uint(signs.y), 0x0073),
                  __byte_perm(__float_as_uint(signs.z), __float_as_uint(signs.w), 0x0073), 0x5410);
  return e4m3_codes(v) | (top & 0x8080'8080U);
}

/// Four numbers rounded once to T, with the bits of core/codecs.h, NaN included.
template <class T>
__device__ Raw<T> narrowed(float4 v) {
  if constexpr (std::is_same_v<T, float>) {
    return {__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z), __float_as_uint(v.w)};
  } else if constexpr (std::is_same_v<T, BF16>) {
    if (plain(v)) return {bf16_pair(v.x, v.y), bf16_pair(v.z, v.w)};
    const auto pair = [](float a, float b) {
      return to_bf16(a).bits | static_cast<std::uint32_t>(to_bf16(b).bits) << 16;
    };
    return {pair(v.x, v.y), pair(v.z, v.w)};
  } else {
    return e4m3_codes(v, v);
  }
}

/// The same by the GPU's conversion instructions, which have a single NaN.
template <class T>
__device__ Raw<T> computed(float4 v) {
  if constexpr (std::is_same_v<T, BF16>) {
    return {bf16_pair(v.x, v.y), bf16_pair(v.z, v.w)};
  } else {
    return narrowed<T>(v);
  }
}

template <class T>
__device__ inline T one_of(std::uint32_t raw) {
  if constexpr (std::is_same_v<T, float>) {
    return __uint_as_float(raw);
  } else if constexpr (std::is_same_v<T, BF16>) {
    return {static_cast<std::uint16_t>(raw)};
  } else {
    return {static_cast<std::uint8_t>(raw)};
  }
}

/// Loads or stores elements i..i+3 of a row of n. kVector: i and n are multiples of 4 and the row is aligned to four
/// elements. Otherwise i is any number; elements outside of the row are read as 0 and not written.
template <bool kByFours, class T>
__device__ Raw<T> load_vec4(const T* row, int i, int n) {
  if constexpr (kByFours) {
    return *reinterpret_cast<const Raw<T>*>(row + i);
  } else if constexpr (std::is_same_v<T, float>) {
    const auto at = [&](int j) { return i + j >= 0 && i + j < n ? __float_as_uint(row[i + j]) : 0U; };
    return {at(0), at(1), at(2), at(3)};
  } else {
    const auto at = [&](int j) { return i + j >= 0 && i + j < n ? static_cast<std::uint32_t>(row[i + j].bits) : 0U; };
    return {at(0) | at(1) << 16, at(2) | at(3) << 16};
  }
}

template <bool kByFours, class T>
__device__ void store_vec4(T* row, int i, int n, Raw<T> raw) {
  if constexpr (kByFours) {
    *reinterpret_cast<Raw<T>*>(row + i) = raw;
  } else {
    const auto put = [&](int j, std::uint32_t bits) {
      if (i + j >= 0 && i + j < n) row[i + j] = one_of<T>(bits);
    };
    if constexpr (std::is_same_v<T, float>) {
      put(0, raw.x), put(1, raw.y), put(2, raw.z), put(3, raw.w);
    } else if constexpr (std::is_same_v<T, BF16>) {
      put(0, raw.x), put(1, raw.x >> 16), put(2, raw.y), put(3, raw.y >> 16);
    } else {
      put(0, raw), put(1, raw >> 8), put(2, raw >> 16), put(3, raw >> 24);
    }
  }
}

/// Adds the squares of four numbers to a thread's part of a sum.
struct Squares {
  float4 sum{0, 0, 0, 0};
  __device__ void add(float4 v) { sum.x += v.x * v.x, sum.y += v.y * v.y, sum.z += v.z * v.z, sum.w += v.w * v.w; }
  __device__ float all() const { return (sum.x + sum.y) + (sum.z + sum.w); }
};

/// A row in registers: kThreads threads hold its first 16 * kThreads elements, four vec4s each; elements behind them
/// are read again at each use. Begins at element `begin`, which may be negative.
template <int kThreads, bool kByFours, class T>
struct RegisterRow {
  static constexpr int kHeld = 4;
  const T* row;
  int n;
  int first;
  Raw<T> held[kHeld];

  __device__ RegisterRow(const T* row_in, int n_in, int begin, int thread)
      : row(row_in), n(n_in), first(begin + 4 * thread) {
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const int i = first + 4 * kThreads * k;
      if (i < n) held[k] = load_vec4<kByFours>(row, i, n);
    }
  }
  /// Calls f(i, raw) for the thread's vec4s in order.
  template <class F>
  __device__ void each(F&& f) const {
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const int i = first + 4 * kThreads * k;
      if (i < n) f(i, held[k]);
    }
    for (int i = first + 4 * kThreads * kHeld; i < n; i += 4 * kThreads) f(i, load_vec4<kByFours>(row, i, n));
  }
  /// Calls f(i, raw, other's raw) for the thread's vec4s in order; `other` begins at the same element of a row as long.
  template <class F>
  __device__ void each_with(const RegisterRow& other, F&& f) const {
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const int i = first + 4 * kThreads * k;
      if (i < n) f(i, held[k], other.held[k]);
    }
    for (int i = first + 4 * kThreads * kHeld; i < n; i += 4 * kThreads)
      f(i, load_vec4<kByFours>(row, i, n), load_vec4<kByFours>(other.row, i, n));
  }
  /// This thread's part of the sum of squares.
  __device__ float squares() const {
    Squares sum;
    each([&](int, Raw<T> raw) { sum.add(widened(raw)); });
    return sum.all();
  }
};

}  // namespace smla::device
