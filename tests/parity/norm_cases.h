#pragma once

// Cases of rms_norm and latent_norms.

#include <cstdint>
#include <ostream>
#include <random>
#include <utility>
#include <vector>

#include "parity/norm_rope_inputs.h"
#include "parity/quantised_rows.h"
#include "sparsemla/ops/norm_rope.h"

namespace smla::norm_rope_cases {

struct RmsNormCase {
  RmsNorm::Problem problem;
  DType weight = DType::kBF16;
  std::int64_t row_gap = 0;  ///< extra columns of the matrix that x is a slice of
  friend std::ostream& operator<<(std::ostream& out, const RmsNormCase& c) {
    return out << "rms_norm " << c.problem.rows << "x" << c.problem.dim << " " << name_of(c.problem.in) << " to "
               << name_of(c.problem.out) << (c.problem.has_weight ? " with " : " without ") << name_of(c.weight)
               << " weight, gap " << c.row_gap;
  }
};

inline std::vector<RmsNormCase> rms_norm_cases() {
  std::vector<RmsNormCase> cases;
  for (const std::int64_t rows : {0, 1, 3, 4, 5, 127, 128, 129, 255, 256}) {
    cases.push_back({.problem = {.rows = rows, .dim = 512}, .row_gap = rows % 2 == 0 ? 0 : 1024});
  }
  for (const std::int64_t dim : {0, 1, 2, 7, 33, 511, 513, 1024, 1536, 4096, 7168}) {
    cases.push_back({.problem = {.rows = 5, .dim = dim}});
    cases.push_back({.problem = {.rows = 3, .dim = dim, .in = DType::kF32, .out = DType::kF32},
                     .weight = DType::kF32,
                     .row_gap = 3});
    cases.push_back({.problem = {.rows = 2, .dim = dim, .in = DType::kF32, .out = DType::kBF16, .has_weight = false}});
    cases.push_back(
        {.problem = {.rows = 2, .dim = dim, .in = DType::kBF16, .out = DType::kF32, .has_weight = true, .eps = 0.5F}});
  }
  return cases;
}

struct RmsNormInputs {
  HostTensor x, weight, y;
  RmsNorm::Args args;
};

inline RmsNormInputs make_inputs(const RmsNormCase& c, std::uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  RmsNormInputs in;
  in.x = HostTensor(c.problem.in, {c.problem.rows, c.problem.dim + c.row_gap});
  in.weight = HostTensor(c.weight, {c.problem.dim});
  in.y = HostTensor(c.problem.out, {c.problem.rows, c.problem.dim + 8});
  fill_activations(in.x, random);
  fill_activations(in.weight, random);
  poison(in.y);
  in.args.x = std::as_const(in.x).view().slice(1, c.row_gap, c.row_gap + c.problem.dim);
  in.args.y = in.y.view().slice(1, 0, c.problem.dim);
  if (c.problem.has_weight) in.args.weight = in.weight.view();
  return in;
}

struct LatentNormsCase {
  LatentNorms::Problem problem;
  DType weight = DType::kBF16;
  std::int64_t row_gap = 0;  ///< extra columns of the matrices that qr and kv are slices of

  RmsNormCase qr() const { return alone(problem.qr_dim); }
  RmsNormCase kv() const { return alone(problem.kv_dim); }
  friend std::ostream& operator<<(std::ostream& out, const LatentNormsCase& c) {
    return out << c.qr() << " and " << c.problem.kv_dim;
  }

 private:
  RmsNormCase alone(std::int64_t dim) const {
    return {.problem = {.rows = problem.rows,
                        .dim = dim,
                        .in = problem.in,
                        .out = problem.out,
                        .has_weight = problem.has_weight,
                        .eps = problem.eps},
            .weight = weight,
            .row_gap = row_gap};
  }
};

inline std::vector<LatentNormsCase> latent_norms_cases() {
  std::vector<LatentNormsCase> cases;
  for (const std::int64_t kv_dim : {0, 1, 33, 512, 4096}) {
    for (const std::int64_t qr_dim : {0, 7, 1024, 1536, 4096})
      cases.push_back({.problem = {.rows = 19, .qr_dim = qr_dim, .kv_dim = kv_dim}, .row_gap = 4});
    cases.push_back({.problem = {.rows = 3, .qr_dim = 512, .kv_dim = kv_dim, .in = DType::kF32, .out = DType::kF32},
                     .weight = DType::kF32});
    cases.push_back({.problem = {.rows = 5, .qr_dim = 1024, .kv_dim = kv_dim, .out = DType::kF32, .eps = 0.5F}});
    cases.push_back({.problem = {.rows = 2, .qr_dim = 512, .kv_dim = kv_dim, .has_weight = false}});
  }
  cases.push_back({.problem = {.rows = 0, .qr_dim = 1024, .kv_dim = 512}});
  return cases;
}

struct LatentNormsInputs {
  RmsNormInputs qr, kv;
  LatentNorms::Args args() const {
    return {.qr = qr.args.x,
            .qr_weight = qr.args.weight,
            .qr_out = qr.args.y,
            .kv = kv.args.x,
            .kv_weight = kv.args.weight,
            .kv_out = kv.args.y};
  }
};

inline LatentNormsInputs make_inputs(const LatentNormsCase& c) {
  return {.qr = make_inputs(c.qr(), 1), .kv = make_inputs(c.kv(), 2)};
}

inline std::vector<LatentNormsCase> quantised_norms_cases() {
  std::vector<LatentNormsCase> cases;
  for (const std::int64_t rows : {1, 4, 19}) {
    for (const std::int64_t dim : {0, 128, 1024, 1536, 4096, 4224}) {
      const LatentNorms::Problem p{.rows = rows, .qr_dim = dim, .kv_dim = 512, .quantises_qr = true};
      cases.push_back({.problem = p, .row_gap = dim % 256 == 0 ? 4 : 3});
    }
    LatentNorms::Problem p{.rows = rows, .qr_dim = 1024, .in = DType::kF32, .out = DType::kF32, .quantises_qr = true};
    cases.push_back({.problem = p, .weight = DType::kF32});
    p.in = DType::kBF16;
    cases.push_back({.problem = p});
  }
  return cases;
}

/// The latent queries in E4M3. Rows of values lie up to 7 numbers further apart than they are long, so that some are
/// aligned to four numbers and some are not.
inline test::QuantisedRows quantised_qr(const LatentNorms::Problem& p) {
  return {p.rows, p.qr_dim, p.qr_dim / QuantizeRows::kGroup % 8};
}

}  // namespace smla::norm_rope_cases
