#include "ops/projection/implementations.h"

#if defined(__AVX2__)

#include "device/simd_avx2.h"

namespace smla {
namespace {

using Word = Avx2Word;
constexpr int kBlockRows = 3;  // 12 sums + 3 x words + 1 weight word of 16 registers
constexpr std::int64_t kFewRows = 12;
constexpr bool kWidenPanel = true;

}  // namespace
}  // namespace smla

#include "ops/projection/projection_kernel.h"

namespace smla {

void projection_tile_avx2(const ProjectionTile& tile) { run_tile(tile); }

}  // namespace smla

#else

namespace smla {

void projection_tile_avx2(const ProjectionTile&) {}  // never called: needs_avx2() refuses

}  // namespace smla

#endif
