#include <cmath>

#include "ops/norm_rope/implementations.h"
#include "ops/norm_rope/scalar.h"

namespace smla {

namespace {

// y_i = x_i * rsqrt(sum(x^2)/n + eps) * w_i: the sum in double, the products in fp32 from left to right, one rounding
// at the end (spec 2).
void norm(const RmsNorm::Problem& problem, std::int64_t dim, const ConstTensorView& from, const ConstTensorView& weight,
          const TensorView& to) {
  for (std::int64_t r = 0; r < problem.rows; ++r) {
    const void* x = row_of(from, r);
    void* y = row_of(to, r);
    double sum = 0.0;
    for (std::int64_t i = 0; i < dim; ++i) {
      const double v = load_element(problem.in, x, i);
      sum += v * v;
    }
    const auto inverse =
        static_cast<float>(1.0 / std::sqrt(sum / static_cast<double>(dim) + static_cast<double>(problem.eps)));
    for (std::int64_t i = 0; i < dim; ++i) {
      float v = load_element(problem.in, x, i) * inverse;
      if (problem.has_weight) v *= load_element(weight.dtype, weight.data, i);
      store_element(problem.out, y, i, v);
    }
  }
}

}  // namespace

void rms_norm_ref(const RmsNorm::Problem& problem, const RmsNorm::Args& args, const RunContext& context) {
  norm(problem, problem.dim, args.x, args.weight, args.y);
  if (problem.dim2 == 0) return;
  const bool inserts = problem.format != nullptr;
  const TensorView y2 =
      inserts ? TensorView(context.workspace.data, problem.out, {problem.rows, problem.dim2}) : args.y2;
  norm(problem, problem.dim2, args.x2, args.weight2, y2);
  if (inserts) qnorm_rope_insert_ref(insert_problem(problem), insert_args(args, y2), context);
}

}  // namespace smla
