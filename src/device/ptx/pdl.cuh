#pragma once

#include <cstdint>

namespace smla::device {

// Programmatic dependent launch (PDL): a kernel's code is fetched and its blocks start while the kernel before it in
// the stream ends. From sm_90 on. On older GPUs, and where the driver compiled a kernel from older PTX, these functions
// do nothing and kernels run one after the other.

/// Waits until all earlier work of the stream is done and visible. Every thread of a kernel that launch_pdl() starts
/// must call it before it returns or touches memory that others write, or wait at a barrier of its block for one that
/// has.
__device__ inline void pdl_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Allows the next kernel to start once every block has called this or returned. That kernel's pdl_wait() still waits
/// for the end of this one.
__device__ inline void pdl_trigger() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// pdl_wait() and pdl_trigger(), for kernels that leave room for the next one on their multiprocessors.
__device__ inline void pdl_wait_and_trigger() {
  pdl_wait();
  pdl_trigger();
}

}  // namespace smla::device
