#include <cuda_runtime_api.h>

#include "sparsemla/device.h"

namespace smla {

bool built_with_cuda() { return true; }

std::vector<GpuInfo> gpus(std::string* reason) {
  std::vector<GpuInfo> found;
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    (void)cudaGetLastError();
    if (reason == nullptr) return found;
    // Without a driver the runtime calls the version, 0, too old.
    int driver = 0;
    const bool none =
        status == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0;
    *reason =
        none ? "there is no NVIDIA driver" : std::string(cudaGetErrorName(status)) + ": " + cudaGetErrorString(status);
    return found;
  }
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp p{};
    if (cudaGetDeviceProperties(&p, i) != cudaSuccess) continue;
    found.push_back({.name = p.name,
                     .major = p.major,
                     .minor = p.minor,
                     .multiprocessors = p.multiProcessorCount,
                     .memory_bytes = p.totalGlobalMem});
  }
  if (found.empty() && reason != nullptr) *reason = "the driver reports no GPU";
  return found;
}

}  // namespace smla
