// 4. The rows of the op's table, best first and `ref` last, and the checks of problem and tensors. Of a real op:
// src/ops/<family>/<family>.cpp.
#include "core/check.h"
#include "implementations.h"
#include "ops/define_op.h"

namespace smla {

template <>
std::span<const Implementation<PickRows>> OpTable<PickRows>::implementations() {
  static constexpr Implementation<PickRows> kTable[] = {
      {.name = "cpu", .machine = "any CPU", .run = pick_rows_cpu},
      {.name = "ref", .machine = "any CPU", .run = pick_rows_ref},
  };
  return kTable;
}

template <>
void OpTable<PickRows>::check_problem(const PickRows::Problem& p) {
  constexpr std::string_view op = PickRows::kName;
  check_that(p.rows >= 0, op, "rows", p.rows, "0 or more");
  check_that(p.sources >= 0, op, "sources", p.sources, "0 or more");
  check_that(p.dim >= 0, op, "dim", p.dim, "0 or more");
  check_that(p.dtype == DType::kBF16 || p.dtype == DType::kF32, op, "dtype", std::string(name_of(p.dtype)),
             "BF16 or F32");
}

template <>
void OpTable<PickRows>::check_args(const PickRows::Problem& p, const PickRows::Args& a) {
  constexpr std::string_view op = PickRows::kName;
  check_tensor(op, "x", a.x, {p.sources, p.dim}, {p.dtype});
  check_tensor(op, "index", a.index, {p.rows}, {DType::kI32});
  check_tensor(op, "y", a.y, {p.rows, p.dim}, {p.dtype});
}

SMLA_DEFINE_OP(PickRows);

}  // namespace smla
