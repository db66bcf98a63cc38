#include "device/simd_generic.h"
#include "ops/projection/implementations.h"

namespace smla {
namespace {

using Word = GenericWord;
constexpr int kBlockRows = 2;  // 8 sums of 16 registers: multiply and add need two more than FMA does
constexpr std::int64_t kFewRows = 4;
constexpr bool kWidenPanel = true;

}  // namespace
}  // namespace smla

#include "ops/projection/projection_kernel.h"

namespace smla {

void projection_tile_cpu(const ProjectionTile& tile) { run_tile(tile); }

}  // namespace smla
