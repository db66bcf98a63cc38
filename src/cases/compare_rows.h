#pragma once

#include "cases/tolerance.h"

namespace smla {

/// Compares two caches record by record: U8 [blocks, block stride], or numbers [blocks, block size, dim]; see
/// RowsTolerance.
/// @throws InvalidArgument when a block does not fit the stride.
Comparison compare_rows(const HostTensor& got, const HostTensor& want, const RowsTolerance& tolerance);

}  // namespace smla
