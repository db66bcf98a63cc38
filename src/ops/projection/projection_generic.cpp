#include "device/simd_generic.h"
#include "ops/projection/implementations.h"

namespace smla {
namespace {

using Word = GenericWord;
constexpr int kBlockRows = 2;  // 8 sums of 16 registers: multiply and add need two more than FMA does
constexpr int kE4m3BlockRows = 2;
constexpr bool kWidenPanel = true;

}  // namespace
}  // namespace smla

#include "ops/projection/projection_kernel.h"

namespace smla {

ProjectionTiles projection_tiles_cpu() { return {.run = run_tile, .few_rows = 4, .few_rows_e4m3 = 2}; }

}  // namespace smla
