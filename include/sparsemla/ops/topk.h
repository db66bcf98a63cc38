#pragma once

#include <cstdint>
#include <string_view>

#include "sparsemla/export.h"
#include "sparsemla/op.h"
#include "sparsemla/tensor_view.h"

namespace SMLA_API smla {

/// The k best columns of every row, exactly (spec 4.6, 15): the set of the highest scores, ties at the boundary to the lowest column.
///
/// n = clamp(lens[row], 0, width). n <= k: columns 0..n-1. Otherwise k distinct columns, in ascending order on the CPU and in Deterministic mode.
/// The rest of the row is -1. NaN is never chosen before a number; -0 equals +0.
struct TopK {
  static constexpr std::string_view kName = "topk";  ///< the op's name
  /// Shapes, dtypes and scalars of a call.
  struct Problem {
    std::int64_t rows = 0;   ///< how many rows
    std::int64_t width = 0;  ///< columns of logits
    std::int64_t k = 0;      ///< how many are chosen
  };
  /// Tensors of a call.
  struct Args {
    ConstTensorView logits;  ///< [rows, width] F32, rows may be strided
    ConstTensorView lens;    ///< [rows] I32
    TensorView indices;      ///< [rows, k] I32, rows may be strided
  };
};

}  // namespace smla
