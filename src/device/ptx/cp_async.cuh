#pragma once

#include <cstdint>

namespace smla::device {

// cp.async, from sm_80 on: copies from global to shared memory without waiting.

/// Starts copying kBytes (4, 8 or 16) from global to shared memory; both addresses are aligned to that. When `there` is
/// false it writes zeros and reads nothing.
template <int kBytes>
__device__ inline void cp_async(std::uint32_t to, const void* from, bool there) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  const int bytes = there ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(kBytes), "r"(bytes)
                 : "memory");
  }
}
/// The same of 16 bytes that are read once: L2 gives up their lines before others (evict_first).
__device__ inline void cp_async_once(std::uint32_t to, const void* from, bool there) {
  const int bytes = there ? 16 : 0;
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from), "r"(bytes),
               "l"(policy)
               : "memory");
}
/// Closes a group: this thread's copies since the last call.
__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until all but the last kLeft groups of this thread have arrived.
template <int kLeft>
__device__ inline void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

}  // namespace smla::device
