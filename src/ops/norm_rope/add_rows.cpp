// The residual: table, checks and the plain loop, which is bound by memory as it stands.
#include <cmath>
#include <type_traits>

#include "core/check.h"
#include "ops/define_op.h"
#include "ops/norm_rope/scalar.h"
#include "sparsemla/ops/norm_rope.h"

namespace smla {

namespace {

float number(float v) { return v; }
float number(BF16 v) { return to_float(v); }
template <class T>
T rounded(float v) {
  if constexpr (std::is_same_v<T, BF16>) {
    return to_bf16(v);
  } else {
    return v;
  }
}

/// The factor of RMSNorm for a row; the sum in double (spec 2).
template <class T>
float inverse_root(const T* y, std::int64_t dim, float eps) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < dim; ++i) {
    const auto v = static_cast<double>(number(y[i]));
    sum += v * v;
  }
  return static_cast<float>(1.0 / std::sqrt(sum / static_cast<double>(dim) + static_cast<double>(eps)));
}

template <class T>
void add_row(const AddRows::Problem& p, const T* y, T* x) {
  if (p.normed) {
    const float inverse = inverse_root(y, p.dim, p.eps);
    for (std::int64_t i = 0; i < p.dim; ++i)
      x[i] = rounded<T>(number(x[i]) + number(rounded<T>(number(y[i]) * inverse)));
  } else {
    for (std::int64_t i = 0; i < p.dim; ++i) x[i] = rounded<T>(number(x[i]) + number(y[i]));
  }
}

void add_rows_ref(const AddRows::Problem& p, const AddRows::Args& a, const RunContext& context) {
#pragma omp parallel for num_threads(context.threads)
  for (std::int64_t r = 0; r < p.rows; ++r) {
    if (p.dtype == DType::kBF16) {
      add_row(p, static_cast<const BF16*>(row_of(a.y, r)), static_cast<BF16*>(row_of(a.x, r)));
    } else {
      add_row(p, static_cast<const float*>(row_of(a.y, r)), static_cast<float*>(row_of(a.x, r)));
    }
  }
}

}  // namespace

template <>
std::span<const Implementation<AddRows>> OpTable<AddRows>::implementations() {
  static const Implementation<AddRows> kTable[] = {cuda_row<AddRows>(),
                                                   {.name = "ref", .machine = "any CPU", .run = add_rows_ref}};
  return kTable;
}
template <>
void OpTable<AddRows>::check_problem(const AddRows::Problem& p) {
  constexpr std::string_view op = AddRows::kName;
  check_that(p.rows >= 0, op, "rows", p.rows, "0 or more");
  check_that(p.dim >= 0, op, "dim", p.dim, "0 or more");
  check_that(p.dtype == DType::kBF16 || p.dtype == DType::kF32, op, "dtype", std::string(name_of(p.dtype)),
             "BF16 or F32");
}
template <>
void OpTable<AddRows>::check_args(const AddRows::Problem& p, const AddRows::Args& a) {
  constexpr std::string_view op = AddRows::kName;
  check_tensor(op, "y", a.y, {p.rows, p.dim}, {p.dtype});
  check_tensor(op, "x", a.x, {p.rows, p.dim}, {p.dtype});
}

SMLA_DEFINE_OP(AddRows);

}  // namespace smla
