#include "core/check.h"
#include "ops/cuda_op.h"
#include "ops/topk/implementations.h"

namespace smla {

template <>
std::span<const Implementation<TopK>> OpTable<TopK>::implementations() {
  static constexpr Implementation<TopK> kTable[] = {
      cuda_line<TopK>(),
      {.name = "cpu", .machine = "any CPU", .run = topk_cpu},
      {.name = "ref", .machine = "any CPU", .run = topk_ref},
  };
  return kTable;
}

template <>
void OpTable<TopK>::check_problem(const TopK::Problem& problem) {
  check_that(problem.rows >= 0, TopK::kName, "problem.rows", problem.rows, "0 or more");
  check_that(problem.width >= 0 && problem.width <= INT32_MAX, TopK::kName, "problem.width", problem.width, "0 to 2^31-1");
  check_that(problem.k >= 0 && problem.k <= INT32_MAX, TopK::kName, "problem.k", problem.k, "0 to 2^31-1");
}

template <>
void OpTable<TopK>::check_args(const TopK::Problem& problem, const TopK::Args& args) {
  check_tensor(TopK::kName, "logits", args.logits, {problem.rows, problem.width}, {DType::kF32});
  check_tensor(TopK::kName, "lens", args.lens, {problem.rows}, {DType::kI32});
  check_tensor(TopK::kName, "indices", args.indices, {problem.rows, problem.k}, {DType::kI32});
}

SMLA_DEFINE_OP(TopK);

}  // namespace smla
