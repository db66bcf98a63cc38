#pragma once

#include <cstddef>
#include <cstring>
#include <new>

#include "sparsemla/device.h"

namespace smla::test {

/// A workspace of exactly so many bytes, 64-byte aligned, so that a sanitizer sees a write behind its end; 0xFF all
/// over.
class AlignedWorkspace {
 public:
  explicit AlignedWorkspace(std::size_t bytes) : bytes_(bytes), data_(::operator new(bytes, kAlignment)) {
    std::memset(data_, 0xFF, bytes);
  }
  ~AlignedWorkspace() { ::operator delete(data_, kAlignment); }
  AlignedWorkspace(const AlignedWorkspace&) = delete;
  AlignedWorkspace& operator=(const AlignedWorkspace&) = delete;

  Workspace get() const { return {.data = data_, .bytes = bytes_}; }

 private:
  static constexpr std::align_val_t kAlignment{64};
  std::size_t bytes_;
  void* data_;
};

}  // namespace smla::test
