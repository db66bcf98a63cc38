#pragma once

#include <cstdint>

namespace smla::device {

// Programmatic dependent launch (PDL): a kernel is set up, its code fetched and its blocks placed, while the one before
// it in the stream ends. From sm_90 on; elsewhere, and where the driver compiled a kernel from older PTX, these do
// nothing and kernels follow each other as always.

/// First in a kernel that launch_pdl() starts, in every thread before it returns or touches memory that others write:
/// waits until all work before it is done and visible.
__device__ inline void pdl_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// From here on the next kernel may be set up, once every block has come here or returned. It waits for the end of this
/// one all the same.
__device__ inline void pdl_trigger() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Both, for kernels that leave the next one room on their multiprocessors.
__device__ inline void pdl_wait_and_trigger() {
  pdl_wait();
  pdl_trigger();
}

}  // namespace smla::device
