#pragma once

#include <string>
#include <vector>

#include "parity/projection_cases.h"

namespace smla::test {

/// The two products of an output projection, as cases; x of the second is what the first makes.
struct OutputProjectionCase {
  ProjectionCase first, second;
};

inline std::string describe(const OutputProjectionCase& c) { return describe(c.first) + "; " + describe(c.second); }

struct OutputTensors {
  explicit OutputTensors(const OutputProjectionCase& c)
      : problem{.m = c.first.problem.m,
                .k = c.first.problem.k,
                .groups = c.first.problem.groups,
                .rank = c.first.problem.n,
                .n = c.second.problem.n,
                .x = c.first.problem.x,
                .wo_a = c.first.problem.w,
                .wo_b = c.second.problem.w,
                .y = c.second.problem.y},
        first(c.first),
        second(c.second) {}

  OutputProjection::Args args(ProjectionBuffer& z, ProjectionBuffer& y) const {
    const Projection::Args a = first.args(z);
    const Projection::Args b = second.args(y);
    return {.x = a.x,
            .wo_a = a.w,
            .z = a.y,
            .wo_b = b.w,
            .y = b.y,
            .wo_a_scale = a.w_scale,
            .wo_a_global_scale = a.w_global_scale,
            .wo_b_scale = b.w_scale,
            .wo_b_global_scale = b.w_global_scale};
  }
  /// The second product of a z that has been made.
  Projection::Args second_args(ProjectionBuffer& z, ProjectionBuffer& y) const {
    const ConstTensorView made = first.args(z).y;
    Projection::Args b = second.args(y);
    b.x = made;
    b.x.shape = {problem.m, 1, problem.groups * problem.rank, 0};
    b.x.stride = {made.stride[0], problem.groups * problem.rank, 1, 0};
    return b;
  }

  OutputProjection::Problem problem;
  ProjectionTensors first, second;
};

/// Rows up to and past sixteen, groups, odd sizes, gaps, weights of every dtype.
inline std::vector<OutputProjectionCase> output_projection_cases(DType x) {
  std::vector<OutputProjectionCase> out;
  const auto add = [&](std::int64_t m, std::int64_t k, std::int64_t groups, std::int64_t rank, std::int64_t n,
                       DType wo_a, DType wo_b, DType y) {
    OutputProjectionCase c;
    c.first.problem = {.m = m, .n = rank, .k = k, .groups = groups, .x = x, .w = wo_a, .y = x};
    c.second.problem = {.m = m, .n = n, .k = groups * rank, .x = x, .w = wo_b, .y = y};
    c.first.seed = 1 + 2 * out.size();
    c.second.seed = 2 + 2 * out.size();
    c.first.x_gap = static_cast<std::int64_t>(8 * (out.size() % 3));
    c.first.y_gap = static_cast<std::int64_t>(8 * (out.size() % 2));
    c.second.y_gap = static_cast<std::int64_t>(out.size() % 3);
    c.first.w_scale_gap = c.second.w_scale_gap = static_cast<std::int64_t>(out.size() % 2);
    out.push_back(c);
  };
  constexpr DType kBF16 = DType::kBF16;
  constexpr DType kFp8 = DType::kE4M3;
  for (const std::int64_t m : {0, 1, 2, 7, 8, 9, 16, 17, 33}) {
    add(m, 256, 2, 128, 384, kFp8, kFp8, kBF16);
    add(m, 272, 1, 256, 132, kFp8, kFp8, kBF16);
    add(m, 144, 3, 128, 260, kBF16, kFp8, kBF16);
  }
  add(3, 1296, 2, 384, 36, kFp8, kFp8, kBF16);  // fewer tiles of wo_b than of wo_a
  add(5, 128, 1, 128, 1541, kFp8, kFp8, kBF16);
  add(13, 400, 5, 128, 131, kFp8, kFp8, kBF16);
  add(4, 64, 1, 128, 128, kFp8, kFp8, DType::kF32);
  add(3, 77, 2, 33, 20, kBF16, kBF16, DType::kF32);
  add(5, 0, 2, 128, 64, kFp8, kFp8, kBF16);
  add(5, 64, 2, 0, 64, kFp8, kFp8, kBF16);
  add(2, 64, 2, 64, 96, Projection::kNvfp4, Projection::kNvfp4, kBF16);
  return out;
}

}  // namespace smla::test
