#pragma once

#include <cstdint>
#include <string_view>

#include "sparsemla/export.h"
#include "sparsemla/op.h"
#include "sparsemla/tensor_view.h"

namespace SMLA_API smla {

/// Copies rows of requests of different lengths to one rectangle, padded with zeros. A kernel that takes [requests,
/// next_n] rows needs this for a batch whose requests have different numbers of draft tokens (spec 4.9, 7.5); hosts
/// with such a kernel call it, layers do not.
///
/// packed[b, i] = rows[query_start_loc[b] + i] for i below the request's length, zero bytes behind it. Of a longer
/// request only the first max_len rows are copied. Rows that query_start_loc puts outside of `rows` are zeros, and so
/// is a request whose end lies before its start.
struct PackSequences {
  static constexpr std::string_view kName = "pack_sequences";
  struct Problem {
    std::int64_t requests = 0;
    std::int64_t tokens = 0;
    std::int64_t max_len = 0;    ///< rows of a request in the rectangle
    std::int64_t row = 0;        ///< elements of a row; give the product of all inner dimensions
    DType dtype = DType::kBF16;  ///< dtype of the elements, any
  };
  struct Args {
    ConstTensorView rows;             ///< [T, row], rows may be strided
    ConstTensorView query_start_loc;  ///< [B+1] I32
    TensorView packed;                ///< [B, max_len, row], the first two strides are free
  };
};

/// The inverse of PackSequences: rows[query_start_loc[b] + i] = packed[b, i] for i below the request's length and
/// max_len. Rows of no request are left as they are, and so are those past max_len.
struct UnpackSequences {
  static constexpr std::string_view kName = "unpack_sequences";
  using Problem = PackSequences::Problem;
  struct Args {
    ConstTensorView packed;           ///< [B, max_len, row], the first two strides are free
    ConstTensorView query_start_loc;  ///< [B+1] I32; no two requests share a row
    TensorView rows;                  ///< [T, row], rows may be strided
  };
};

}  // namespace smla
