#pragma once

#include <cstdint>

namespace smla::device {

// Prefetches to L2.

/// Prefetches the cache line of a global address to L2.
__device__ inline void prefetch(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

}  // namespace smla::device
