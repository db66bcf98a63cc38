#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "sparsemla/tensor_view.h"

namespace smla {

/// A dimension of any size.
inline constexpr std::int64_t kAny = -1;

/// @throws InvalidArgument "<op>: <tensor>: got ..., expected ..." unless `view` has this shape (kAny matches all), one
/// of the dtypes and, when it has elements, data. The last dimension must be contiguous.
void check_tensor(std::string_view op, std::string_view tensor, const ConstTensorView& view,
                  std::initializer_list<std::int64_t> shape, std::initializer_list<DType> dtypes);

/// @throws InvalidArgument "<op>: <what>: got <got>, expected <expected>" unless `ok`.
void check_that(bool ok, std::string_view op, std::string_view what, const std::string& got,
                const std::string& expected);
void check_that(bool ok, std::string_view op, std::string_view what, std::int64_t got, const std::string& expected);

}  // namespace smla
