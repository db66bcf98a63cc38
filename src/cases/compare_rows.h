#pragma once

#include "cases/tolerance.h"

namespace smla {

/// Compares two U8 [blocks, block stride] caches record by record; see RowsTolerance.
/// @throws InvalidArgument when a block does not fit the stride.
Comparison compare_rows(const HostTensor& got, const HostTensor& want, const RowsTolerance& tolerance);

}  // namespace smla
