#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "device/launch_hook.h"
#include "sparsemla/device.h"
#include "sparsemla/error.h"

namespace smla {

/// @throws CudaError with the call, the error's name and its text. The runtime remembers a failed call until it is
/// asked; it is asked here, so that nobody who goes on after catching this finds the error blamed on the next kernel.
inline void check_cuda(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();
  throw CudaError(std::string(call) + ": " + cudaGetErrorName(status) + ": " + cudaGetErrorString(status));
}

/// Tells the process's launch hook.
inline void tell_launch(const char* kernel) {
  if (const device::LaunchHook hook = device::launch_hook.load(std::memory_order_relaxed); hook != nullptr)
    hook(kernel);
}

/// After a kernel launch: a bad configuration or a missing image. @throws CudaError naming the kernel.
inline void check_launch(const char* kernel) {
  check_cuda(cudaGetLastError(), kernel);
  tell_launch(kernel);
}

inline cudaStream_t stream_of(const Stream& stream) { return static_cast<cudaStream_t>(stream.handle); }

/// Blocks of `block` threads for `items`. The x dimension of a grid holds 2^31 - 1 blocks, so no kernel here counts
/// rows in y or z.
inline unsigned blocks_for(std::int64_t items, std::int64_t block) {
  const std::int64_t blocks = (items + block - 1) / block;
  if (blocks > 0x7FFF'FFFF)
    throw InvalidArgument("grid: got " + std::to_string(blocks) + " blocks, expected at most 2^31-1");
  return static_cast<unsigned>(blocks);
}

}  // namespace smla
