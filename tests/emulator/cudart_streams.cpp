// Streams, events and graphs of CUDA's runtime.
#include <algorithm>

#include "cudart.h"

namespace emulator {

namespace {

Stream default_stream;

/// Of this thread: the stream whose capture it began, null while none is open, and what it may do meanwhile.
thread_local Stream* capturing = nullptr;
thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

}  // namespace

bool breaks_a_capture() {
  if (capturing == nullptr || capture_mode == cudaStreamCaptureModeRelaxed) return false;
  capturing->broken = true;
  return true;
}

Stream& stream_of(cudaStream_t s) { return s == nullptr ? default_stream : *reinterpret_cast<Stream*>(s); }

cudaError_t enqueue(cudaStream_t stream, cudaGraphNodeType type, const void* function, std::function<void()> work) {
  if (runtime().broken != cudaSuccess) return answer(runtime().broken);
  Stream& s = stream_of(stream);
  if (s.capture != nullptr) {
    s.capture->nodes.push_back(std::make_unique<Node>(Node{type, function, std::move(work)}));
    return answer(cudaSuccess);
  }
  work();
  return answer(cudaSuccess);
}

}  // namespace emulator

using namespace emulator;

extern "C" {

// --- streams and events

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  auto* const s = new Stream;
  const std::scoped_lock hold(runtime().lock);
  runtime().streams.push_back(s);
  *stream = reinterpret_cast<cudaStream_t>(s);
  return answer(cudaSuccess);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const std::scoped_lock hold(runtime().lock);
  std::erase(runtime().streams, reinterpret_cast<Stream*>(stream));
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

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  Stream& s = stream_of(stream);
  if (stream == nullptr || s.capture != nullptr) return answer(cudaErrorStreamCaptureUnsupported);
  s = {new Graph, true, false};
  if (mode != cudaStreamCaptureModeRelaxed) capturing = &s;
  return answer(cudaSuccess);
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  Stream& s = stream_of(stream);
  *graph = nullptr;
  if (!s.origin) return answer(cudaErrorInvalidValue);
  if (capturing == &s) capturing = nullptr;
  Graph* const g = s.capture;
  bool broken = false;
  {
    const std::scoped_lock hold(runtime().lock);
    for (Stream* other : runtime().streams) {
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
  std::swap(capture_mode, *mode);
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
