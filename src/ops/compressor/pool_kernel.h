#pragma once

// Pooling over any SIMD word. Internal linkage, raw pointers, no library code: see device/simd_generic.h.

#include "device/simd_math.h"

namespace smla {
namespace {

/// out[c] = sum_j softmax_j(logits[j][c]) * values[j][c]; 0 where all logits are -inf. `dim` is a multiple of 64
/// (records are 128 or 512 wide).
template <class Word>
void pool_kernel(const float* const* values, const float* const* logits, int rows, int dim, float* out) {
  constexpr int kWords =
      64 / Word::kLanes;  // a strip of 64 channels: whole cache lines of every row, one pass each for maximum and sum
  const Word lowest = Word::all(-3.4028235e38F);
  for (int begin = 0; begin < dim; begin += 64) {
    float strip[64];
    for (int w = 0; w < kWords; ++w) {
      const int c = begin + w * Word::kLanes;
      Word largest = lowest;  // finite, so that -inf - largest stays -inf: weight 0
      for (int j = 0; j < rows; ++j) largest = max(Word::load(logits[j] + c), largest);
      largest.store(strip + w * Word::kLanes);
    }
    for (int w = 0; w < kWords; ++w) {
      const int c = begin + w * Word::kLanes;
      const Word largest = Word::load(strip + w * Word::kLanes);
      Word sum = Word::zero();
      Word total = Word::zero();
      for (int j = 0; j < rows; ++j) {
        const Word weight = exp(Word::load(logits[j] + c) - largest);
        sum = sum + weight;
        total = fma(weight, Word::load(values[j] + c), total);
      }
      // At least the largest logit has weight 1, unless all were -inf: 0 / tiny = 0 there.
      (total / max(Word::all(1e-30F), sum)).store(out + c);
    }
  }
}

}  // namespace
}  // namespace smla
