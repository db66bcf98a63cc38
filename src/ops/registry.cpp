#include "ops/registry.h"

#include <omp.h>

namespace smla {

std::string needs_avx2() { return cpu_features().avx2 ? "" : "this CPU has no AVX2 + FMA"; }

std::string needs_avx512() { return cpu_features().avx512 ? "" : "this CPU has no AVX-512 F/BW/DQ/VL"; }

int resolve_threads(int requested) { return requested > 0 ? requested : omp_get_max_threads(); }

}  // namespace smla
