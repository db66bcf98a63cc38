#include "device/simd_generic.h"
#include "ops/norm_rope/kernels.h"

namespace smla {

const NormRopeKernels& norm_rope_kernels_generic() {
  static constexpr NormRopeKernels kKernels = make_norm_rope_kernels<GenericWord>();
  return kKernels;
}

}  // namespace smla
