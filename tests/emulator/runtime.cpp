// The functions of CUDA's runtime that the library, its bench and its tests call, over the emulated machine. Memory of
// the GPU is the host's; a stream runs what it is given at once; a graph is a list of what was captured.
#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "machine.h"

namespace {

using namespace emulator;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kMemory = std::size_t{140} << 30;
constexpr int kSharedOptIn = 227 << 10;
constexpr int kSharedDefault = 48 << 10;

struct Node {
  cudaGraphNodeType type;
  const void* function;  ///< of a kernel
  std::function<void()> run;
};
struct Graph {
  std::vector<std::unique_ptr<Node>> nodes;
};
struct GraphExec {
  std::vector<std::function<void()>> work;
};
struct Stream {
  Graph* capture = nullptr;
  bool origin = false;  ///< of the capture
  bool broken = false;  ///< the capture
};
struct Event {
  Clock::time_point time;
  Graph* capture = nullptr;  ///< in which it was recorded
};

struct Function {
  const char* text = nullptr;
  std::size_t size = 0;
  std::string name;
  const Kernel* kernel = nullptr;
  int dynamic_shared = kSharedDefault;
};
struct Image {
  std::string text;
  std::unique_ptr<Module> module;
};

struct Configuration {
  dim3 grid;
  dim3 block;
  std::size_t shared;
  cudaStream_t stream;
};

struct Machine {
  std::recursive_mutex lock;
  std::map<const void*, std::pair<Image*, Function>> functions;
  std::vector<std::unique_ptr<Image>> images;
  std::map<std::uintptr_t, std::size_t> memory;
  std::size_t used = 0;
  cudaError_t broken = cudaSuccess;  ///< by a kernel; every call answers so from then on
  std::uint32_t launches = 0;
  std::vector<Stream*> streams;
};
Machine& machine() {
  static Machine* const m = new Machine;  // never destroyed: images are let go at exit
  return *m;
}
thread_local cudaError_t last = cudaSuccess;
thread_local int device = 0;
thread_local std::vector<Configuration> configurations;
Stream default_stream;

std::uint32_t setting(const char* name, std::uint32_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : static_cast<std::uint32_t>(std::strtoul(text, nullptr, 10));
}
int devices() { return static_cast<int>(setting("SMLA_EMULATOR_GPUS", 1)); }

cudaError_t answer(cudaError_t status) {
  if (machine().broken != cudaSuccess) status = machine().broken;
  if (status != cudaSuccess) last = status;
  return status;
}
Stream& stream_of(cudaStream_t s) { return s == nullptr ? default_stream : *reinterpret_cast<Stream*>(s); }

/// Runs a piece of work, or notes it where the stream is being captured.
cudaError_t enqueue(cudaStream_t stream, cudaGraphNodeType type, const void* function, std::function<void()> work) {
  if (machine().broken != cudaSuccess) return answer(machine().broken);
  Stream& s = stream_of(stream);
  if (s.capture != nullptr) {
    s.capture->nodes.push_back(std::make_unique<Node>(Node{type, function, std::move(work)}));
    return answer(cudaSuccess);
  }
  work();
  return answer(cudaSuccess);
}

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
  Machine& m = machine();
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
  Machine& m = machine();
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

extern "C" {

// --- what nvcc's host code calls

void** __cudaRegisterFatBinary(void* wrapper) {
  auto image = std::make_unique<Image>();
  image->text = ptx_of(wrapper);
  Image* const handle = image.get();
  const std::scoped_lock hold(machine().lock);
  machine().images.push_back(std::move(image));
  return reinterpret_cast<void**>(handle);
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, std::size_t, int, int) {}
void __cudaRegisterFunction(void** handle, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {
  const std::scoped_lock hold(machine().lock);
  Function f;
  f.name = name;
  machine().functions[host] = {reinterpret_cast<Image*>(handle), f};
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
  const std::scoped_lock hold(machine().lock);
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
  const std::scoped_lock hold(machine().lock);
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
  const std::scoped_lock hold(machine().lock);
  const auto it = machine().functions.find(host);
  if (it == machine().functions.end()) return answer(cudaErrorInvalidDeviceFunction);
  *name = it->second.second.name.c_str();
  return answer(cudaSuccess);
}
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void*, const cudaLaunchConfig_t* c) {
  *clusters = 132 / static_cast<int>(std::max(1U, c->gridDim.x));
  return answer(cudaSuccess);
}

// --- errors

cudaError_t cudaGetLastError() {
  const cudaError_t status = machine().broken != cudaSuccess ? machine().broken : last;
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
  Machine& m = machine();
  const std::scoped_lock hold(m.lock);
  *at = nullptr;
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
  Machine& m = machine();
  const std::scoped_lock hold(m.lock);
  if (at == nullptr) return answer(cudaSuccess);
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
  *free = kMemory - machine().used;
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

// --- streams and events

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  auto* const s = new Stream;
  const std::scoped_lock hold(machine().lock);
  machine().streams.push_back(s);
  *stream = reinterpret_cast<cudaStream_t>(s);
  return answer(cudaSuccess);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const std::scoped_lock hold(machine().lock);
  std::erase(machine().streams, reinterpret_cast<Stream*>(stream));
  delete reinterpret_cast<Stream*>(stream);
  return answer(cudaSuccess);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Stream& s = stream_of(stream);
  if (s.capture != nullptr) {
    s.broken = true;
    return answer(cudaErrorStreamCaptureUnsupported);
  }
  return answer(cudaSuccess);
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t f, void* data) {
  return enqueue(stream, cudaGraphNodeTypeHost, nullptr, [=] { f(data); });
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(new Event);
  return answer(cudaSuccess);
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<Event*>(event);
  return answer(cudaSuccess);
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  auto* const e = reinterpret_cast<Event*>(event);
  if (stream_of(stream).capture != nullptr && flags == cudaEventRecordExternal)
    return enqueue(stream, cudaGraphNodeTypeEventRecord, nullptr, [e] { e->time = Clock::now(); });
  e->capture = stream_of(stream).capture;
  e->time = Clock::now();
  return answer(cudaSuccess);
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  *ms = std::chrono::duration<float, std::milli>(reinterpret_cast<Event*>(to)->time -
                                                 reinterpret_cast<Event*>(from)->time)
            .count();
  return answer(cudaSuccess);
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return answer(cudaSuccess); }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  // A stream that waits for an event of a capture joins it.
  if (Graph* const g = reinterpret_cast<Event*>(event)->capture; g != nullptr) stream_of(stream).capture = g;
  return answer(cudaSuccess);
}

// --- graphs

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  Stream& s = stream_of(stream);
  if (stream == nullptr || s.capture != nullptr) return answer(cudaErrorStreamCaptureUnsupported);
  s = {new Graph, true, false};
  return answer(cudaSuccess);
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  Stream& s = stream_of(stream);
  *graph = nullptr;
  if (!s.origin) return answer(cudaErrorInvalidValue);
  Graph* const g = s.capture;
  bool broken = false;
  {
    const std::scoped_lock hold(machine().lock);
    for (Stream* other : machine().streams) {
      if (other->capture != g) continue;
      broken = broken || other->broken;
      *other = {};
    }
  }
  if (broken) {
    delete g;
    return answer(cudaErrorStreamCaptureInvalidated);
  }
  *graph = reinterpret_cast<cudaGraph_t>(g);
  return answer(cudaSuccess);
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  static thread_local cudaStreamCaptureMode now = cudaStreamCaptureModeGlobal;
  std::swap(now, *mode);
  return answer(cudaSuccess);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  auto* const e = new GraphExec;
  for (const auto& node : reinterpret_cast<Graph*>(graph)->nodes) e->work.push_back(node->run);
  *exec = reinterpret_cast<cudaGraphExec_t>(e);
  return answer(cudaSuccess);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  auto* const e = reinterpret_cast<GraphExec*>(exec);
  return enqueue(stream, cudaGraphNodeTypeGraph, nullptr, [e] {
    for (const auto& work : e->work) work();
  });
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete reinterpret_cast<GraphExec*>(exec);
  return answer(cudaSuccess);
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<Graph*>(graph);
  return answer(cudaSuccess);
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count) {
  const auto& all = reinterpret_cast<Graph*>(graph)->nodes;
  if (nodes != nullptr)
    for (std::size_t n = 0; n < std::min(*count, all.size()); ++n)
      nodes[n] = reinterpret_cast<cudaGraphNode_t>(all[n].get());
  *count = all.size();
  return answer(cudaSuccess);
}
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  *type = reinterpret_cast<Node*>(node)->type;
  return answer(cudaSuccess);
}
cudaError_t cudaGraphKernelNodeGetParams(cudaGraphNode_t node, cudaKernelNodeParams* p) {
  *p = {};
  p->func = const_cast<void*>(reinterpret_cast<Node*>(node)->function);
  return answer(cudaSuccess);
}

}  // extern "C"
