#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "sparsemla/tensor_view.h"

namespace smla {

/// A contiguous tensor that owns its memory: 64-byte aligned, zeroed when made, movable, copied only by clone().
/// Any rank; a view can be had up to rank 4 (rank 0 with data is seen as [1]).
class HostTensor {
 public:
  HostTensor() = default;

  /// @throws InvalidArgument when a dimension is negative or the size overflows.
  HostTensor(DType dtype, std::vector<std::int64_t> shape) : dtype_(dtype), shape_(std::move(shape)) {
    bytes_ = static_cast<std::size_t>(checked_bytes(dtype_, shape_));
    // A zero-sized tensor still has an address, so that "empty" and "absent" stay apart.
    data_.reset(::operator new (bytes_ == 0 ? 1 : bytes_, std::align_val_t{kAlignment}));
    auto* p = static_cast<unsigned char*>(data_.get());
    for (std::size_t i = 0; i < bytes_; ++i) p[i] = 0;
  }
  HostTensor(DType dtype, std::initializer_list<std::int64_t> shape)
      : HostTensor(dtype, std::vector<std::int64_t>(shape)) {}

  /// Bytes of a tensor. @throws InvalidArgument when a dimension is negative or the size does not fit 63 bits.
  static std::int64_t checked_bytes(DType dtype, const std::vector<std::int64_t>& shape) {
    std::int64_t n = size_of(dtype);
    bool empty = false;
    for (const std::int64_t d : shape) {
      if (d < 0) throw InvalidArgument("tensor shape: got dimension " + std::to_string(d) + ", expected 0 or more");
      empty = empty || d == 0;
      if (d > 0 && n > std::numeric_limits<std::int64_t>::max() / d)
        throw InvalidArgument("tensor shape: the size in bytes does not fit 63 bits");
      if (d > 0) n *= d;
    }
    return empty ? 0 : n;
  }

  bool absent() const { return data_ == nullptr; }
  DType dtype() const { return dtype_; }
  const std::vector<std::int64_t>& shape() const { return shape_; }
  int rank() const { return static_cast<int>(shape_.size()); }
  std::int64_t size(int dim) const { return shape_[static_cast<std::size_t>(dim)]; }
  std::int64_t numel() const { return static_cast<std::int64_t>(bytes_) / size_of(dtype_); }
  std::size_t bytes() const { return bytes_; }
  void* data() { return data_.get(); }
  const void* data() const { return data_.get(); }

  /// The elements as `T`. @throws InvalidArgument when `T` is not the tensor's dtype.
  template <class T>
  T* as() {
    check_dtype(dtype_of<T>);
    return static_cast<T*>(data_.get());
  }
  template <class T>
  const T* as() const {
    check_dtype(dtype_of<T>);
    return static_cast<const T*>(data_.get());
  }

  /// Absent for an absent tensor. @throws InvalidArgument above rank 4.
  TensorView view() { return make_view<void>(data_.get()); }
  ConstTensorView view() const { return make_view<const void>(data_.get()); }

  HostTensor clone() const {
    if (absent()) return {};
    HostTensor copy(dtype_, shape_);
    const auto* from = static_cast<const unsigned char*>(data_.get());
    auto* to = static_cast<unsigned char*>(copy.data_.get());
    for (std::size_t i = 0; i < bytes_; ++i) to[i] = from[i];
    return copy;
  }

 private:
  static constexpr std::size_t kAlignment = 64;
  struct Free {
    void operator()(void* p) const { ::operator delete (p, std::align_val_t{kAlignment}); }
  };

  void check_dtype(DType wanted) const {
    if (dtype_ != wanted) {
      throw InvalidArgument("tensor: got dtype " + std::string(name_of(dtype_)) + ", expected " +
                            std::string(name_of(wanted)));
    }
  }

  template <class Void>
  BasicTensorView<Void> make_view(Void* data) const {
    BasicTensorView<Void> v;
    if (absent()) return v;
    if (rank() > BasicTensorView<Void>::kMaxRank) {
      throw InvalidArgument("tensor view: got " + std::to_string(rank()) + " dimensions, expected at most 4");
    }
    v.data = data;
    v.dtype = dtype_;
    v.rank = rank() == 0 ? 1 : rank();
    if (rank() == 0) v.shape[0] = 1;
    for (int i = 0; i < rank(); ++i) v.shape[static_cast<std::size_t>(i)] = size(i);
    std::int64_t step = 1;
    for (int i = v.rank - 1; i >= 0; --i) {
      v.stride[static_cast<std::size_t>(i)] = step;
      step *= v.shape[static_cast<std::size_t>(i)];
    }
    return v;
  }

  DType dtype_ = DType::kF32;
  std::vector<std::int64_t> shape_;
  std::size_t bytes_ = 0;
  std::unique_ptr<void, Free> data_;
};

}  // namespace smla
