#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

#include "device/gpu.h"

namespace smla::device {

namespace {

std::atomic<std::size_t> lowered{0};

struct Facts {
  Gpu gpu;
  std::string name;
};

Facts read_facts(int ordinal) {
  const auto attribute = [ordinal](cudaDeviceAttr which) {
    int value = 0;
    if (cudaDeviceGetAttribute(&value, which, ordinal) != cudaSuccess) (void)cudaGetLastError();
    return value;
  };
  Facts facts;
  facts.gpu.ordinal = ordinal;
  facts.gpu.capability =
      10 * attribute(cudaDevAttrComputeCapabilityMajor) + attribute(cudaDevAttrComputeCapabilityMinor);
  facts.gpu.multiprocessors = std::max(attribute(cudaDevAttrMultiProcessorCount), 1);
  facts.gpu.shared_bytes = static_cast<std::size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
  facts.gpu.l2_bytes = static_cast<std::size_t>(attribute(cudaDevAttrL2CacheSize));
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, ordinal) != cudaSuccess) (void)cudaGetLastError();
  facts.name = properties.name;
  const char* text = std::getenv("SMLA_CUDA_SHARED_BYTES");
  const long long asked = text == nullptr ? 0 : std::atoll(text);
  if (asked > 0) facts.gpu.shared_bytes = std::min(facts.gpu.shared_bytes, static_cast<std::size_t>(asked));
  return facts;
}

}  // namespace

Gpu current_gpu() {
  int ordinal = 0;
  int count = 0;
  if (cudaGetDevice(&ordinal) != cudaSuccess || cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    (void)cudaGetLastError();
    return {};
  }
  static std::mutex mutex;
  static std::map<int, Facts> known;
  Gpu gpu;
  {
    const std::lock_guard lock(mutex);
    const auto [entry, is_new] = known.try_emplace(ordinal);
    if (is_new) entry->second = read_facts(ordinal);
    gpu = entry->second.gpu;
    gpu.name = entry->second.name;
  }
  const std::size_t limit = lowered.load(std::memory_order_relaxed);
  if (limit > 0) gpu.shared_bytes = std::min(gpu.shared_bytes, limit);
  return gpu;
}

void limit_shared_bytes(std::size_t bytes) { lowered.store(bytes, std::memory_order_relaxed); }

}  // namespace smla::device
