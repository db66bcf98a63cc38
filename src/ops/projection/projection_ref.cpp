#include <bit>
#include <vector>

#include "core/codecs.h"
#include "ops/projection/implementations.h"

// y[m, g, n] = sum over k of x[m, g, k] * w[g, n, k], in double, k ascending; rounded once to the dtype of y. E4M3 x
// and w are multiplied by their scales first; of NVFP4 w the sum is multiplied by the scale of all.

namespace smla {

namespace {

double element(const void* data, DType dtype, std::int64_t at) {
  if (dtype == DType::kE4M3) return static_cast<double>(to_float(static_cast<const E4M3*>(data)[at]));
  return dtype == DType::kBF16 ? static_cast<double>(to_float(static_cast<const BF16*>(data)[at]))
                               : static_cast<double>(static_cast<const float*>(data)[at]);
}

/// Double to bfloat16 in one rounding: the step to float is made towards odd, so that it keeps which side of a tie the
/// number is on.
BF16 bf16_of_double(double value) {
  const float nearest = static_cast<float>(value);
  std::uint32_t bits = std::bit_cast<std::uint32_t>(nearest);
  const double difference = value - static_cast<double>(nearest);
  if (difference != 0.0 && (bits & 1U) == 0 && (bits & 0x7F80'0000U) != 0x7F80'0000U) {
    const bool away_from_zero = (difference > 0.0) == (value > 0.0);
    bits = away_from_zero ? bits + 1 : bits - 1;
  }
  return to_bf16(std::bit_cast<float>(bits));
}

/// Element `at` of NVFP4 w, e2m1 times its group's scale: exact.
double nvfp4_element(const Projection::Args& args, std::int64_t at) {
  const unsigned codes = static_cast<const std::uint8_t*>(args.w.data)[at / 2];
  const E4M3 scale = static_cast<const E4M3*>(args.w_scale.data)[at / Projection::kNvfp4Group];
  return static_cast<double>(from_e2m1(static_cast<std::uint8_t>(at % 2 == 0 ? codes & 15U : codes >> 4))) *
         static_cast<double>(to_float(scale));
}

}  // namespace

void projection_ref(const ProjectionProblem& problem, const Projection::Args& args, const RunContext& context) {
  const std::int64_t rows = problem.m * problem.groups;
  const bool nvfp4 = problem.w == Projection::kNvfp4;
#pragma omp parallel for num_threads(context.threads)
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t i = row / problem.groups;
    const std::int64_t g = row % problem.groups;
    const std::int64_t x_at = i * args.x.stride[0] + g * args.x.stride[1];
    const std::int64_t y_at = i * args.y.stride[0] + g * args.y.stride[1];
    std::vector<double> x(static_cast<std::size_t>(problem.k));
    for (std::int64_t k = 0; k < problem.k; ++k) {
      double& v = x[static_cast<std::size_t>(k)];
      v = element(args.x.data, problem.x, x_at + k);
      if (problem.x == DType::kE4M3)
        v *= static_cast<double>(x_scale_of(problem, args.x_scale, i, g, k / Projection::kScaleGroup));
    }
    for (std::int64_t j = 0; j < problem.n; ++j) {
      const std::int64_t w_at = (g * problem.n + j) * problem.k;
      double sum = 0.0;
      for (std::int64_t k = 0; k < problem.k; ++k) {
        double w = nvfp4 ? nvfp4_element(args, w_at + k) : element(args.w.data, problem.w, w_at + k);
        if (problem.w == DType::kE4M3) w *= static_cast<double>(w_scale_of(args.w_scale, g, j, k));
        sum += x[static_cast<std::size_t>(k)] * w;
      }
      if (nvfp4) sum *= static_cast<double>(*static_cast<const float*>(args.w_global_scale.data));
      if (problem.y == DType::kBF16) {
        static_cast<BF16*>(args.y.data)[y_at + j] = bf16_of_double(sum);
      } else {
        static_cast<float*>(args.y.data)[y_at + j] = static_cast<float>(sum);
      }
    }
  }
}

}  // namespace smla
