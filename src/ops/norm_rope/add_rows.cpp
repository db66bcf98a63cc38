// The residual: table, checks and the plain loop, which is bound by memory as it stands.
#include "core/check.h"
#include "ops/define_op.h"
#include "sparsemla/ops/norm_rope.h"

namespace smla {

namespace {

void add_rows_ref(const AddRows::Problem& p, const AddRows::Args& a, const RunContext& context) {
#pragma omp parallel for num_threads(context.threads)
  for (std::int64_t r = 0; r < p.rows; ++r) {
    const std::int64_t x_at = r * a.x.stride[0];
    const std::int64_t y_at = r * a.y.stride[0];
    if (p.dtype == DType::kBF16) {
      auto* x = static_cast<BF16*>(a.x.data) + x_at;
      const auto* y = static_cast<const BF16*>(a.y.data) + y_at;
      for (std::int64_t i = 0; i < p.dim; ++i) x[i] = to_bf16(to_float(x[i]) + to_float(y[i]));
    } else {
      auto* x = static_cast<float*>(a.x.data) + x_at;
      const auto* y = static_cast<const float*>(a.y.data) + y_at;
      for (std::int64_t i = 0; i < p.dim; ++i) x[i] += y[i];
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
