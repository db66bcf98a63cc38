#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "sparsemla/dtype.h"
#include "sparsemla/error.h"
#include "sparsemla/export.h"

namespace SMLA_API smla {

/// A tensor that somebody else owns: pointer, dtype, shape and strides (in elements). At most four dimensions.
/// `Void` is `void` or `const void`; see TensorView and ConstTensorView.
template <class Void>
struct BasicTensorView {
  static constexpr int kMaxRank = 4;

  Void* data = nullptr;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> stride{};  ///< in elements

  BasicTensorView() = default;

  /// A contiguous view, last dimension fastest. @throws InvalidArgument for more than four dimensions.
  BasicTensorView(Void* data_in, DType dtype_in, std::initializer_list<std::int64_t> shape_in)
      : data(data_in), dtype(dtype_in), rank(static_cast<int>(shape_in.size())) {
    if (rank > kMaxRank)
      throw InvalidArgument("tensor view: got " + std::to_string(rank) + " dimensions, expected at most 4");
    int i = 0;
    for (const std::int64_t n : shape_in) shape[static_cast<std::size_t>(i++)] = n;
    std::int64_t step = 1;
    for (i = rank - 1; i >= 0; --i) {
      stride[static_cast<std::size_t>(i)] = step;
      step *= shape[static_cast<std::size_t>(i)];
    }
  }

  /// A mutable view is also a const one.
  operator BasicTensorView<const void>() const requires(!std::is_const_v<Void>) {
    BasicTensorView<const void> v;
    v.data = data;
    v.dtype = dtype;
    v.rank = rank;
    v.shape = shape;
    v.stride = stride;
    return v;
  }

  /// No tensor was given (an optional argument left out).
  bool absent() const { return rank == 0 && data == nullptr; }
  std::int64_t size(int dim) const { return shape[static_cast<std::size_t>(dim)]; }
  /// Number of elements; 0 for an absent tensor.
  std::int64_t numel() const {
    std::int64_t n = rank == 0 ? 0 : 1;
    for (int i = 0; i < rank; ++i) n *= size(i);
    return n;
  }
  /// Whether the elements lie one after the other without a gap, last dimension fastest.
  bool contiguous() const {
    std::int64_t step = 1;
    for (int i = rank - 1; i >= 0; --i) {
      if (size(i) != 1 && stride[static_cast<std::size_t>(i)] != step) return false;
      step *= size(i);
    }
    return true;
  }

  /// The elements as `T`. @throws InvalidArgument when `T` is not the view's dtype.
  template <class T>
  auto* as() const {
    using Pointer = std::conditional_t<std::is_const_v<Void>, const T, T>;
    if (dtype != dtype_of<T>) {
      throw InvalidArgument("tensor view: got dtype " + std::string(name_of(dtype)) + ", expected " +
                            std::string(name_of(dtype_of<T>)));
    }
    return static_cast<Pointer*>(data);
  }

  /// Indices [begin, end) of dimension `dim`, with the same strides. Nothing is checked.
  BasicTensorView slice(int dim, std::int64_t begin, std::int64_t end) const {
    BasicTensorView v = *this;
    const auto d = static_cast<std::size_t>(dim);
    using Byte = std::conditional_t<std::is_const_v<Void>, const char, char>;
    v.data = data == nullptr ? nullptr : static_cast<Byte*>(data) + begin * stride[d] * size_of(dtype);
    v.shape[d] = end - begin;
    return v;
  }
};

using TensorView = BasicTensorView<void>;
using ConstTensorView = BasicTensorView<const void>;

/// A contiguous view of typed memory; its dtype is dtype_of<T>.
template <class T>
auto view_of(T* data, std::initializer_list<std::int64_t> shape) {
  if constexpr (std::is_const_v<T>) {
    return ConstTensorView(data, dtype_of<std::remove_const_t<T>>, shape);
  } else {
    return TensorView(data, dtype_of<T>, shape);
  }
}

/// Shape and dtype for error texts: "[3, 8, 512] BF16".
std::string describe(const ConstTensorView& view);

}  // namespace smla
