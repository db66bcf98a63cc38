#pragma once

// What QuantizeRows writes, as the second output of an op that computes the rows.

#include <cstdint>
#include <cstring>

#include "core/host_tensor.h"
#include "sparsemla/ops/norm_rope.h"

namespace smla::test {

/// E4M3 rows, which lie `gap` numbers further apart than they are long, and their scales. All bytes are 0xA5 before.
struct QuantisedRows {
  HostTensor values, scales;
  std::int64_t dim = 0;

  QuantisedRows(std::int64_t rows, std::int64_t dim_in, std::int64_t gap = 0)
      : values(DType::kE4M3, {rows, dim_in + gap}),
        scales(DType::kF32, {1, dim_in / QuantizeRows::kGroup, (rows + 3) / 4 * 4}),
        dim(dim_in) {
    std::memset(values.data(), 0xA5, values.bytes());
    std::memset(scales.data(), 0xA5, scales.bytes());
  }
  TensorView rows() { return values.view().slice(1, 0, dim); }
  /// The arguments of QuantizeRows itself.
  QuantizeRows::Args args(const ConstTensorView& x) { return {.x = x, .values = rows(), .scales = scales.view()}; }
};

}  // namespace smla::test
