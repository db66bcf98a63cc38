#pragma once

// The loops behind the ceilings of bench/machine.cpp, one set for each instruction set. Raw pointers only: files of
// other instruction sets include this.

#include <cstdint>

namespace smla::bench {

/// Reads n floats in order and returns their sum.
using ReadKernel = float (*)(const float* p, std::int64_t n);

/// One instruction set's loops; null where it has none.
struct PeakKernels {
  const char* name = "";
  /// Arithmetic without memory: `rounds` rounds; returns the floating-point operations done, 2 for a multiply-add. `x`
  /// keeps the compiler honest.
  double (*arithmetic)(std::int64_t rounds, float* x) = nullptr;
  ReadKernel read = nullptr;
};

PeakKernels peak_generic();
PeakKernels peak_avx2();
PeakKernels peak_avx512();
/// Dot products of bf16 pairs with fp32 sums (AVX512_BF16); no read loop.
PeakKernels peak_bf16_avx512();

}  // namespace smla::bench
