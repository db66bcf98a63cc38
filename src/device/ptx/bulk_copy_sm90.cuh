#pragma once

#include <cstdint>

namespace smla::device {

// Bulk copies (cp.async.bulk), from sm_90 on: one thread copies many bytes, which an mbarrier counts.

/// Starts copying `bytes` from global to shared memory, all multiples of 16. The barrier's phase ends no earlier than
/// they have arrived, if a thread arrives with mbarrier_arrive_expect() for them.
__device__ inline void bulk_copy(std::uint32_t to, const void* from, std::uint32_t bytes, std::uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}
/// Arrives at a barrier whose phase waits for `bytes` of bulk copies as well. Copies may have been started before.
__device__ inline void mbarrier_arrive_expect(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

}  // namespace smla::device
