#include <array>

#include "core/codecs.h"
#include "ops/projection/implementations.h"

// E4M3 x and its scales, in the two layouts of InverseRopeQuant.

namespace smla {

namespace {

std::array<float, 256> all_codes() {
  std::array<float, 256> out{};
  for (std::size_t code = 0; code < out.size(); ++code) out[code] = to_float(E4M3{static_cast<std::uint8_t>(code)});
  return out;
}

}  // namespace

float x_scale_of(const ProjectionProblem& problem, const ConstTensorView& scales, std::int64_t row, std::int64_t group,
                 std::int64_t chunk) {
  const std::int64_t base = group * scales.stride[0] + row;
  if (problem.x_scale == OutputScale::kF32)
    return static_cast<const float*>(scales.data)[base + chunk * scales.stride[1]];
  const std::int32_t word = static_cast<const std::int32_t*>(scales.data)[base + chunk / 4 * scales.stride[1]];
  return from_ue8m0(static_cast<std::uint8_t>(static_cast<std::uint32_t>(word) >> (8 * (chunk % 4))));
}

void decode_x(const ProjectionProblem& problem, const Projection::Args& args, std::int64_t begin, std::int64_t rows,
              float* out, int threads) {
  static const std::array<float, 256> kCodes = all_codes();
  const float* codes = kCodes.data();
  constexpr std::int64_t kGroup = Projection::kScaleGroup;
#pragma omp parallel for num_threads(threads)
  for (std::int64_t row = 0; row < rows * problem.groups; ++row) {
    const std::int64_t i = begin + row / problem.groups;
    const std::int64_t g = row % problem.groups;
    const E4M3* x = static_cast<const E4M3*>(args.x.data) + i * args.x.stride[0] + g * args.x.stride[1];
    float* to = out + row * problem.k;
    for (std::int64_t chunk = 0; chunk < problem.k / kGroup; ++chunk) {
      const float scale = x_scale_of(problem, args.x_scale, i, g, chunk);
      for (std::int64_t k = chunk * kGroup; k < (chunk + 1) * kGroup; ++k) to[k] = codes[x[k].bits] * scale;
    }
  }
}

}  // namespace smla
