#include "bench/peak.h"

#if defined(__AVX512BF16__)

// GCC 12 takes the deliberately undefined merge operand of its own AVX-512 intrinsics for a bug.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

namespace smla::bench {

namespace {

constexpr int kChains = 24;

/// A chain takes 16 sums of two products each.
double dot_products(std::int64_t rounds, float* x) {
  const __m512bh a = reinterpret_cast<__m512bh>(_mm512_set1_ps(x[0]));
  const __m512bh b = reinterpret_cast<__m512bh>(_mm512_set1_ps(x[1]));
  __m512 sums[kChains];
#pragma GCC unroll 32
  for (int i = 0; i < kChains; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
  for (std::int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 32
    for (int i = 0; i < kChains; ++i) sums[i] = _mm512_dpbf16_ps(sums[i], a, b);
  }
  __m512 all = sums[0];
  for (int i = 1; i < kChains; ++i) all = _mm512_add_ps(all, sums[i]);
  x[2] = _mm512_reduce_add_ps(all);
  return 4.0 * 16 * kChains * static_cast<double>(rounds);
}

}  // namespace

PeakKernels peak_bf16_avx512() { return {.name = "avx512_bf16", .arithmetic = dot_products, .read = nullptr}; }

}  // namespace smla::bench

#else

namespace smla::bench {

PeakKernels peak_bf16_avx512() { return {}; }

}  // namespace smla::bench

#endif
