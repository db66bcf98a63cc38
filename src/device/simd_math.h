#pragma once

// Functions over any SIMD word (simd_generic.h, simd_avx2.h, simd_avx512.h). Internal linkage: see simd_generic.h.

namespace smla {
namespace {

/// e^x, relative error under 2e-7 for x in [-87.3, 88.3]; +0 below (and for -inf), about 2.2e38 above, NaN for NaN.
/// x = n ln 2 + r with |r| <= ln 2 / 2; e^r by its series to the seventh power.
template <class Word>
inline Word exp(Word x) {
  const Word low = Word::all(-87.3F);
  const Word clamped = min(Word::all(88.3F), max(low, x));  // both keep a NaN
  const Word bias = Word::all(12582912.0F);                 // 1.5 * 2^23: adding it rounds to an integer
  const Word biased = fma(clamped, Word::all(1.44269504F), bias);
  const Word n = biased - bias;
  Word r = fma(n, Word::all(-0.693359375F), clamped);  // the high part has 9 bits: n times it is exact
  r = fma(n, Word::all(2.12194440e-4F), r);
  Word p = Word::all(1.0F / 5040.0F);
  p = fma(p, r, Word::all(1.0F / 720.0F));
  p = fma(p, r, Word::all(1.0F / 120.0F));
  p = fma(p, r, Word::all(1.0F / 24.0F));
  p = fma(p, r, Word::all(1.0F / 6.0F));
  p = fma(p, r, Word::all(0.5F));
  p = fma(p, r, Word::all(1.0F));
  p = fma(p, r, Word::all(1.0F));
  return unless_below(x, low, p * pow2_of_biased(biased));
}

}  // namespace
}  // namespace smla
