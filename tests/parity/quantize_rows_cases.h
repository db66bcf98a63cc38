#pragma once

// Cases of quantize_rows.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <ostream>
#include <random>
#include <utility>
#include <vector>

#include "parity/norm_rope_inputs.h"
#include "sparsemla/ops/norm_rope.h"

namespace smla::norm_rope_cases {

struct RowsCase {
  QuantizeRows::Problem problem;
  std::int64_t row_gap = 0;  ///< extra columns of the matrices that x and values are slices of
};

inline std::ostream& operator<<(std::ostream& out, const RowsCase& c) {
  return out << "quantize_rows " << c.problem.rows << "x" << c.problem.dim << " " << name_of(c.problem.in) << ", gap "
             << c.row_gap << ", scales " << (c.problem.scale == OutputScale::kF32 ? "f32" : "ue8m0x4");
}

inline std::vector<RowsCase> rows_cases() {
  std::vector<RowsCase> out;
  for (const OutputScale scale : {OutputScale::kF32, OutputScale::kUe8m0x4}) {
    for (const DType in : {DType::kBF16, DType::kF32}) {
      for (const std::int64_t dim : {0, 128, 384, 512, 640, 1024, 4096}) {
        for (const std::int64_t rows : {0, 1, 3, 4, 33}) {
          out.push_back({.problem = {.rows = rows, .dim = dim, .in = in, .scale = scale},
                         .row_gap = rows % 2 == 0    ? 0
                                    : dim % 512 == 0 ? 4
                                                     : 1});
        }
      }
    }
  }
  return out;
}

struct RowsRun {
  QuantizeRows::Problem problem;
  HostTensor x, values, scales;
  explicit RowsRun(const RowsCase& c) : problem(c.problem) {
    std::mt19937_64 random(6);
    const std::int64_t groups = problem.dim / QuantizeRows::kGroup;
    const bool packed = problem.scale == OutputScale::kUe8m0x4;
    x = HostTensor(problem.in, {problem.rows, problem.dim + c.row_gap});
    values = HostTensor(DType::kE4M3, {problem.rows, problem.dim + c.row_gap});
    scales = HostTensor(packed ? DType::kI32 : DType::kF32,
                        {1, packed ? (groups + 3) / 4 : groups, (problem.rows + 3) / 4 * 4});
    fill_activations(x, random);
    // Numbers that are none, and those past the ends of the formats.
    const std::int64_t row = problem.dim + c.row_gap;
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    const float odd[] = {std::numeric_limits<float>::quiet_NaN(),
                         -std::numeric_limits<float>::quiet_NaN(),
                         kInfinity,
                         -3e38F,
                         1e-45F,
                         -0.0F};
    for (std::int64_t i = 0; problem.dim > 0 && i < std::min<std::int64_t>(problem.rows, 6); ++i) {
      const std::int64_t at = i * row + (37 * i + 5) % problem.dim;
      if (problem.in == DType::kF32) x.as<float>()[at] = odd[i];
      if (problem.in == DType::kBF16) x.as<BF16>()[at] = to_bf16(odd[i]);
    }
    poison(values);
    poison(scales);
  }
  QuantizeRows::Args args() {
    return {.x = std::as_const(x).view().slice(1, 0, problem.dim),
            .values = values.view().slice(1, 0, problem.dim),
            .scales = scales.view()};
  }
};

}  // namespace smla::norm_rope_cases
