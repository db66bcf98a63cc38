#include "device/simd_generic.h"
#include "ops/compressor/pool.h"
#include "ops/compressor/pool_kernel.h"

namespace smla {

void pool_generic(const float* const* values, const float* const* logits, int rows, int dim, float* out) {
  pool_kernel<GenericWord>(values, logits, rows, dim, out);
}

}  // namespace smla
