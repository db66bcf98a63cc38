#include "ops/projection/implementations.h"

#if defined(__AVX512F__)

#include "device/simd_avx512.h"

namespace smla {
namespace {

using Word = Avx512Word;
constexpr int kBlockRows = 6;      // 24 sums + 2 words of weights and their mask of 32 registers
constexpr int kE4m3BlockRows = 3;  // 12 sums + 12 words of x + what widens weights
constexpr bool kWidenPanel = false;

}  // namespace
}  // namespace smla

#include "ops/projection/projection_kernel.h"

namespace smla {

ProjectionTiles projection_tiles_avx512() { return {.run = run_tile, .few_rows = 24, .few_rows_e4m3 = 8}; }

}  // namespace smla

#else

namespace smla {

ProjectionTiles projection_tiles_avx512() { return {}; }  // never run: needs_avx512() refuses

}  // namespace smla

#endif
