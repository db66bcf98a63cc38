#pragma once

// 1. The contract. Of a real op it stands in include/sparsemla/ops/<family>.h.

#include <cstdint>
#include <string_view>

#include "sparsemla/op.h"
#include "sparsemla/tensor_view.h"

namespace smla {

/// Rows by their numbers: y_r = scale * x_{index_r}, one rounding. A number that is no row of x gives a row of zeros.
struct PickRows {
  static constexpr std::string_view kName = "pick_rows";  ///< the op's name
  /// Shapes, dtypes and scalars of a call.
  struct Problem {
    std::int64_t rows = 0;       ///< R
    std::int64_t sources = 0;    ///< S
    std::int64_t dim = 0;        ///< D, numbers of a row
    DType dtype = DType::kBF16;  ///< BF16 or F32
    float scale = 1.0F;          ///< factor
  };
  /// Tensors of a call.
  struct Args {
    ConstTensorView x;      ///< [S, D] `dtype`; rows may be strided
    ConstTensorView index;  ///< [R] I32
    TensorView y;           ///< [R, D] `dtype`; rows may be strided
  };
};

}  // namespace smla
