#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "sparsemla/tensor_view.h"

namespace smla {

/// Hands out 64-byte aligned tensors from one piece of memory, in order. Over null it only counts, so that one function
/// both sizes and lays out a workspace.
class Arena {
 public:
  explicit Arena(void* base) : base_(static_cast<std::byte*>(base)) {}

  TensorView take(DType dtype, std::initializer_list<std::int64_t> shape) {
    TensorView v(nullptr, dtype, shape);
    v.data = raw(static_cast<std::size_t>(v.numel() * size_of(dtype)));
    return v;
  }
  void* raw(std::size_t bytes) {
    void* p = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (bytes + 63) / 64 * 64;
    return p;
  }
  std::size_t used() const { return used_; }

 private:
  std::byte* base_;
  std::size_t used_ = 0;
};

}  // namespace smla
