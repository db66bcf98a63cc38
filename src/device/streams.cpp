#include "device/streams.h"

#include "device/cuda_memory.h"

namespace smla {

OwnedStream::OwnedStream(DeviceKind device) : handle_(device == DeviceKind::kCpu ? nullptr : cuda_make_stream()) {}
void OwnedStream::Free::operator()(void* p) const { cuda_free_stream(p); }

Event::Event(DeviceKind device) : handle_(device == DeviceKind::kCpu ? nullptr : cuda_make_event()) {}
void Event::Free::operator()(void* p) const { cuda_free_event(p); }
void Event::record(Stream stream) const {
  if (handle_ != nullptr) cuda_record(handle_.get(), stream);
}
void Event::make_wait(Stream stream) const {
  if (handle_ != nullptr) cuda_wait(handle_.get(), stream);
}

Graph::Graph(Stream stream, const std::function<void()>& work) {
  cuda_begin_capture(stream);
  try {
    work();
  } catch (...) {
    cuda_abandon_capture(stream);
    throw;
  }
  handle_.reset(cuda_end_capture(stream, &bytes_));
}
void Graph::Free::operator()(void* p) const { cuda_free_graph(p); }
void Graph::launch(Stream stream) const { cuda_launch_graph(handle_.get(), stream); }

}  // namespace smla
