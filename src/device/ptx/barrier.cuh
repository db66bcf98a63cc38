#pragma once

#include <cstdint>

namespace smla::device {

// Named barriers (bar.sync): of some of a block's threads.

/// Waits at barrier `id` until `threads` threads have arrived there. A block has fifteen besides that of
/// __syncthreads().
__device__ inline void bar_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace smla::device
