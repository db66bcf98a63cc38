#pragma once

#include <string_view>

#include "sparsemla/tensor_view.h"

namespace smla {

/// @throws InvalidArgument "<op>: <tensor>: ..." unless every element of an output has an address of its own: rows that
/// overlap would be written twice.
void check_distinct(std::string_view op, std::string_view tensor, const ConstTensorView& view);

}  // namespace smla
