#pragma once

#include <cstdint>

namespace smla::device {

// Prefetches to L2.

/// Prefetches the cache line of a global address to L2.
__device__ inline void prefetch(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

/// Loads a number as it is in L2 now, for prefetches before the kernel that writes it may have ended: nothing of it is
/// left in L1, where a later load would find it.
template <class T>
__device__ inline T glance(const T* p) {
  return __ldcg(p);
}

}  // namespace smla::device
