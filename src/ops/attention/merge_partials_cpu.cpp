#include <algorithm>
#include <cmath>
#include <limits>

#include "core/codecs.h"
#include "ops/attention/implementations.h"

namespace smla {

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr int kChunk = 128;  ///< numbers of a head that are summed at a time, on the stack

/// One head of one row. Weights in double, sums in fp32.
void merge_head(const MergePartials::Problem& problem, const MergePartials::Args& args, std::int64_t t,
                std::int64_t h) {
  const std::int64_t* lse_stride = args.partial_lse.stride.data();
  const auto partial_lse = [&](std::int64_t s) {
    return args.partial_lse.as<float>()[s * lse_stride[0] + t * lse_stride[1] + h * lse_stride[2]];
  };
  double largest = -kInf;
  for (std::int64_t s = 0; s < problem.slices; ++s) largest = std::max<double>(largest, partial_lse(s));
  double sum = 0;
  for (std::int64_t s = 0; s < problem.slices && largest != -kInf; ++s) sum += std::exp(partial_lse(s) - largest);
  const double lse = largest == -kInf ? kInf : largest + std::log(sum);
  const double sink = args.sink.absent() ? -kInf : args.sink.as<float>()[h * args.sink.stride[0]];
  const double denominator = 1.0 + std::exp(sink - lse);

  const std::int64_t* o_stride = args.partial_o.stride.data();
  const std::int64_t row = t * o_stride[1] + h * o_stride[2];
  const std::int64_t out = t * args.o.stride[0] + h * args.o.stride[1];
  for (int begin = 0; begin < problem.dim; begin += kChunk) {
    const int n = std::min(kChunk, problem.dim - begin);
    float total[kChunk] = {};
    for (std::int64_t s = 0; s < problem.slices && denominator != kInf; ++s) {
      const double slice_lse = partial_lse(s);
      if (slice_lse == -kInf) continue;
      const auto weight = static_cast<float>(std::exp(slice_lse - lse) / denominator);
      const float* part = args.partial_o.as<float>() + s * o_stride[0] + row + begin;
      for (int d = 0; d < n; ++d) total[d] += weight * part[d];
    }
    for (int d = 0; d < n; ++d) {
      if (problem.o == DType::kBF16) {
        args.o.as<BF16>()[out + begin + d] = to_bf16(total[d]);
      } else {
        args.o.as<float>()[out + begin + d] = total[d];
      }
    }
  }
  if (!args.lse.absent())
    args.lse.as<float>()[t * args.lse.stride[0] + h * args.lse.stride[1]] = static_cast<float>(lse);
}

}  // namespace

void merge_partials_cpu(const MergePartials::Problem& problem, const MergePartials::Args& args,
                        const RunContext& context) {
  const std::int64_t rows = problem.tokens * problem.heads;
#pragma omp parallel for num_threads(context.threads) schedule(static)
  for (std::int64_t i = 0; i < rows; ++i) merge_head(problem, args, i / problem.heads, i % problem.heads);
}

}  // namespace smla
