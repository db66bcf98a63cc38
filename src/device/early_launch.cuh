#pragma once

#include "device/launch.cuh"
#include "device/shared_limit.h"

namespace smla::device {

// Programmatic dependent launch: a kernel is set up, its code fetched and its blocks placed while the one before it in the stream ends. From sm_90 on;
// elsewhere, and where the driver compiled a kernel from older PTX, kernels follow each other as always.

/// First in a kernel that launch_early() starts, in every thread before it returns or touches memory that others write: waits until all work before it is
/// done and visible.
__device__ inline void wait_for_work_before() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// From here on the next kernel may be set up, once every block has come here or returned. It waits for the end of this one all the same.
__device__ inline void let_next_launch() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Both, for kernels that leave the next one room beside them.
__device__ inline void take_turn() {
  wait_for_work_before();
  let_next_launch();
}

/// Starts a kernel that begins with wait_for_work_before(); `shared`: bytes of dynamic shared memory. @throws CudaError with `name`.
template <auto kKernel, class... Args>
void launch_early(const char* name, unsigned blocks, dim3 threads, int shared, cudaStream_t stream, const Args&... args) {
  static const bool waits = [] {
    cudaFuncAttributes code{};
    check_cuda(cudaFuncGetAttributes(&code, kKernel), "cudaFuncGetAttributes");
    return code.ptxVersion >= 90 && least_capability() >= 90;
  }();
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = threads;
  config.dynamicSmemBytes = static_cast<std::size_t>(shared);
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = waits ? 1 : 0;
  check_cuda(cudaLaunchKernelEx(&config, kKernel, args...), name);
  print_kernel(name);
}

}  // namespace smla::device
