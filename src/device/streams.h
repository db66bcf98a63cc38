#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "sparsemla/device.h"

namespace smla {

/// A stream of its own: null on the CPU. @throws Unsupported for a GPU where there is none; CudaError.
class OwnedStream {
 public:
  OwnedStream() = default;
  explicit OwnedStream(DeviceKind device);
  Stream get() const { return {.handle = handle_.get()}; }

 private:
  struct Free {
    void operator()(void* p) const;
  };
  std::unique_ptr<void, Free> handle_;
};

/// A point of one stream that others wait for; on the CPU nothing.
class Event {
 public:
  Event() = default;
  explicit Event(DeviceKind device);
  void record(Stream stream) const;
  void make_wait(Stream stream) const;  ///< what is queued on `stream` from now on comes after the recorded point

 private:
  struct Free {
    void operator()(void* p) const;
  };
  std::unique_ptr<void, Free> handle_;
};

/// Work recorded once and launched many times, over the same addresses and shapes.
class Graph {
 public:
  Graph() = default;
  /// Records what `work` queues on `stream` (and on streams that join it) without running it. @throws whatever `work`
  /// throws; CudaError.
  Graph(Stream stream, const std::function<void()>& work);
  explicit operator bool() const { return handle_ != nullptr; }
  void launch(Stream stream) const;
  /// Bytes of the device's free memory that went when the recording was made executable; what else is allocated or
  /// freed on the device at that moment counts, too.
  std::int64_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(void* p) const;
  };
  std::unique_ptr<void, Free> handle_;
  std::int64_t bytes_ = 0;
};

}  // namespace smla
