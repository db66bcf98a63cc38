#include "device/cuda_memory.h"
#include "device/launch.cuh"

namespace smla {

void* cuda_allocate(std::size_t bytes) {
  void* p = nullptr;
  check_cuda(cudaMalloc(&p, bytes), "cudaMalloc");
  return p;
}

void cuda_free(void* p) { (void)cudaFree(p); }

void cuda_copy(void* to, const void* from, std::size_t bytes, Stream stream) {
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_of(stream)), "cudaMemcpyAsync");
}

void cuda_fill(void* to, int byte, std::size_t bytes, Stream stream) {
  check_cuda(cudaMemsetAsync(to, byte, bytes, stream_of(stream)), "cudaMemsetAsync");
}

void cuda_set_device(int ordinal) { check_cuda(cudaSetDevice(ordinal), "cudaSetDevice"); }

void cuda_synchronize(Stream stream) { check_cuda(cudaStreamSynchronize(stream_of(stream)), "cudaStreamSynchronize"); }

namespace {

/// While it lives, the thread may make streams and events although a capture of its own is open.
class AllowedInCapture {
 public:
  AllowedInCapture() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~AllowedInCapture() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  AllowedInCapture(const AllowedInCapture&) = delete;
  AllowedInCapture& operator=(const AllowedInCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  ///< then what it was before
};

}  // namespace

void* cuda_make_stream() {
  const AllowedInCapture allowed;
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return stream;
}

void cuda_free_stream(void* stream) { (void)cudaStreamDestroy(static_cast<cudaStream_t>(stream)); }

void* cuda_make_event() {
  const AllowedInCapture allowed;
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  return event;
}

void cuda_free_event(void* event) { (void)cudaEventDestroy(static_cast<cudaEvent_t>(event)); }

void cuda_record(void* event, Stream stream) {
  check_cuda(cudaEventRecord(static_cast<cudaEvent_t>(event), stream_of(stream)), "cudaEventRecord");
}

void cuda_wait(void* event, Stream stream) {
  check_cuda(cudaStreamWaitEvent(stream_of(stream), static_cast<cudaEvent_t>(event), 0), "cudaStreamWaitEvent");
}

void cuda_begin_capture(Stream stream) {
  check_cuda(cudaStreamBeginCapture(stream_of(stream), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
}

void* cuda_end_capture(Stream stream, std::int64_t* bytes) {
  cudaGraph_t graph = nullptr;
  check_cuda(cudaStreamEndCapture(stream_of(stream), &graph), "cudaStreamEndCapture");
  cudaGraphExec_t executable = nullptr;
  std::size_t before = 0, after = 0, all = 0;
  (void)cudaMemGetInfo(&before, &all);
  const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
  (void)cudaGraphDestroy(graph);
  check_cuda(status, "cudaGraphInstantiate");
  (void)cudaMemGetInfo(&after, &all);
  *bytes = before > after ? static_cast<std::int64_t>(before - after) : 0;
  return executable;
}

void cuda_abandon_capture(Stream stream) {
  cudaGraph_t graph = nullptr;
  (void)cudaStreamEndCapture(stream_of(stream), &graph);
  if (graph != nullptr) (void)cudaGraphDestroy(graph);
  (void)cudaGetLastError();
}

void cuda_launch_graph(void* graph, Stream stream) {
  check_cuda(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), stream_of(stream)), "cudaGraphLaunch");
}

void cuda_free_graph(void* graph) { (void)cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)); }

}  // namespace smla
