#pragma once

#include <string>
#include <vector>

#include "parity/projection_cases.h"
#include "sparsemla/ops/norm_rope.h"

namespace smla::test {

/// Several weights of one input, each with the tensors of a case of its own; x is that of the first.
struct JointTensors {
  explicit JointTensors(const std::vector<ProjectionCase>& cases) {
    const Projection::Problem& first = cases.front().problem;
    problem = {
        .m = first.m, .k = first.k, .groups = first.groups, .x = first.x, .parts = static_cast<int>(cases.size())};
    for (const ProjectionCase& c : cases) {
      problem.part[parts.size()] = {.n = c.problem.n, .w = c.problem.w, .y = c.problem.y};
      parts.emplace_back(c);
    }
  }

  std::vector<ProjectionBuffer> poisoned_y() const {
    std::vector<ProjectionBuffer> out;
    for (const ProjectionTensors& part : parts) out.push_back(part.poisoned_y());
    return out;
  }
  /// A weight as a call of its own.
  Projection::Args part_args(std::size_t i, ProjectionBuffer& y) const {
    Projection::Args a = parts[i].args(y);
    ProjectionBuffer unused = parts[0].poisoned_y();
    a.x = parts[0].args(unused).x;
    return a;
  }
  JointProjection::Args args(std::vector<ProjectionBuffer>& y) const {
    JointProjection::Args a;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const Projection::Args part = part_args(i, y[i]);
      a.x = part.x;
      a.parts[i] = {.w = part.w, .y = part.y, .w_scale = part.w_scale, .w_global_scale = part.w_global_scale};
    }
    return a;
  }

  JointProjection::Problem problem;
  std::vector<ProjectionTensors> parts;
};

/// The same with x that is normed first.
struct NormedTensors : JointTensors {
  explicit NormedTensors(const std::vector<ProjectionCase>& cases, DType of_weight = DType::kBF16)
      : JointTensors(cases), weight(of_weight, problem.k) {
    problem.norms_x = true;
    problem.eps = 1e-3F;
    ProjectionRandom random(cases.front().seed + 77);
    for (std::int64_t i = 0; i < problem.k; ++i) weight.set(i, 1.5F + random.next());
  }
  JointProjection::Problem apart() const {
    JointProjection::Problem p = problem;
    p.norms_x = false;
    return p;
  }
  RmsNorm::Problem norm() const {
    return {.rows = problem.m, .dim = problem.k, .in = problem.x, .out = problem.x, .eps = problem.eps};
  }
  ConstTensorView weights() const { return {weight.data(), weight.dtype(), {problem.k}}; }
  RmsNorm::Args norm_args(const TensorView& y) const {
    ConstTensorView x(parts[0].x.data(), problem.x, {problem.m, problem.k});
    x.stride[0] = parts[0].x_row;
    return {.x = x, .weight = weights(), .y = y};
  }
  JointProjection::Args args(std::vector<ProjectionBuffer>& y) const {
    JointProjection::Args a = JointTensors::args(y);
    a.x_weight = weights();
    return a;
  }
  JointProjection::Args args_apart(std::vector<ProjectionBuffer>& y, const void* normed) const {
    JointProjection::Args a = JointTensors::args(y);
    a.x = ConstTensorView(normed, problem.x, {problem.m, 1, problem.k});
    return a;
  }

  ProjectionBuffer weight;
};

inline std::string describe(const std::vector<ProjectionCase>& cases) {
  std::string text;
  for (const ProjectionCase& c : cases) text += (text.empty() ? "" : "; ") + describe(c);
  return text;
}

/// One to eight weights, odd numbers of outputs, weights of both dtypes in one call, groups, gaps between rows.
inline std::vector<std::vector<ProjectionCase>> joint_projection_cases(DType x) {
  struct Weight {
    std::int64_t n;
    DType w, y;
  };
  constexpr DType kBF16 = DType::kBF16;
  constexpr DType kF32 = DType::kF32;
  constexpr DType kFp8 = DType::kE4M3;
  constexpr DType kFp4 = Projection::kNvfp4;
  const std::vector<std::vector<Weight>> lists = {
      {{48, kBF16, kBF16}},
      {{37, kFp8, kBF16}},
      {{96, kFp8, kBF16},
       {40, kFp8, kBF16},
       {64, kBF16, kF32},
       {64, kBF16, kF32},
       {16, kBF16, kF32},
       {16, kBF16, kF32},
       {8, kBF16, kBF16}},
      {{1, kBF16, kBF16},
       {0, kBF16, kF32},
       {33, kBF16, kBF16},
       {129, kFp8, kF32},
       {15, kBF16, kBF16},
       {16, kBF16, kF32},
       {17, kFp8, kBF16},
       {31, kBF16, kBF16}},
  };
  std::vector<std::vector<ProjectionCase>> out;
  std::uint64_t seed = 1;
  const auto add = [&](std::int64_t m, std::int64_t k, std::int64_t groups, const std::vector<Weight>& list) {
    std::vector<ProjectionCase>& cases = out.emplace_back();
    for (const Weight& weight : list) {
      ProjectionCase c;
      c.problem = {.m = m, .n = weight.n, .k = k, .groups = groups, .x = x, .w = weight.w, .y = weight.y};
      c.seed = ++seed;
      c.x_gap = seed % 3 == 0 ? 0 : static_cast<std::int64_t>(8 * (seed % 5));
      c.y_gap = static_cast<std::int64_t>(seed % 4);
      c.y_group_major = seed % 5 == 0;
      c.w_scale_gap = static_cast<std::int64_t>(seed % 2);
      cases.push_back(c);
    }
  };
  for (const std::int64_t m : {0, 1, 2, 7, 8, 9, 16, 17, 33, 64, 70}) {
    for (const std::vector<Weight>& list : lists) {
      add(m, 272, 1, list);
      if (m <= 17) add(m, 1296, 1, list);
      if (m == 1 || m == 9 || m == 33) add(m, 144, 3, list);
    }
  }
  for (const std::vector<Weight>& list : lists) add(5, 0, 1, list);
  add(3, 1032, 2, {{20, kBF16, kBF16}, {50, kBF16, kF32}});  // k of eights alone
  for (const std::int64_t m : {1, 8, 12, 17, 40, 70}) {
    for (const std::int64_t k : {64, 192, 1088})  // of one format, and of all
      add(m, k, m == 12 ? 2 : 1, {{96, kFp4, kBF16}, {33, kFp4, kF32}, {1, kFp4, kBF16}}),
          add(m, k, 1, {{40, kFp4, kBF16}, {17, kFp8, kF32}, {31, kBF16, kBF16}, {50, kFp4, kF32}});
  }
  add(5, 80, 2, {{20, kFp4, kBF16}, {50, kFp4, kF32}});   // k of sixteens alone
  add(3, 77, 1, {{20, kBF16, kBF16}, {50, kFp8, kF32}});  // of neither
  return out;
}

}  // namespace smla::test
