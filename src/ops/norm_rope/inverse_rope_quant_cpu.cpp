#include <algorithm>

#include "device/simd_generic.h"
#include "ops/norm_rope/implementations.h"
#include "ops/norm_rope/kernels.h"
#include "ops/norm_rope/quantise.h"
#include "ops/norm_rope/scalar.h"

namespace smla {

namespace {

constexpr int kGroup = InverseRopeQuant::kGroup;

/// One token's heads of one group.
void quantise_row(const InverseRopeQuant::Problem& problem, const InverseRopeQuant::Args& args, std::int64_t g,
                  std::int64_t t, const float* cosines) {
  const std::int64_t heads = problem.heads / problem.groups;
  const int nope = problem.dim - problem.rope_dim;
  const int pairs = problem.rope_dim / 2;
  const std::int64_t chunks = problem.dim / kGroup;
  const bool packed = problem.scale == OutputScale::kUe8m0x4;
  float sines[kMaxRopeRow / 2];
  for (int i = 0; i < pairs; ++i) sines[i] = -cosines[pairs + i];  // e*c - o*(-s) has the bits of e*c + o*s
  auto* values = static_cast<std::uint8_t*>(args.values.data) + g * args.values.stride[0] + t * args.values.stride[1];
  auto* scales =
      static_cast<std::uint32_t*>(args.scales.data) + g * args.scales.stride[0] + t;  // 4 bytes, whatever they hold
  std::uint32_t word = 0;
  for (std::int64_t h = 0; h < heads; ++h) {
    float x[kMaxRopeRow];
    load_chunk<GenericWord>(row_of(args.x, t, g * heads + h), problem.in, 0, problem.dim, x);
    rotate_pairs(x + nope, pairs, cosines, sines);
    for (std::int64_t c = 0; c < chunks; ++c) {
      const std::int64_t k = h * chunks + c;
      const int e = quantise_group(
          kGroup, [&](int i) { return x[c * kGroup + i]; },
          [&](int i, float v) { values[k * kGroup + i] = e4m3_bits(v); });
      if (!packed) {
        scales[k * args.scales.stride[1]] = __builtin_bit_cast(std::uint32_t, exp2_int(e));
        continue;
      }
      word |= static_cast<std::uint32_t>(e + 127) << (8 * (k % 4));
      if (k % 4 == 3 || k + 1 == heads * chunks) {
        scales[k / 4 * args.scales.stride[1]] = word;
        word = 0;
      }
    }
  }
}

}  // namespace

// The reference's arithmetic on whole heads; threads split (token, group) pairs, so that the four scales of a word
// belong to one thread.
void inverse_rope_quant_cpu(const InverseRopeQuant::Problem& problem, const InverseRopeQuant::Args& args,
                            const RunContext& context) {
  const auto* positions = static_cast<const std::int64_t*>(args.positions.data);
  for (std::int64_t g = 0; g < problem.groups; ++g) {
    for (std::int64_t s = 0; s < args.scales.size(1); ++s) {
      auto* row = static_cast<std::uint32_t*>(args.scales.data) + g * args.scales.stride[0] + s * args.scales.stride[1];
      std::fill(row + problem.tokens, row + args.scales.size(2), 0U);
    }
  }
#pragma omp parallel for num_threads(context.threads) if (problem.tokens * problem.heads * problem.dim > 65536) \
    schedule(static)
  for (std::int64_t item = 0; item < problem.tokens * problem.groups; ++item) {
    const std::int64_t t = item / problem.groups;
    const float* cosines = rope_row(args.cos_sin, positions[t]);
    if (cosines != nullptr) quantise_row(problem, args, item % problem.groups, t, cosines);
  }
}

}  // namespace smla
