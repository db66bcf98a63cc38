#pragma once

#include <cstdint>
#include <string_view>

#include "sparsemla/export.h"
#include "sparsemla/op.h"
#include "sparsemla/tensor_view.h"

namespace SMLA_API smla {

/// The k best columns of every row, exactly (spec 4.6, 15): the set of the highest scores, ties at the boundary to the
/// lowest column.
///
/// n = clamp(lens[row], 0, width). n <= k: columns 0..n-1. Otherwise k distinct columns, in ascending order on the CPU
/// and in Deterministic mode. The rest of the row is -1. NaN is never chosen before a number; -0 equals +0.
///
/// With `storage_block` > 0 the chosen columns are entries of the row's request, and their slots are written as well:
/// what GlobalTopk makes of `indices` with `compact` (spec 7.1), in the same launch.
struct TopK {
  static constexpr std::string_view kName = "topk";  ///< the op's name
  /// Shapes, dtypes and scalars of a call.
  struct Problem {
    std::int64_t rows = 0;           ///< how many rows
    std::int64_t width = 0;          ///< columns of logits
    std::int64_t k = 0;              ///< how many are chosen
    std::int64_t storage_block = 0;  ///< entries in a block, for slots; 0: none are wanted
  };
  /// Tensors of a call.
  struct Args {
    ConstTensorView logits;        ///< [rows, width] F32, rows may be strided
    ConstTensorView lens;          ///< [rows] I32
    TensorView indices;            ///< [rows, k] I32, rows may be strided
    ConstTensorView token_to_req;  ///< slots: [rows] I32, each row's request
    ConstTensorView block_table;   ///< slots: [requests, columns] I32
    ConstTensorView valid;         ///< slots: [rows] BOOL; slot_lens of other rows is 0
    TensorView slots;              ///< slots: [rows, k] I32, rows may be strided
    TensorView slot_lens;          ///< slots: [rows] I32
  };
};

}  // namespace smla
