#pragma once

#include <cstdint>

namespace smla::device {

// Barriers of some threads of a block.

/// A barrier of `threads` threads, one of the fifteen beside __syncthreads().
__device__ inline void bar_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace smla::device
