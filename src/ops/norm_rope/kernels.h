#pragma once

// Row kernels of the norm_rope family over any SIMD word. Internal linkage, raw pointers, no library code: see
// device/simd_generic.h. The sum of squares is taken in fp32 lanes; everything after it is the reference's chain,
// element by element, so a row's bits differ from the reference's only through the last bit of the norm.

#include <cstdint>

#include "ops/norm_rope/kernel_table.h"

namespace smla {
namespace {

constexpr int kChunk = 512;  ///< elements converted at a time; even, so that no rope pair is cut

template <class Word>
void load_chunk(const void* x, DType type, std::int64_t begin, int n, float* out) {
  int i = 0;
  if (type == DType::kBF16) {
    const std::uint16_t* from = static_cast<const std::uint16_t*>(x) + begin;
    for (; i + Word::kLanes <= n; i += Word::kLanes) Word::load_bf16(from + i).store(out + i);
    for (; i < n; ++i) out[i] = __builtin_bit_cast(float, static_cast<std::uint32_t>(from[i]) << 16);
    return;
  }
  const float* from = static_cast<const float*>(x) + begin;
  for (; i + Word::kLanes <= n; i += Word::kLanes) Word::load(from + i).store(out + i);
  for (; i < n; ++i) out[i] = from[i];
}

/// Round to nearest even, saturate at +-448, NaN to 0x7F: core/codecs.h without branches.
inline std::uint8_t e4m3_bits(float x) {
  const std::uint32_t u = __builtin_bit_cast(std::uint32_t, x);
  const std::uint32_t magnitude = u & 0x7FFF'FFFFU;
  const std::uint32_t tiny =
      __builtin_bit_cast(std::uint32_t, __builtin_bit_cast(float, magnitude) + 16384.0F) - 0x4680'0000U;
  const std::uint32_t normal = ((magnitude + 0x7'FFFFU + ((magnitude >> 20) & 1U)) >> 20) - (120U << 3);
  std::uint32_t code = magnitude < 0x3C80'0000U ? tiny : normal;
  code = magnitude >= 0x43E8'0000U ? 0x7EU : code;
  code = magnitude > 0x7F80'0000U ? 0x7FU : code;
  return static_cast<std::uint8_t>(((u >> 24) & 0x80U) | code);
}

template <class Word>
void store_chunk(const float* values, void* y, DType type, std::int64_t begin, int n) {
  int i = 0;
  if (type == DType::kBF16) {
    std::uint16_t* to = static_cast<std::uint16_t*>(y) + begin;
    for (; i + Word::kLanes <= n; i += Word::kLanes) Word::load(values + i).store_bf16(to + i);
    if (i == n) return;
    float padded[Word::kLanes] = {};
    std::uint16_t bits[Word::kLanes];
    for (int j = 0; j < n - i; ++j) padded[j] = values[i + j];
    Word::load(padded).store_bf16(bits);
    for (int j = 0; j < n - i; ++j) to[i + j] = bits[j];
  } else if (type == DType::kE4M3) {
    std::uint8_t* to = static_cast<std::uint8_t*>(y) + begin;
    for (; i < n; ++i) to[i] = e4m3_bits(values[i]);
  } else {
    float* to = static_cast<float*>(y) + begin;
    for (; i + Word::kLanes <= n; i += Word::kLanes) Word::load(values + i).store(to + i);
    for (; i < n; ++i) to[i] = values[i];
  }
}

/// rsqrt(sum(x^2)/n + eps).
template <class Word>
float inverse_rms(const void* x, DType type, std::int64_t n, float eps) {
  float buffer[kChunk];
  Word first = Word::zero();
  Word second = Word::zero();
  double rest = 0.0;
  for (std::int64_t begin = 0; begin < n; begin += kChunk) {
    const int size = static_cast<int>(n - begin < kChunk ? n - begin : kChunk);
    load_chunk<Word>(x, type, begin, size, buffer);
    int i = 0;
    for (; i + 2 * Word::kLanes <= size; i += 2 * Word::kLanes) {
      const Word a = Word::load(buffer + i);
      const Word b = Word::load(buffer + i + Word::kLanes);
      first = fma(a, a, first);
      second = fma(b, b, second);
    }
    for (; i < size; ++i) rest += static_cast<double>(buffer[i]) * buffer[i];
  }
  const double total = static_cast<double>((first + second).sum()) + rest;
  return static_cast<float>(1.0 / __builtin_sqrt(total / static_cast<double>(n) + static_cast<double>(eps)));
}

template <class Word>
void norm_kernel(const void* x, DType in, const void* weight, DType weight_type, void* y, DType out, std::int64_t n,
                 float eps) {
  if (n == 0) return;
  const float inverse = inverse_rms<Word>(x, in, n, eps);
  float buffer[kChunk];
  float weights[kChunk];
  for (std::int64_t begin = 0; begin < n; begin += kChunk) {
    const int size = static_cast<int>(n - begin < kChunk ? n - begin : kChunk);
    load_chunk<Word>(x, in, begin, size, buffer);
    for (int i = 0; i < size; ++i) buffer[i] *= inverse;
    if (weight != nullptr) {
      load_chunk<Word>(weight, weight_type, begin, size, weights);
      for (int i = 0; i < size; ++i) buffer[i] *= weights[i];
    }
    store_chunk<Word>(buffer, y, out, begin, size);
  }
}

/// Pairs (e, o) of `values`: e*c - o*s, o*c + e*s, not contracted (the build has -ffp-contract=off).
inline void rotate_chunk(float* values, int pairs, const float* cosines, const float* sines) {
  for (int i = 0; i < pairs; ++i) {
    const float e = values[2 * i];
    const float o = values[2 * i + 1];
    values[2 * i] = e * cosines[i] - o * sines[i];
    values[2 * i + 1] = o * cosines[i] + e * sines[i];
  }
}

template <class Word>
void norm_rope_kernel(const NormRopeRow& row) {
  if (row.dim == 0) return;
  const float inverse = inverse_rms<Word>(row.x, row.in, row.dim, row.eps);
  const int nope = row.dim - row.rope_dim;
  float buffer[kChunk];
  for (int begin = 0; begin < row.dim;) {
    const int end = begin < nope ? nope : row.dim;
    const int size = end - begin < kChunk ? end - begin : kChunk;
    load_chunk<Word>(row.x, row.in, begin, size, buffer);
    for (int i = 0; i < size; ++i) buffer[i] *= inverse;
    if (begin >= nope) {
      const int pair = (begin - nope) / 2;
      rotate_chunk(buffer, size / 2, row.cos_sin + pair, row.cos_sin + row.rope_dim / 2 + pair);
    }
    if (row.out == DType::kE4M3) {
      for (int i = 0; i < size; ++i) buffer[i] *= row.factor;
    }
    store_chunk<Word>(buffer, row.y, row.out, begin, size);
    begin += size;
  }
}

template <class Word>
constexpr NormRopeKernels make_norm_rope_kernels() {
  return {.norm = norm_kernel<Word>, .norm_rope = norm_rope_kernel<Word>};
}

}  // namespace
}  // namespace smla
