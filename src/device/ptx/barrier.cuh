#pragma once

#include <cstdint>

namespace smla::device {

// Named barriers (bar.sync): of some of a block's threads.

/// Waits at barrier `id` until `threads` threads have arrived there. A block has fifteen besides that of
/// __syncthreads().
__device__ inline void bar_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// The same; returns whether `mine` was true for any of them.
__device__ inline bool bar_any(int id, int threads, bool mine) {
  int any = 0;
  asm volatile(
      "{ .reg .pred mine, any;\n"
      "setp.ne.s32 mine, %3, 0;\n"
      "bar.red.or.pred any, %1, %2, mine;\n"
      "selp.s32 %0, 1, 0, any; }"
      : "=r"(any)
      : "r"(id), "r"(threads), "r"(static_cast<int>(mine))
      : "memory");
  return any != 0;
}

}  // namespace smla::device
