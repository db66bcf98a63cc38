// Errors, the device and its memory in CUDA's runtime.
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cudart.h"

namespace emulator {

namespace {

thread_local cudaError_t last = cudaSuccess;
thread_local int device = 0;

int devices() { return static_cast<int>(setting("SMLA_EMULATOR_GPUS", 1)); }

}  // namespace

Runtime& runtime() {
  static Runtime* const r = new Runtime;  // never destroyed: images are let go at exit
  return *r;
}

std::uint32_t setting(const char* name, std::uint32_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : static_cast<std::uint32_t>(std::strtoul(text, nullptr, 10));
}

cudaError_t answer(cudaError_t status) {
  if (runtime().broken != cudaSuccess) status = runtime().broken;
  if (status != cudaSuccess) last = status;
  return status;
}

}  // namespace emulator

using namespace emulator;

extern "C" {

// --- errors

cudaError_t cudaGetLastError() {
  const cudaError_t status = runtime().broken != cudaSuccess ? runtime().broken : last;
  last = cudaSuccess;
  return status;
}
const char* cudaGetErrorName(cudaError_t e) {
  switch (e) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorInvalidDeviceFunction: return "cudaErrorInvalidDeviceFunction";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated: return "cudaErrorStreamCaptureInvalidated";
    default: return "an error of the emulator";
  }
}
const char* cudaGetErrorString(cudaError_t e) { return cudaGetErrorName(e); }

// --- the device

cudaError_t cudaGetDeviceCount(int* count) {
  *count = devices();
  return answer(*count > 0 ? cudaSuccess : cudaErrorNoDevice);
}
cudaError_t cudaGetDevice(int* d) {
  *d = device;
  return answer(devices() > 0 ? cudaSuccess : cudaErrorNoDevice);
}
cudaError_t cudaSetDevice(int d) {
  if (d < 0 || d >= devices()) return answer(cudaErrorInvalidDevice);
  device = d;
  return answer(cudaSuccess);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int d) {
  if (d < 0 || d >= devices()) return answer(cudaErrorInvalidDevice);
  *p = {};
  std::snprintf(p->name, sizeof p->name, "emulated H200");
  p->major = 9, p->minor = 0;
  p->multiProcessorCount = static_cast<int>(setting("SMLA_EMULATOR_MULTIPROCESSORS", 132));
  p->totalGlobalMem = kMemory;
  p->sharedMemPerBlock = kSharedDefault;
  p->sharedMemPerBlockOptin = kSharedOptIn;
  p->sharedMemPerMultiprocessor = 228 << 10;
  p->reservedSharedMemPerBlock = 1024;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->warpSize = 32;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsPerMultiProcessor = 2048;
  p->maxBlocksPerMultiProcessor = 32;
  p->maxGridSize[0] = 0x7FFF'FFFF, p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024, p->maxThreadsDim[2] = 64;
  p->l2CacheSize = 60 << 20;
  p->asyncEngineCount = 3;
  p->concurrentKernels = 1;
  p->unifiedAddressing = 1;
  return answer(cudaSuccess);
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int d) {
  cudaDeviceProp p;
  if (const cudaError_t status = cudaGetDeviceProperties(&p, d); status != cudaSuccess) return status;
  switch (attribute) {
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = kSharedOptIn; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = static_cast<int>(p.sharedMemPerMultiprocessor); break;
    case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
    case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
    case cudaDevAttrL2CacheSize: *value = p.l2CacheSize; break;
    case cudaDevAttrClockRate: *value = 1'980'000; break;
    case cudaDevAttrMemoryClockRate: *value = 3'201'000; break;
    case cudaDevAttrGlobalMemoryBusWidth: *value = 6016; break;
    default:
      std::fprintf(stderr, "emulator: attribute %d of a device is not known\n", static_cast<int>(attribute));
      return answer(cudaErrorInvalidValue);
  }
  return answer(cudaSuccess);
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return answer(cudaSuccess);
}
cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }
cudaError_t cudaDeviceSynchronize() { return answer(cudaSuccess); }

// --- memory

cudaError_t cudaMalloc(void** at, std::size_t size) {
  Runtime& m = runtime();
  const std::scoped_lock hold(m.lock);
  *at = nullptr;
  if (breaks_a_capture()) return answer(cudaErrorStreamCaptureUnsupported);
  if (size == 0) return answer(cudaSuccess);
  if (size > kMemory - m.used) return answer(cudaErrorMemoryAllocation);
  constexpr std::size_t kPage = 4096;
  const std::size_t pages = (size + kPage - 1) / kPage * kPage;
  void* const p = mmap(nullptr, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return answer(cudaErrorMemoryAllocation);
  m.memory[reinterpret_cast<std::uintptr_t>(p)] = size;
  m.used += size;
  *at = p;
  return answer(cudaSuccess);
}
cudaError_t cudaFree(void* at) {
  Runtime& m = runtime();
  const std::scoped_lock hold(m.lock);
  if (at == nullptr) return answer(cudaSuccess);
  if (breaks_a_capture()) return answer(cudaErrorStreamCaptureUnsupported);
  const auto it = m.memory.find(reinterpret_cast<std::uintptr_t>(at));
  if (it == m.memory.end()) return answer(cudaErrorInvalidValue);
  constexpr std::size_t kPage = 4096;
  munmap(at, (it->second + kPage - 1) / kPage * kPage);
  m.used -= it->second;
  m.memory.erase(it);
  return answer(cudaSuccess);
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *total = kMemory;
  *free = kMemory - runtime().used;
  return answer(cudaSuccess);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t size, cudaMemcpyKind, cudaStream_t stream) {
  return enqueue(stream, cudaGraphNodeTypeMemcpy, nullptr, [=] { std::memmove(to, from, size); });
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t size, cudaMemcpyKind kind) {
  return cudaMemcpyAsync(to, from, size, kind, nullptr);
}
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                              std::size_t width, std::size_t height, cudaMemcpyKind, cudaStream_t stream) {
  return enqueue(stream, cudaGraphNodeTypeMemcpy, nullptr, [=] {
    for (std::size_t row = 0; row < height; ++row)
      std::memmove(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
  });
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t size, cudaStream_t stream) {
  return enqueue(stream, cudaGraphNodeTypeMemset, nullptr, [=] { std::memset(to, value, size); });
}
cudaError_t cudaMemset(void* to, int value, std::size_t size) { return cudaMemsetAsync(to, value, size, nullptr); }

}  // extern "C"
