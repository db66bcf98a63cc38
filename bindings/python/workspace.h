#pragma once

// Scratch memory of calls that were given none.

#include <nanobind/nanobind.h>

#include <cstddef>
#include <string_view>

#include "python/tensors.h"

namespace smla::python {

/// The workspace of one call: the caller's, a block of torch's allocator where tensors are torch's (so that a CUDA
/// graph may record the call), or memory that the module keeps for the thread or the GPU's stream.
class LentWorkspace {
 public:
  /// @param given      a tensor of bytes, or none
  /// @param leader     a tensor of the call, null without
  /// @param own_stream whether the caller named the stream
  /// @throws InvalidArgument for a tensor that is too small or elsewhere.
  LentWorkspace(std::string_view op, nb::handle given, std::size_t bytes, const Place& place, const Tensor* leader,
                void* stream, bool own_stream);
  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  nb::object owner_{};
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace smla::python
