#pragma once

#include "core/check.h"
#include "sparsemla/kv_format.h"

namespace smla {

/// check_cache() of an op's argument. @throws InvalidArgument "<op>: <what>: got ..., expected ...".
void check_cache(std::string_view op, const Text& what, const PagedCache& cache);

}  // namespace smla
