#include "ops/norm_rope/implementations.h"
#include "ops/norm_rope/quantise.h"
#include "ops/norm_rope/scalar.h"

namespace smla {

namespace {

/// Number i of a head, rotated back; fp32 throughout.
float rotated(const InverseRopeQuant::Problem& problem, const void* x, const float* cos_sin, int i) {
  const int nope = problem.dim - problem.rope_dim;
  if (i < nope) return load_element(problem.in, x, i);
  const int pair = (i - nope) / 2;
  const float c = cos_sin[pair];
  const float s = cos_sin[problem.rope_dim / 2 + pair];
  const float e = load_element(problem.in, x, nope + 2 * pair);
  const float o = load_element(problem.in, x, nope + 2 * pair + 1);
  return (i - nope) % 2 == 0 ? e * c + o * s : o * c - e * s;
}

}  // namespace

// a = max(max|x|, 1e-10), scale = 2^ceil(log2(a * (1/448))), value = e4m3(clamp(x / scale)) over groups of 128 dims
// (spec 2).
void inverse_rope_quant_ref(const InverseRopeQuant::Problem& problem, const InverseRopeQuant::Args& args,
                            const RunContext&) {
  constexpr int kGroup = InverseRopeQuant::kGroup;
  const std::int64_t heads_of_group = problem.heads / problem.groups;
  const std::int64_t chunks = heads_of_group * problem.dim / kGroup;
  const bool packed = problem.scale == OutputScale::kUe8m0x4;
  const auto scale_at = [&](std::int64_t g, std::int64_t s, std::int64_t t) {
    return g * args.scales.stride[0] + s * args.scales.stride[1] + t;
  };
  for (std::int64_t g = 0; g < problem.groups; ++g) {
    for (std::int64_t s = 0; s < args.scales.size(1); ++s) {
      for (std::int64_t t = problem.tokens; t < args.scales.size(2); ++t) {
        if (packed) args.scales.as<std::int32_t>()[scale_at(g, s, t)] = 0;
        if (!packed) args.scales.as<float>()[scale_at(g, s, t)] = 0.0F;
      }
    }
    for (std::int64_t t = 0; t < problem.tokens; ++t) {
      const float* cos_sin = rope_row(args.cos_sin, args.positions.as<std::int64_t>()[t]);
      if (cos_sin == nullptr) continue;
      E4M3* values = args.values.as<E4M3>() + g * args.values.stride[0] + t * args.values.stride[1];
      std::uint32_t word = 0;
      for (std::int64_t k = 0; k < chunks; ++k) {
        const void* x = row_of(args.x, t, g * heads_of_group + k * kGroup / problem.dim);
        const int begin = static_cast<int>(k * kGroup % problem.dim);
        const int e = quantise_group(
            kGroup, [&](int i) { return rotated(problem, x, cos_sin, begin + i); },
            [&](int i, float v) { values[k * kGroup + i] = to_e4m3(v); });
        if (!packed) args.scales.as<float>()[scale_at(g, k, t)] = exp2_int(e);
        word |= static_cast<std::uint32_t>(e + 127) << (8 * (k % 4));
        if (packed && (k % 4 == 3 || k + 1 == chunks)) {
          args.scales.as<std::int32_t>()[scale_at(g, k / 4, t)] = static_cast<std::int32_t>(word);
          word = 0;
        }
      }
    }
  }
}

}  // namespace smla
