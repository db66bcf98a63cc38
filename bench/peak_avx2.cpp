#include "bench/peak.h"

#if defined(__AVX2__)

#include "device/simd_avx2.h"

namespace smla {
namespace {

using Word = Avx2Word;
constexpr int kChains = 12;  // of 16 registers

}  // namespace
}  // namespace smla

#include "bench/peak_kernel.h"

namespace smla::bench {

PeakKernels peak_avx2() { return {.name = "avx2", .arithmetic = multiply_adds, .read = read_all}; }

}  // namespace smla::bench

#else

namespace smla::bench {

PeakKernels peak_avx2() { return {}; }

}  // namespace smla::bench

#endif
