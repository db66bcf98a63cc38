#pragma once

// 7. The cases: one list for parity, property and GPU tests. Of a real op: tests/parity/<family>_cases.h.

#include <random>
#include <vector>

#include "core/codecs.h"
#include "core/host_tensor.h"
#include "pick_rows.h"

namespace smla::pick_rows_cases {

struct PickCase {
  std::int64_t rows = 0;
  std::int64_t sources = 0;
  std::int64_t dim = 0;
  DType dtype = DType::kBF16;
  bool hostile = false;      ///< numbers that are no rows of x
  std::int64_t padding = 0;  ///< numbers between rows

  PickRows::Problem problem() const {
    return {.rows = rows, .sources = sources, .dim = dim, .dtype = dtype, .scale = 0.75F};
  }
};

/// No rows, one row, rows twice, hostile numbers, strided rows.
inline std::vector<PickCase> all_cases() {
  return {{.rows = 0, .sources = 3, .dim = 8},
          {.rows = 1, .sources = 1, .dim = 1},
          {.rows = 9, .sources = 4, .dim = 130},
          {.rows = 9, .sources = 4, .dim = 130, .dtype = DType::kF32, .padding = 3},
          {.rows = 6, .sources = 5, .dim = 33, .hostile = true},
          {.rows = 6, .sources = 0, .dim = 33, .dtype = DType::kF32, .hostile = true}};
}

/// Tensors of a case with memory of their own; y begins as 0xFF.
struct PickInputs {
  explicit PickInputs(const PickCase& c)
      : x(c.dtype, {c.sources, c.dim + c.padding}),
        index(DType::kI32, {c.rows}),
        y(c.dtype, {c.rows, c.dim + c.padding}) {
    std::mt19937 random(7);
    std::uniform_real_distribution<float> number(-2.0F, 2.0F);
    for (std::int64_t i = 0; i < x.numel(); ++i) {
      if (c.dtype == DType::kF32) {
        x.as<float>()[i] = number(random);
      } else {
        x.as<BF16>()[i] = to_bf16(number(random));
      }
    }
    const std::vector<std::int32_t> bad{-1, static_cast<std::int32_t>(c.sources), INT32_MAX, INT32_MIN};
    for (std::int64_t r = 0; r < c.rows; ++r) {
      index.as<std::int32_t>()[r] = c.hostile && r < 4
                                        ? bad[static_cast<std::size_t>(r)]
                                        : static_cast<std::int32_t>(r * 7 % std::max<std::int64_t>(c.sources, 1));
    }
    if (y.bytes() > 0) std::memset(y.data(), 0xFF, y.bytes());
    args = {.x = std::as_const(x).view().slice(1, 0, c.dim),
            .index = std::as_const(index).view(),
            .y = y.view().slice(1, 0, c.dim)};
  }
  PickInputs(const PickInputs&) = delete;
  PickInputs& operator=(const PickInputs&) = delete;

  HostTensor x, index, y;
  PickRows::Args args;
};

}  // namespace smla::pick_rows_cases
