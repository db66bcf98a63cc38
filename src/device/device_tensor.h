#pragma once

#include <utility>
#include <vector>

#include "core/host_tensor.h"
#include "device/memory.h"

namespace smla {

/// A contiguous tensor in a device's memory that owns it.
class DeviceTensor {
 public:
  DeviceTensor() = default;
  DeviceTensor(DeviceKind device, DType dtype, std::vector<std::int64_t> shape) {
    reshape(device, dtype, std::move(shape));
  }
  /// A copy of `from`, which lies on the host with any strides, complete when the call returns.
  static DeviceTensor copy_of(DeviceKind device, const ConstTensorView& from);

  /// Takes this shape: in the memory it has where that is large enough, its contents then undefined; in new memory,
  /// zeroed, otherwise.
  void reshape(DeviceKind device, DType dtype, std::vector<std::int64_t> shape) {
    const auto bytes = static_cast<std::size_t>(HostTensor::checked_bytes(dtype, shape));
    if (memory_.data() == nullptr || memory_.device() != device || memory_.bytes() < bytes)
      memory_ = DeviceMemory(device, bytes);
    dtype_ = dtype;
    shape_ = std::move(shape);
    bytes_ = bytes;
  }

  bool absent() const { return memory_.data() == nullptr; }
  DType dtype() const { return dtype_; }
  const std::vector<std::int64_t>& shape() const { return shape_; }
  std::int64_t size(int dim) const { return shape_[static_cast<std::size_t>(dim)]; }
  std::size_t bytes() const { return bytes_; }
  void* data() const { return memory_.data(); }
  DeviceKind device() const { return memory_.device(); }

  TensorView view() { return make_view<void>(); }
  ConstTensorView view() const { return make_view<const void>(); }

 private:
  template <class Void>
  BasicTensorView<Void> make_view() const {
    BasicTensorView<Void> v;
    if (absent()) return v;
    v.data = memory_.data();
    v.dtype = dtype_;
    v.rank = static_cast<int>(shape_.size());
    std::int64_t step = 1;
    for (int i = v.rank - 1; i >= 0; --i) {
      v.shape[static_cast<std::size_t>(i)] = size(i);
      v.stride[static_cast<std::size_t>(i)] = step;
      step *= size(i);
    }
    return v;
  }

  DeviceMemory memory_;
  DType dtype_ = DType::kF32;
  std::vector<std::int64_t> shape_;
  std::size_t bytes_ = 0;
};

}  // namespace smla
