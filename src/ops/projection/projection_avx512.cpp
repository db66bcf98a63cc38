#include "ops/projection/implementations.h"

#if defined(__AVX512F__)

#include "device/simd_avx512.h"

namespace smla {
namespace {

using Word = Avx512Word;
constexpr int kBlockRows = 6;  // 24 sums + 4 weight words + 1 x word of 32 registers
constexpr std::int64_t kFewRows = 24;
constexpr bool kWidenPanel = false;

}  // namespace
}  // namespace smla

#include "ops/projection/projection_kernel.h"

namespace smla {

void projection_tile_avx512(const ProjectionTile& tile) { run_tile(tile); }

}  // namespace smla

#else

namespace smla {

void projection_tile_avx512(const ProjectionTile&) {}  // never called: needs_avx512() refuses

}  // namespace smla

#endif
