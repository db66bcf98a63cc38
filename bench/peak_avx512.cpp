#include "bench/peak.h"

#if defined(__AVX512F__)

#include "device/simd_avx512.h"

namespace smla {
namespace {

using Word = Avx512Word;
constexpr int kChains = 24;  // of 32 registers

}  // namespace
}  // namespace smla

#include "bench/peak_kernel.h"

namespace smla::bench {

PeakKernels peak_avx512() { return {.name = "avx512", .arithmetic = multiply_adds, .read = read_all}; }

}  // namespace smla::bench

#else

namespace smla::bench {

PeakKernels peak_avx512() { return {}; }

}  // namespace smla::bench

#endif
