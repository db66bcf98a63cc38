#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "sparsemla/device.h"
#include "sparsemla/error.h"

namespace smla {

/// @throws CudaError with the call, the error's name and its text.
inline void check_cuda(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  throw CudaError(std::string(call) + ": " + cudaGetErrorName(status) + ": " + cudaGetErrorString(status));
}

/// With SMLA_PRINT_KERNELS in the environment: the name on standard error, the first time it is seen.
void print_kernel(const char* kernel);

/// After a kernel launch: a bad configuration or a missing image. @throws CudaError naming the kernel.
inline void check_launch(const char* kernel) {
  check_cuda(cudaGetLastError(), kernel);
  print_kernel(kernel);
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
