#if defined(__x86_64__)

#include "device/simd_avx512.h"
#include "ops/norm_rope/kernels.h"

namespace smla {

const NormRopeKernels& norm_rope_kernels_avx512() {
  static constexpr NormRopeKernels kKernels = make_norm_rope_kernels<Avx512Word>();
  return kKernels;
}

}  // namespace smla

#else

#include "ops/norm_rope/kernel_table.h"

namespace smla {

const NormRopeKernels& norm_rope_kernels_avx512() {
  return norm_rope_kernels_generic();
}  // refused before it is reached

}  // namespace smla

#endif
