#pragma once

// The loops of bench/peak.h over a SIMD word. Included by peak_{generic,avx2,avx512}.cpp only, after the word, `using
// Word` and
//   constexpr int kChains   independent sums: enough to hide the latency of a multiply-add, few enough for the
//   registers
// Internal linkage throughout: see device/simd_generic.h.

#include <cstdint>

namespace smla {
namespace {

double multiply_adds(std::int64_t rounds, float* x) {
  const Word a = Word::all(x[0]);
  const Word b = Word::all(x[1]);
  Word sums[kChains];
#pragma GCC unroll 32
  for (int i = 0; i < kChains; ++i) sums[i] = Word::all(static_cast<float>(i));
  for (std::int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 32
    for (int i = 0; i < kChains; ++i) sums[i] = fma(sums[i], a, b);
  }
  Word all = sums[0];
  for (int i = 1; i < kChains; ++i) all = all + sums[i];
  x[2] = all.sum();
  return 2.0 * Word::kLanes * kChains * static_cast<double>(rounds);
}

float read_all(const float* p, std::int64_t n) {
  constexpr int kWords = 64 / Word::kLanes;  // 256 bytes a turn
  constexpr std::int64_t kAhead = 1024;      // floats
  Word sums[4] = {Word::zero(), Word::zero(), Word::zero(), Word::zero()};
  std::int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    for (int line = 0; line < 4; ++line) __builtin_prefetch(p + i + kAhead + std::int64_t{16} * line, 0, 2);
#pragma GCC unroll 16
    for (int w = 0; w < kWords; ++w) sums[w % 4] = sums[w % 4] + Word::load(p + i + std::int64_t{w} * Word::kLanes);
  }
  return (sums[0] + sums[1] + (sums[2] + sums[3])).sum();
}

}  // namespace
}  // namespace smla
