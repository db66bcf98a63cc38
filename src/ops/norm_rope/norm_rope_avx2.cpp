#if defined(__x86_64__)

#include "device/simd_avx2.h"
#include "ops/norm_rope/kernels.h"

namespace smla {

const NormRopeKernels& norm_rope_kernels_avx2() {
  static constexpr NormRopeKernels kKernels = make_norm_rope_kernels<Avx2Word>();
  return kKernels;
}

}  // namespace smla

#else

#include "ops/norm_rope/kernel_table.h"

namespace smla {

const NormRopeKernels& norm_rope_kernels_avx2() { return norm_rope_kernels_generic(); }  // refused before it is reached

}  // namespace smla

#endif
