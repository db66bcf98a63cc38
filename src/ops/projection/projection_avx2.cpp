#include "ops/projection/implementations.h"

#if defined(__AVX2__)

#include "device/simd_avx2.h"

namespace smla {
namespace {

using Word = Avx2Word;
constexpr int kBlockRows = 3;      // 12 sums + 2 words of weights and their mask of 16 registers
constexpr int kE4m3BlockRows = 1;  // 4 sums + 4 words of x + what widens weights
constexpr bool kWidenPanel = true;

}  // namespace
}  // namespace smla

#include "ops/projection/projection_kernel.h"

namespace smla {

ProjectionTiles projection_tiles_avx2() { return {.run = run_tile, .few_rows = 12, .few_rows_e4m3 = 4}; }

}  // namespace smla

#else

namespace smla {

ProjectionTiles projection_tiles_avx2() { return {}; }  // never run: needs_avx2() refuses

}  // namespace smla

#endif
