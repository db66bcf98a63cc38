#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "device/shared_limit.h"

namespace smla::device {

namespace {

std::atomic<std::size_t> lowered{0};

std::size_t granted() {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess) gpus = 0;
  std::size_t least = 0;
  for (int i = 0; i < gpus; ++i) {
    int bytes = 0;
    if (cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, i) != cudaSuccess) continue;
    least = least == 0 ? static_cast<std::size_t>(bytes) : std::min(least, static_cast<std::size_t>(bytes));
  }
  (void)cudaGetLastError();
  const char* text = std::getenv("SMLA_CUDA_SHARED_BYTES");
  const long long asked = text == nullptr ? 0 : std::atoll(text);
  return asked > 0 ? std::min(least, static_cast<std::size_t>(asked)) : least;
}

}  // namespace

std::size_t shared_limit() {
  static const std::size_t machine = granted();
  const std::size_t lower = lowered.load(std::memory_order_relaxed);
  return lower == 0 ? machine : std::min(machine, lower);
}

void limit_shared_bytes(std::size_t bytes) { lowered.store(bytes, std::memory_order_relaxed); }

int least_capability() {
  static const int least = [] {
    int gpus = 0;
    if (cudaGetDeviceCount(&gpus) != cudaSuccess) gpus = 0;
    int found = 0;
    for (int i = 0; i < gpus; ++i) {
      int major = 0;
      int minor = 0;
      if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, i) != cudaSuccess) continue;
      if (cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, i) != cudaSuccess) continue;
      found = found == 0 ? 10 * major + minor : std::min(found, 10 * major + minor);
    }
    (void)cudaGetLastError();
    return found;
  }();
  return least;
}

int multiprocessors() {
  static const int count = [] {
    int n = 0;
    if (cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, 0) != cudaSuccess) (void)cudaGetLastError();
    return std::max(n, 1);
  }();
  return count;
}

}  // namespace smla::device
