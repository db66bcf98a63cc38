#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

#include "device/gpu.h"
#include "device/launch.cuh"
#include "device/ptx/pdl.cuh"

namespace smla::device {

// Launches with programmatic dependent launch (device/ptx/pdl.cuh), and facts of a kernel on a GPU.

/// The result of `find`, which is called once for each GPU, when it is first needed there.
template <class Find>
std::int64_t once_per_gpu(const Find& find) {
  constexpr int kGpus = 64;
  static std::array<std::atomic<std::int64_t>, kGpus> known{};  // result + 1; 0: not yet known. One array for each Find
  int ordinal = 0;
  check_cuda(cudaGetDevice(&ordinal), "cudaGetDevice");
  if (ordinal >= kGpus) return find();
  std::atomic<std::int64_t>& entry = known[static_cast<std::size_t>(ordinal)];
  if (const std::int64_t value = entry.load(std::memory_order_relaxed); value > 0) return value - 1;
  const std::int64_t value = find();
  entry.store(value + 1, std::memory_order_relaxed);
  return value;
}

/// Whether a kernel's code and the current GPU are sm_90 or later, as PDL and clusters need.
template <auto kKernel>
bool has_sm90_code() {
  return once_per_gpu([] {
           cudaFuncAttributes code{};
           check_cuda(cudaFuncGetAttributes(&code, kKernel), "cudaFuncGetAttributes");
           return code.ptxVersion >= 90 && current_gpu().capability >= 90 ? 1 : 0;
         }) != 0;
}

constexpr int kWithoutAsking = 48 << 10;  ///< dynamic shared memory of any launch

/// Makes multiprocessors that run a kernel give L1 as little as they can, once for each GPU: so they have room for
/// blocks of the next kernel, too.
template <auto kKernel>
void prefer_shared() {
  (void)once_per_gpu([] {
    check_cuda(
        cudaFuncSetAttribute(kKernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared),
        "cudaFuncSetAttribute");
    return 0;
  });
}

/// Allows a kernel all dynamic shared memory that the current GPU grants a block, once for each GPU. Without it a
/// launch may use kWithoutAsking bytes. It prefers shared memory, too.
template <auto kKernel>
void allow_shared() {
  (void)once_per_gpu([] {
    cudaFuncAttributes code{};
    check_cuda(cudaFuncGetAttributes(&code, kKernel), "cudaFuncGetAttributes");
    int ordinal = 0;
    int granted = 0;
    check_cuda(cudaGetDevice(&ordinal), "cudaGetDevice");
    check_cuda(cudaDeviceGetAttribute(&granted, cudaDevAttrMaxSharedMemoryPerBlockOptin, ordinal),
               "cudaDeviceGetAttribute");
    const int dynamic = granted - static_cast<int>(code.sharedSizeBytes);
    check_cuda(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, dynamic),
               "cudaFuncSetAttribute");
    return 0;
  });
  prefer_shared<kKernel>();
}

constexpr unsigned kPortableCluster = 8;  ///< blocks of a cluster of any launch

/// Allows a kernel clusters of more blocks than kPortableCluster, once for each GPU.
template <auto kKernel>
void allow_large_clusters() {
  (void)once_per_gpu([] {
    check_cuda(cudaFuncSetAttribute(kKernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
               "cudaFuncSetAttribute");
    return 0;
  });
}

/// How many clusters of such blocks, with kShared bytes of dynamic shared memory, the current GPU runs at once.
template <auto kKernel, unsigned kTogether, int kShared = 0>
std::int64_t clusters_at_once(dim3 threads) {
  return once_per_gpu([&] {
    if (kShared > kWithoutAsking) allow_shared<kKernel>();
    if (kTogether > kPortableCluster) allow_large_clusters<kKernel>();
    cudaLaunchAttribute together{};
    together.id = cudaLaunchAttributeClusterDimension;
    together.val.clusterDim = {.x = kTogether, .y = 1, .z = 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(kTogether);
    config.blockDim = threads;
    config.dynamicSmemBytes = kShared;
    config.attrs = &together;
    config.numAttrs = 1;
    int clusters = 0;
    check_cuda(cudaOccupancyMaxActiveClusters(&clusters, kKernel, &config), "cudaOccupancyMaxActiveClusters");
    return std::max<std::int64_t>(clusters, 1);
  });
}

/// Launches a kernel that calls pdl_wait() as that asks, in clusters of kTogether blocks. `shared`: bytes of dynamic
/// shared memory.
/// @throws CudaError with `name`.
template <auto kKernel, unsigned kTogether, class... Args>
void launch_cluster(const char* name, unsigned clusters, dim3 threads, int shared, cudaStream_t stream,
                    const Args&... args) {
  if (shared > kWithoutAsking) allow_shared<kKernel>();
  if constexpr (kTogether > kPortableCluster) allow_large_clusters<kKernel>();
  std::array<cudaLaunchAttribute, 2> attributes{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {.x = kTogether, .y = 1, .z = 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks_for(std::int64_t{clusters} * kTogether, 1));
  config.blockDim = threads;
  config.dynamicSmemBytes = static_cast<std::size_t>(shared);
  config.stream = stream;
  config.attrs = attributes.data();
  config.numAttrs = has_sm90_code<kKernel>() ? (kTogether > 1 ? 2 : 1) : 0;
  check_cuda(cudaLaunchKernelEx(&config, kKernel, args...), name);
  tell_launch(name);
}

/// The same without clusters, on any GPU.
template <auto kKernel, class... Args>
void launch_pdl(const char* name, unsigned blocks, dim3 threads, int shared, cudaStream_t stream, const Args&... args) {
  launch_cluster<kKernel, 1>(name, blocks, threads, shared, stream, args...);
}

}  // namespace smla::device
