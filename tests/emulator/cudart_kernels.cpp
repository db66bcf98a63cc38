// Kernels of CUDA's runtime: found in what nvcc registers, launched on the emulated machine.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cudart.h"

namespace emulator {

namespace {

struct Configuration {
  dim3 grid;
  dim3 block;
  std::size_t shared;
  cudaStream_t stream;
};
thread_local std::vector<Configuration> configurations;

// PTX of a fat binary that is not compressed: a header of 16 bytes, then entries that begin with their kind (1: PTX),
// the size of their own header and that of what follows it.
struct FatWrapper {
  std::uint32_t magic;
  std::uint32_t version;
  const std::byte* data;
  void* file;
};
template <class T>
T read(const std::byte* at) {
  T x;
  std::memcpy(&x, at, sizeof x);
  return x;
}
std::string ptx_of(const void* wrapper) {
  const auto* w = static_cast<const FatWrapper*>(wrapper);
  const std::byte* at = w->data;
  const auto header = read<std::uint16_t>(at + 6);
  const std::byte* const end = at + header + read<std::uint64_t>(at + 8);
  for (at += header; at < end;) {
    const auto kind = read<std::uint16_t>(at);
    const auto entry_header = read<std::uint32_t>(at + 4);
    const auto size = read<std::uint64_t>(at + 8);
    if (kind == 1) {
      const auto* text = reinterpret_cast<const char*>(at + entry_header);
      return {text, strnlen(text, size)};
    }
    at += entry_header + size;
  }
  return {};
}

/// A kernel by the address of its host function, its text read on first use.
Function* function_of(const void* host) {
  Runtime& m = runtime();
  const auto it = m.functions.find(host);
  if (it == m.functions.end()) return nullptr;
  auto& [image, function] = it->second;
  if (function.kernel == nullptr) {
    if (image->module == nullptr) {
      if (image->text.empty()) return nullptr;
      try {
        image->module = std::make_unique<Module>(parse(image->text));
      } catch (const Error& e) {
        std::fprintf(stderr, "emulator: %s\n", e.what());
        std::abort();
      }
    }
    const auto k = image->module->kernels.find(function.name);
    if (k == image->module->kernels.end()) return nullptr;
    function.kernel = k->second.get();
  }
  return &function;
}

cudaError_t launch(const void* host, dim3 grid, dim3 block, void** arguments, std::size_t shared, cudaStream_t stream,
                   std::uint32_t cluster) {
  Runtime& m = runtime();
  const std::scoped_lock hold(m.lock);
  Function* f = function_of(host);
  if (f == nullptr) return answer(cudaErrorInvalidDeviceFunction);
  const Kernel& k = *f->kernel;
  const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
  if (threads == 0 || grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7FFF'FFFFU || grid.y > 65535 ||
      grid.z > 65535 || threads > 1024 || static_cast<std::int64_t>(threads) > k.most_threads || cluster == 0 ||
      grid.x % cluster != 0)
    return answer(cudaErrorInvalidConfiguration);
  if (shared > static_cast<std::size_t>(f->dynamic_shared) || shared + k.static_shared > kSharedOptIn)
    return answer(cudaErrorInvalidValue);
  auto launched = std::make_shared<Launch>();
  launched->kernel = &k;
  const dim3* from[] = {&grid, &block};
  std::uint32_t* to[] = {launched->grid, launched->block};
  for (int n = 0; n < 2; ++n) to[n][0] = from[n]->x, to[n][1] = from[n]->y, to[n][2] = from[n]->z;
  launched->cluster = cluster;
  launched->dynamic_shared = shared;
  launched->parameters.resize(k.parameter_bytes + 16);
  for (std::size_t p = 0; p < k.parameters.size(); ++p)
    std::memcpy(launched->parameters.data() + k.parameters[p].offset, arguments[p], k.parameters[p].size);
  const Image* image = m.functions.at(host).first;
  return enqueue(stream, cudaGraphNodeTypeKernel, host, [launched, image, &m] {
    const std::scoped_lock running(m.lock);
    if (m.broken != cudaSuccess) return;
    launched->memory.clear();
    for (const auto& [begin, size] : m.memory) launched->memory.push_back({begin, begin + size});
    for (const auto& v : image->module->variables) {
      const auto begin = reinterpret_cast<std::uintptr_t>(v->data());
      launched->memory.push_back({begin, begin + v->size()});
    }
    std::sort(launched->memory.begin(), launched->memory.end(),
              [](const Range& a, const Range& b) { return a.begin < b.begin; });
    launched->seed = setting("SMLA_EMULATOR_SEED", 0) + 104'729 * m.launches++;
    try {
      run(*launched);
    } catch (const Error& e) {
      std::fprintf(stderr, "emulator: %s\n", e.what());
      m.broken = cudaErrorLaunchFailure;
    }
  });
}

}  // namespace

}  // namespace emulator

using namespace emulator;

extern "C" {

// --- what nvcc's host code calls

void** __cudaRegisterFatBinary(void* wrapper) {
  auto image = std::make_unique<Image>();
  image->text = ptx_of(wrapper);
  Image* const handle = image.get();
  const std::scoped_lock hold(runtime().lock);
  runtime().images.push_back(std::move(image));
  return reinterpret_cast<void**>(handle);
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, std::size_t, int, int) {}
void __cudaRegisterFunction(void** handle, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {
  const std::scoped_lock hold(runtime().lock);
  Function f;
  f.name = name;
  runtime().functions[host] = {reinterpret_cast<Image*>(handle), f};
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared, struct CUstream_st* stream) {
  configurations.push_back({grid, block, shared, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared, void* stream) {
  const Configuration c = configurations.back();
  configurations.pop_back();
  *grid = c.grid, *block = c.block, *shared = c.shared;
  *static_cast<cudaStream_t*>(stream) = c.stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(host));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, std::size_t shared,
                               cudaStream_t stream) {
  return launch(kernel, grid, block, arguments, shared, stream, 1);
}

// --- kernels

cudaError_t cudaLaunchKernel(const void* f, dim3 grid, dim3 block, void** arguments, std::size_t shared,
                             cudaStream_t stream) {
  return launch(f, grid, block, arguments, shared, stream, 1);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* c, const void* f, void** arguments) {
  std::uint32_t cluster = 1;
  for (unsigned n = 0; n < c->numAttrs; ++n) {
    const auto& a = c->attrs[n];
    if (a.id == cudaLaunchAttributeClusterDimension)
      cluster = a.val.clusterDim.x * a.val.clusterDim.y * a.val.clusterDim.z;
  }
  return launch(f, c->gridDim, c->blockDim, arguments, c->dynamicSmemBytes, c->stream, cluster);
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* a, const void* host) {
  const std::scoped_lock hold(runtime().lock);
  const Function* f = function_of(host);
  if (f == nullptr) return answer(cudaErrorInvalidDeviceFunction);
  *a = {};
  a->sharedSizeBytes = f->kernel->static_shared;
  a->localSizeBytes = f->kernel->local_bytes;
  a->maxThreadsPerBlock = f->kernel->most_threads;
  a->numRegs = 128;
  a->ptxVersion = a->binaryVersion = 90;
  a->maxDynamicSharedSizeBytes = f->dynamic_shared;
  return answer(cudaSuccess);
}
cudaError_t cudaFuncSetAttribute(const void* host, cudaFuncAttribute attribute, int value) {
  const std::scoped_lock hold(runtime().lock);
  Function* f = function_of(host);
  if (f == nullptr) return answer(cudaErrorInvalidDeviceFunction);
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    if (value < 0 || static_cast<std::size_t>(value) + f->kernel->static_shared > kSharedOptIn)
      return answer(cudaErrorInvalidValue);
    f->dynamic_shared = value;
  }
  return answer(cudaSuccess);
}
cudaError_t cudaFuncGetName(const char** name, const void* host) {
  const std::scoped_lock hold(runtime().lock);
  const auto it = runtime().functions.find(host);
  if (it == runtime().functions.end()) return answer(cudaErrorInvalidDeviceFunction);
  *name = it->second.second.name.c_str();
  return answer(cudaSuccess);
}
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void*, const cudaLaunchConfig_t* c) {
  *clusters = static_cast<int>(setting("SMLA_EMULATOR_MULTIPROCESSORS", 132) / std::max(1U, c->gridDim.x));
  return answer(cudaSuccess);
}

}  // extern "C"
