#pragma once

// Cases of inverse_rope and inverse_rope_quant.

#include <cstdint>
#include <numeric>
#include <ostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "parity/norm_rope_inputs.h"
#include "sparsemla/ops/norm_rope.h"

namespace smla::norm_rope_cases {

struct InverseCase {
  InverseRope::Problem problem;
  std::int64_t extra_heads = 0;  ///< x is a slice of a buffer with so many heads more
  friend std::ostream& operator<<(std::ostream& out, const InverseCase& c) {
    return out << "inverse_rope " << c.problem.tokens << "x" << c.problem.heads << "x" << c.problem.dim << " "
               << name_of(c.problem.in) << " to " << name_of(c.problem.out) << ", " << c.extra_heads << " extra heads";
  }
};

inline std::vector<InverseCase> inverse_cases() {
  std::vector<InverseCase> cases;
  for (const std::int64_t tokens : {0, 1, 3, 4, 5, 127, 128, 129, 255, 256}) {
    for (const DType type : {DType::kBF16, DType::kF32})
      cases.push_back({.problem = {.tokens = tokens, .heads = 7, .in = type, .out = type}, .extra_heads = 1});
  }
  for (const std::int64_t heads : {0, 1, 8, 16, 64, 128}) {
    cases.push_back({.problem = {.tokens = 3, .heads = heads, .in = DType::kF32}});
    cases.push_back({.problem = {.tokens = 2, .heads = heads, .dim = 128, .out = DType::kF32}, .extra_heads = 3});
  }
  return cases;
}

struct InverseInputs {
  HostTensor x, positions, cos_sin, y;
  InverseRope::Args args;
};

inline InverseInputs make_inputs(const InverseCase& c, std::uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  const InverseRope::Problem& p = c.problem;
  InverseInputs in;
  in.x = HostTensor(p.in, {p.tokens, p.heads + c.extra_heads, p.dim});
  in.positions = HostTensor(DType::kI64, {p.tokens});
  in.cos_sin = rope_rows(300, p.rope_dim);
  in.y = HostTensor(p.out, {p.tokens, p.heads + 1, p.dim});
  fill_activations(in.x, random);
  poison(in.y);
  for (std::int64_t t = 0; t < p.tokens; ++t)
    in.positions.as<std::int64_t>()[t] = static_cast<std::int64_t>(random() % 310) - 5;
  in.args = {.x = std::as_const(in.x).view().slice(1, 0, p.heads),
             .positions = in.positions.view(),
             .cos_sin = in.cos_sin.view(),
             .y = in.y.view().slice(1, 0, p.heads)};
  return in;
}

struct QuantCase {
  std::int64_t tokens = 3, heads = 8, groups = 2;
  int dim = 512;
  DType in = DType::kBF16;
  OutputScale scale = OutputScale::kF32;
  InverseRopeQuant::Problem problem() const {
    return {.tokens = tokens, .heads = heads, .groups = groups, .dim = dim, .rope_dim = 64, .in = in, .scale = scale};
  }
  std::int64_t width() const { return heads / groups * dim; }
  std::int64_t chunks() const { return width() / 128; }
  std::int64_t scale_rows() const { return scale == OutputScale::kF32 ? chunks() : (chunks() + 3) / 4; }
  std::int64_t padded() const { return (tokens + 3) / 4 * 4; }
};

inline std::ostream& operator<<(std::ostream& out, const QuantCase& c) {
  return out << "inverse_rope_quant " << c.tokens << "x" << c.heads << "x" << c.dim << " in " << c.groups << " groups, "
             << name_of(c.in) << ", scales " << (c.scale == OutputScale::kF32 ? "f32" : "ue8m0x4");
}

inline std::vector<QuantCase> quant_cases() {
  std::vector<QuantCase> out;
  for (const OutputScale scale : {OutputScale::kF32, OutputScale::kUe8m0x4}) {
    for (const DType in : {DType::kBF16, DType::kF32}) {
      for (const std::int64_t tokens : {0, 1, 3, 4, 5, 33}) {
        out.push_back({.tokens = tokens, .in = in, .scale = scale});
        out.push_back({.tokens = tokens,
                       .heads = 6,
                       .groups = 2,
                       .dim = 128,
                       .in = in,
                       .scale = scale});  // chunks that no word of four holds
      }
      out.push_back({.tokens = 5, .heads = 64, .groups = 8, .in = in, .scale = scale});
      out.push_back({.tokens = 2, .heads = 128, .groups = 16, .in = in, .scale = scale});
    }
  }
  return out;
}

struct QuantRun {
  HostTensor x, positions, cos_sin, values, scales;
  explicit QuantRun(const QuantCase& c) {
    std::mt19937_64 random(5);
    x = HostTensor(c.in, {c.tokens, c.heads + 1, c.dim});
    fill_activations(x, random);
    positions = HostTensor(DType::kI64, {c.tokens});
    for (std::int64_t t = 0; t < c.tokens; ++t)
      positions.as<std::int64_t>()[t] = t == 2 ? -1 : t == 4 ? 300 : (t * 37) % 300;
    cos_sin = rope_rows(300, 64);
    values = HostTensor(DType::kE4M3, {c.groups, c.tokens, c.width()});
    scales =
        HostTensor(c.scale == OutputScale::kF32 ? DType::kF32 : DType::kI32, {c.groups, c.scale_rows(), c.padded()});
    poison(values);
    poison(scales);
  }
  InverseRopeQuant::Args args() {
    return {.x = x.view(),
            .positions = positions.view(),
            .cos_sin = cos_sin.view(),
            .values = values.view(),
            .scales = scales.view()};
  }
  void run(const QuantCase& c, const std::string& name, int threads) {
    Plan<InverseRopeQuant>(c.problem(), {.implementation = name, .threads = threads}).run(args());
  }
};

}  // namespace smla::norm_rope_cases
