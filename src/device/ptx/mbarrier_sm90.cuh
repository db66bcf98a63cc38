#pragma once

#include <cstdint>

namespace smla::device {

// Barriers in shared memory (mbarrier) between the warpgroups of a block, from sm_90 on, by their 32-bit addresses. A
// barrier's phases alternate between parity 0 and 1; waiting for a parity waits for the end of that phase.

__device__ inline void mbarrier_init(std::uint32_t at, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}
__device__ inline void mbarrier_arrive(std::uint32_t at) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(at) : "memory");
}
/// One arrival for a warp, all of whose lanes come here. Electing a lane takes less time than asking for its number.
__device__ inline void mbarrier_arrive_warp(std::uint32_t barrier) {
  __syncwarp();
  asm volatile(
      "{\n .reg .pred elected;\n elect.sync _|elected, -1;\n @elected mbarrier.arrive.shared.b64 _, [%0];\n}" ::"r"(
          barrier)
      : "memory");
}
__device__ inline void mbarrier_wait(std::uint32_t at, std::uint32_t parity) {
  asm volatile(
      "{ .reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra again; }" ::"r"(at),
      "r"(parity)
      : "memory");
}

/// The same for a warp that is far ahead of others: it leaves them the multiprocessor while it waits.
__device__ inline void mbarrier_wait_long(std::uint32_t at, std::uint32_t parity) {
  asm volatile(
      "{ .reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@done bra over;\n"
      "nanosleep.u32 100;\n"
      "bra again;\n"
      "over: }" ::"r"(at),
      "r"(parity)
      : "memory");
}

/// Whether the phase of a parity is over.
__device__ inline bool mbarrier_over(std::uint32_t at, std::uint32_t parity) {
  std::uint32_t over = 0;
  asm volatile(
      "{ .reg .pred done;\n"
      "mbarrier.test_wait.parity.shared.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done; }"
      : "=r"(over)
      : "r"(at), "r"(parity)
      : "memory");
  return over != 0;
}

/// Whether phases of two pairs of barriers are over, the second of a pair kApart bytes behind the first. The looks are
/// on their way together.
template <std::uint32_t kApart>
__device__ bool mbarriers_over(std::uint32_t first, std::uint32_t parity, std::uint32_t second,
                               std::uint32_t parity_of_second) {
  std::uint32_t over = 0;
  asm volatile(
      "{ .reg .pred a, b, c, d;\n"
      "mbarrier.test_wait.parity.shared.b64 a, [%1], %2;\n"
      "mbarrier.test_wait.parity.shared.b64 b, [%1+%5], %2;\n"
      "mbarrier.test_wait.parity.shared.b64 c, [%3], %4;\n"
      "mbarrier.test_wait.parity.shared.b64 d, [%3+%5], %4;\n"
      "and.pred a, a, b;\n"
      "and.pred c, c, d;\n"
      "and.pred a, a, c;\n"
      "selp.u32 %0, 1, 0, a; }"
      : "=r"(over)
      : "r"(first), "r"(parity), "r"(second), "r"(parity_of_second), "n"(kApart)
      : "memory");
  return over != 0;
}

/// Arrives once all cp.async of this thread so far have arrived. The barrier must expect this arrival.
__device__ inline void cp_async_arrive(std::uint32_t at) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(at) : "memory");
}

/// Makes what this thread has written to shared memory visible to wgmma.
__device__ inline void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// Sets the registers of each thread of a warpgroup, all of whose warps must call it.
template <int kRegisters>
__device__ void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// Stores four 8x8 tiles of 16-bit numbers: lanes 8i..8i+7 hold the addresses of tile i's rows, 16 bytes each. Lane l
/// has numbers 2(l%4) and 2(l%4)+1 of row l/4 of every tile.
__device__ inline void stmatrix_x4(std::uint32_t at, std::uint32_t a, std::uint32_t b, std::uint32_t c,
                                   std::uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(a), "r"(b), "r"(c),
               "r"(d)
               : "memory");
}

}  // namespace smla::device
