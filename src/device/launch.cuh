#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "device/launch_hook.h"
#include "sparsemla/device.h"
#include "sparsemla/error.h"

namespace smla {

/// @throws CudaError with the call, the error's name and its text. Also clears the error that the runtime keeps;
/// otherwise it would be reported again by the next kernel's check.
inline void check_cuda(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();
  throw CudaError(std::string(call) + ": " + cudaGetErrorName(status) + ": " + cudaGetErrorString(status));
}

/// Calls the process's launch hook.
inline void tell_launch(const char* kernel) {
  if (const device::LaunchHook hook = device::launch_hook.load(std::memory_order_relaxed); hook != nullptr)
    hook(kernel);
}

/// Checks a kernel launch, for a bad configuration or a missing image. @throws CudaError naming the kernel.
inline void check_launch(const char* kernel) {
  check_cuda(cudaGetLastError(), kernel);
  tell_launch(kernel);
}

inline cudaStream_t stream_of(const Stream& stream) { return static_cast<cudaStream_t>(stream.handle); }

/// The number of blocks of `block` threads for `items` items, for a grid's x dimension. It holds 2^31 - 1 blocks, y and
/// z only 65,535, so kernels count rows in x.
inline unsigned blocks_for(std::int64_t items, std::int64_t block) {
  const std::int64_t blocks = (items + block - 1) / block;
  if (blocks > 0x7FFF'FFFF)
    throw InvalidArgument("grid: got " + std::to_string(blocks) + " blocks, expected at most 2^31-1");
  return static_cast<unsigned>(blocks);
}

}  // namespace smla
