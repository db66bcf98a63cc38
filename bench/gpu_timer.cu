#include <cuda_runtime.h>

#include <string_view>
#include <vector>

#include "bench/gpu.h"
#include "device/launch.cuh"

namespace smla::bench {

namespace {

/// A recorded graph and its two events.
struct Recorded {
  cudaGraphExec_t graph = nullptr;
  cudaEvent_t start = nullptr;
  cudaEvent_t stop = nullptr;

  Recorded() = default;
  Recorded(const Recorded&) = delete;
  Recorded& operator=(const Recorded&) = delete;
  ~Recorded() {
    if (graph != nullptr) (void)cudaGraphExecDestroy(graph);
    if (start != nullptr) (void)cudaEventDestroy(start);
    if (stop != nullptr) (void)cudaEventDestroy(stop);
  }
};

/// What `work` queues on a stream, as a graph. @throws whatever `work` throws; CudaError.
template <class Work>
cudaGraph_t capture(cudaStream_t stream, Work&& work) {
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  cudaGraph_t graph = nullptr;
  try {
    work();
  } catch (...) {
    if (cudaStreamEndCapture(stream, &graph) == cudaSuccess && graph != nullptr) (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError();
    throw;
  }
  check_cuda(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  return graph;
}

void count_kernel(cudaGraphNode_t node, GpuNodes& counts) {
  cudaKernelNodeParams params{};
  const char* name = nullptr;
  // A library that brings its own runtime launches what this one has no name for.
  const bool known = cudaGraphKernelNodeGetParams(node, &params) == cudaSuccess &&
                     cudaFuncGetName(&name, params.func) == cudaSuccess && name != nullptr;
  (void)cudaGetLastError();
  if (known && std::string_view(name).find("smla") != std::string_view::npos) {
    ++counts.kernels;
    ++counts.names[name];
  } else {
    ++counts.library;
  }
}

}  // namespace

GpuNodes gpu_count_nodes(Stream stream, const std::function<void()>& call) {
  cudaGraph_t graph = capture(stream_of(stream), call);
  std::size_t count = 0;
  cudaError_t status = cudaGraphGetNodes(graph, nullptr, &count);
  std::vector<cudaGraphNode_t> nodes(count);
  if (status == cudaSuccess && count > 0) status = cudaGraphGetNodes(graph, nodes.data(), &count);
  GpuNodes counts;
  for (const cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type{};
    if (status == cudaSuccess) status = cudaGraphNodeGetType(node, &type);
    if (status != cudaSuccess) break;
    if (type == cudaGraphNodeTypeKernel) count_kernel(node, counts);
    if (type == cudaGraphNodeTypeMemset) ++counts.memsets;
    if (type == cudaGraphNodeTypeMemcpy) ++counts.copies;
  }
  (void)cudaGraphDestroy(graph);
  check_cuda(status, "cudaGraphGetNodes");
  return counts;
}

GpuFacts gpu_facts() {
  cudaDeviceProp p{};
  check_cuda(cudaGetDeviceProperties(&p, 0), "cudaGetDeviceProperties");
  GpuFacts facts{.name = p.name,
                 .major = p.major,
                 .minor = p.minor,
                 .multiprocessors = p.multiProcessorCount,
                 .l2_bytes = static_cast<std::size_t>(p.l2CacheSize),
                 .memory_bytes = p.totalGlobalMem};
  check_cuda(cudaDriverGetVersion(&facts.driver_cuda), "cudaDriverGetVersion");
  check_cuda(cudaRuntimeGetVersion(&facts.runtime_cuda), "cudaRuntimeGetVersion");
  return facts;
}

std::size_t gpu_free_bytes() {
  std::size_t free = 0;
  std::size_t total = 0;
  check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return free;
}

GpuRecording::GpuRecording(Stream stream, const std::function<void()>& before, const std::function<void()>& call) {
  auto made = std::make_unique<Recorded>();
  check_cuda(cudaEventCreate(&made->start), "cudaEventCreate");
  check_cuda(cudaEventCreate(&made->stop), "cudaEventCreate");
  cudaStream_t s = stream_of(stream);
  cudaGraph_t graph = capture(s, [&] {
    // External: a node of the graph that records, not a mark of the recording.
    check_cuda(cudaEventRecordWithFlags(made->start, s, cudaEventRecordExternal), "cudaEventRecordWithFlags");
    before();
    call();
    check_cuda(cudaEventRecordWithFlags(made->stop, s, cudaEventRecordExternal), "cudaEventRecordWithFlags");
  });
  const cudaError_t status = cudaGraphInstantiate(&made->graph, graph, 0);
  (void)cudaGraphDestroy(graph);
  check_cuda(status, "cudaGraphInstantiate");
  handle_.reset(made.release());
}

void GpuRecording::Free::operator()(void* p) const { delete static_cast<Recorded*>(p); }

void GpuRecording::launch(Stream stream) const {
  check_cuda(cudaGraphLaunch(static_cast<const Recorded*>(handle_.get())->graph, stream_of(stream)), "cudaGraphLaunch");
}

double GpuRecording::seconds() const {
  const auto* made = static_cast<const Recorded*>(handle_.get());
  float ms = 0;
  check_cuda(cudaEventElapsedTime(&ms, made->start, made->stop), "cudaEventElapsedTime");
  return static_cast<double>(ms) * 1e-3;
}

}  // namespace smla::bench
