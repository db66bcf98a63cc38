#include <cmath>

#include "ops/norm_rope/implementations.h"
#include "ops/norm_rope/scalar.h"

namespace smla {

// y_i = x_i * rsqrt(sum(x^2)/n + eps) * w_i: the sum in double, the products in fp32 from left to right, one rounding
// at the end (spec 2).
void rms_norm_ref(const RmsNorm::Problem& problem, const RmsNorm::Args& args, const RunContext&) {
  for (std::int64_t r = 0; r < problem.rows; ++r) {
    const void* x = row_of(args.x, r);
    void* y = row_of(args.y, r);
    double sum = 0.0;
    for (std::int64_t i = 0; i < problem.dim; ++i) {
      const double v = load_element(problem.in, x, i);
      sum += v * v;
    }
    const auto inverse =
        static_cast<float>(1.0 / std::sqrt(sum / static_cast<double>(problem.dim) + static_cast<double>(problem.eps)));
    for (std::int64_t i = 0; i < problem.dim; ++i) {
      float v = load_element(problem.in, x, i) * inverse;
      if (problem.has_weight) v *= load_element(args.weight.dtype, args.weight.data, i);
      store_element(problem.out, y, i, v);
    }
  }
}

}  // namespace smla
