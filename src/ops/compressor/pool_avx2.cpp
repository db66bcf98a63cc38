#if defined(__x86_64__)

#include "device/simd_avx2.h"
#include "ops/compressor/pool.h"
#include "ops/compressor/pool_kernel.h"

namespace smla {

void pool_avx2(const float* const* values, const float* const* logits, int rows, int dim, float* out) {
  pool_kernel<Avx2Word>(values, logits, rows, dim, out);
}

}  // namespace smla

#else

#include "ops/compressor/pool.h"

namespace smla {

// Refused before it is reached.
void pool_avx2(const float* const* values, const float* const* logits, int rows, int dim, float* out) {
  pool_generic(values, logits, rows, dim, out);
}

}  // namespace smla

#endif
