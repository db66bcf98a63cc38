#pragma once

#include <cstdint>
#include <string_view>

#include "sparsemla/op.h"
#include "sparsemla/tensor_view.h"

namespace smla {

/// Linear layers, one or G side by side (spec 2):  y[m, g, n] = sum_k x[m, g, k] * w[g, n, k], fp32 accumulation, one rounding.
///
/// groups = 1 is a plain projection; groups = o_groups is the grouped output projection wo_a (einsum bhr,hdr->bhd).
/// Implementations differ in summation order; one that accepts `deterministic` gives a row the same bits whatever the other rows are.
struct Projection {
  static constexpr std::string_view kName = "projection";
  struct Problem {
    std::int64_t m = 0;  ///< rows
    std::int64_t n = 0;  ///< outputs of a group
    std::int64_t k = 0;  ///< inputs of a group
    std::int64_t groups = 1;
    DType x = DType::kBF16;  ///< BF16 or F32
    DType w = DType::kBF16;  ///< BF16 or F32
    DType y = DType::kBF16;  ///< BF16 or F32
  };
  struct Args {
    ConstTensorView x;  ///< [m, groups, k]; the first two strides are free, the last is 1
    ConstTensorView w;  ///< [groups, n, k] contiguous
    TensorView y;       ///< [m, groups, n]; the first two strides are free, the last is 1
  };
};

}  // namespace smla
