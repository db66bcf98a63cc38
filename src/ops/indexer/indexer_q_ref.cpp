#include <algorithm>
#include <cmath>
#include <vector>

#include "cache/row_codec.h"
#include "core/codecs.h"
#include "ops/indexer/implementations.h"

namespace smla {

namespace {

float load(const ConstTensorView& t, std::int64_t at) {
  return t.dtype == DType::kBF16 ? to_float(t.as<BF16>()[at]) : t.as<float>()[at];
}

void round_to_bf16(std::vector<float>& x) {
  for (float& v : x) v = to_float(to_bf16(v));
}

}  // namespace

// e' = e c - o s, o' = o c + e s on the last rope_dim dims; [bf16;] [Hadamard [, bf16];] quantise; weights_out = ((w
// [s]) dim^-0.5) heads^-0.5. In fp32, product by product: the bytes are defined by these roundings (spec 2, 4.2), a
// wider accumulation would give others.
void indexer_q_ref(const IndexerQ::Problem& problem, const IndexerQ::Args& args, const RunContext& /*context*/) {
  const RowFormat& format = *problem.format;
  const bool quantised = format.scale != ScaleKind::kNone;
  const auto dim_factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(problem.dim)));
  const auto head_factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(problem.heads)));
  const int half = problem.rope_dim / 2;
  std::vector<float> x(static_cast<std::size_t>(problem.dim));
  for (std::int64_t t = 0; t < problem.tokens; ++t) {
    const std::int64_t pos =
        std::clamp<std::int64_t>(args.positions.as<std::int64_t>()[t], 0, args.cos_sin.size(0) - 1);
    const float* cos_sin = args.cos_sin.as<float>() + pos * args.cos_sin.stride[0];
    for (std::int64_t h = 0; h < problem.heads; ++h) {
      for (int d = 0; d < problem.dim; ++d) x[d] = load(args.q, t * args.q.stride[0] + h * args.q.stride[1] + d);
      for (int i = 0; i < half; ++i) {
        float* pair = x.data() + (problem.dim - problem.rope_dim) + static_cast<std::ptrdiff_t>(2) * i;
        const float e = pair[0];
        const float o = pair[1];
        pair[0] = e * cos_sin[i] - o * cos_sin[half + i];
        pair[1] = o * cos_sin[i] + e * cos_sin[half + i];
      }
      if (quantised) round_to_bf16(x);
      if (problem.hadamard) hadamard(x.data(), problem.dim);
      if (quantised && problem.hadamard) round_to_bf16(x);

      const std::int64_t out = t * args.q_out.stride[0] + h * args.q_out.stride[1];
      float weight = load(args.weights, t * args.weights.stride[0] + h);
      if (!quantised) std::copy(x.begin(), x.end(), args.q_out.as<float>() + out);
      for (int g = 0; g < format.groups(); ++g) {
        const int begin = g * format.group;
        float amax = 0;
        for (int d = begin; d < begin + format.group; ++d) amax = std::max(amax, std::fabs(x[d]));
        if (format.nope == Element::kE4M3) {
          const int e = e4m3_group_exponent(amax, false);
          for (int d = begin; d < begin + format.group; ++d)
            args.q_out.as<E4M3>()[out + d] = to_e4m3(x[d] * exp2_int(-e));
          weight *= exp2_int(e);
        } else {
          const int e = e2m1_group_exponent(amax);
          for (int d = begin; d < begin + format.group; d += 2) {
            const int low = to_e2m1(x[d] * exp2_int(-e));
            const int high = to_e2m1(x[d + 1] * exp2_int(-e));
            args.q_out.as<std::uint8_t>()[out + d / 2] = static_cast<std::uint8_t>(low | (high << 4));
          }
          args.q_scale.as<std::uint8_t>()[t * args.q_scale.stride[0] + h * args.q_scale.stride[1] + g] =
              static_cast<std::uint8_t>(e + 127);
        }
      }
      args.weights_out.as<float>()[t * args.weights_out.stride[0] + h] = weight * dim_factor * head_factor;
    }
  }
}

}  // namespace smla
