#include "bench/peak.h"
#include "device/simd_generic.h"

namespace smla {
namespace {

using Word = GenericWord;
constexpr int kChains = 8;  // of 16 registers

}  // namespace
}  // namespace smla

#include "bench/peak_kernel.h"

namespace smla::bench {

PeakKernels peak_generic() { return {.name = "generic", .arithmetic = multiply_adds, .read = read_all}; }

}  // namespace smla::bench
