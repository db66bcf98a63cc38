#include <algorithm>
#include <cmath>
#include <limits>

#include "core/codecs.h"
#include "ops/attention/implementations.h"

namespace smla {

// lse = ln sum_i exp(lse_i);  o = sum_i exp(lse_i - lse) o_i / (1 + exp(sink - lse)).  No slice with a key: o = 0, lse
// = +inf.
void merge_partials_ref(const MergePartials::Problem& problem, const MergePartials::Args& args, const RunContext&) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const auto& po = args.partial_o;
  const auto& pl = args.partial_lse;
  for (std::int64_t t = 0; t < problem.tokens; ++t) {
    for (std::int64_t h = 0; h < problem.heads; ++h) {
      const auto lse_of = [&](std::int64_t s) {
        return static_cast<double>(pl.as<float>()[s * pl.stride[0] + t * pl.stride[1] + h * pl.stride[2]]);
      };
      double largest = -kInf;
      for (std::int64_t s = 0; s < problem.slices; ++s) largest = std::max(largest, lse_of(s));
      double sum = 0;
      for (std::int64_t s = 0; s < problem.slices && largest != -kInf; ++s) sum += std::exp(lse_of(s) - largest);
      const double lse = largest == -kInf ? kInf : largest + std::log(sum);
      const double sink = args.sink.absent() ? -kInf : args.sink.as<float>()[h * args.sink.stride[0]];
      const double denominator = 1.0 + std::exp(sink - lse);
      for (int d = 0; d < problem.dim; ++d) {
        double o = 0;
        for (std::int64_t s = 0; s < problem.slices && denominator != kInf; ++s) {
          if (lse_of(s) == -kInf) continue;  // what such a slice holds counts nothing, NaN included
          o += std::exp(lse_of(s) - lse) / denominator *
               po.as<float>()[s * po.stride[0] + t * po.stride[1] + h * po.stride[2] + d];
        }
        const std::int64_t i = t * args.o.stride[0] + h * args.o.stride[1] + d;
        if (problem.o == DType::kBF16) {
          args.o.as<BF16>()[i] = to_bf16(static_cast<float>(o));
        } else {
          args.o.as<float>()[i] = static_cast<float>(o);
        }
      }
      if (!args.lse.absent())
        args.lse.as<float>()[t * args.lse.stride[0] + h * args.lse.stride[1]] = static_cast<float>(lse);
    }
  }
}

}  // namespace smla
