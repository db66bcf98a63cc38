#pragma once

#include <cstdint>

namespace smla::device {

// What blocks of one launch tell each other through global memory.

/// Stores a number behind everything that this thread has written or has learnt to be written.
__device__ inline void st_release(std::uint64_t* at, std::uint64_t v) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(v) : "memory");
}
/// Loads a number; what was written before it was stored with release can be read after.
__device__ inline std::uint64_t ld_acquire(const std::uint64_t* at) {
  std::uint64_t v = 0;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(at) : "memory");
  return v;
}

/// Stores a number and gives what was there before.
__device__ inline std::uint64_t exchange(std::uint64_t* at, std::uint64_t v) {
  return atomicExch(reinterpret_cast<unsigned long long*>(at), v);
}

/// Begins a count up to `all` in memory that need not be cleared before: what is not `nonce` or up to `all` more
/// becomes `nonce`. Each thread does so before it counts; the first one's counts.
__device__ inline void begin_count(std::uint64_t* count, std::uint64_t nonce, unsigned all) {
  const std::uint64_t seen = *static_cast<volatile std::uint64_t*>(count);
  if (seen - nonce >= all) atomicCAS(reinterpret_cast<unsigned long long*>(count), seen, nonce);
}
/// Adds 1, by one thread, and tells whether that made the count full; then it has not begun any more. Acquires and
/// releases.
__device__ inline bool count_up(std::uint64_t* count, std::uint64_t nonce, unsigned all) {
  std::uint64_t before = 0;
  asm volatile("atom.add.acq_rel.gpu.global.u64 %0, [%1], 1;" : "=l"(before) : "l"(count) : "memory");
  const bool full = before - nonce == all - 1;
  if (full) *static_cast<volatile std::uint64_t*>(count) = 0;
  return full;
}

}  // namespace smla::device
