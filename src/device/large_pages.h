#pragma once

#include <cstddef>

namespace smla {

/// Asks the system to back host memory that is read in full again and again, weights for example, with its large pages,
/// which hold several hundred times as much for one address translation. Contents stay. Where the system has none, or
/// the memory holds no whole one, nothing happens.
void prefer_large_pages(void* data, std::size_t bytes);

}  // namespace smla
