#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "cache/row_codec.h"
#include "core/codecs.h"
#include "ops/indexer/implementations.h"

namespace smla {

namespace {

constexpr int kMaxDim = 512;

/// All ones where a > b, else 0; for numbers without sign bit, such as the bits of magnitudes. A subtraction instead of
/// a comparison: the compiler turns comparisons into jumps, and it does not vectorise a loop with jumps.
std::int32_t above(std::int32_t a, std::int32_t b) { return (b - a) >> 31; }
std::int32_t choose(std::int32_t mask, std::int32_t yes, std::int32_t no) { return (yes & mask) | (no & ~mask); }

/// to_e4m3 without branches.
std::int32_t e4m3_code(float x) {
  const std::int32_t u = std::bit_cast<std::int32_t>(x);
  const std::int32_t magnitude = u & 0x7FFF'FFFF;
  const auto raised = static_cast<std::uint32_t>(magnitude) + 0x7'FFFFU +
                      static_cast<std::uint32_t>((magnitude >> 20) & 1);  // of a NaN past the sign bit
  const std::int32_t normal = static_cast<std::int32_t>(raised >> 20) - 960;
  const std::int32_t tiny = std::bit_cast<std::int32_t>(std::bit_cast<float>(magnitude) + 16384.0F) - 0x4680'0000;
  const std::int32_t number = choose(above(0x3C80'0000, magnitude), tiny, normal);
  const std::int32_t finite = choose(above(0x43E8'0000, magnitude), number, 0x7E);
  return ((u >> 24) & 0x80) | choose(above(magnitude, 0x7F80'0000), 0x7F, finite);
}

/// to_e2m1 without branches: the code is the number of thresholds passed.
std::int32_t e2m1_code(float x) {
  const std::int32_t u = std::bit_cast<std::int32_t>(x);
  const std::int32_t magnitude = u & 0x7FFF'FFFF;
  constexpr auto bits_of = [](float v) { return std::bit_cast<std::int32_t>(v); };
  const std::int32_t passed = above(magnitude, bits_of(0.25F)) + above(magnitude, bits_of(0.75F) - 1) +
                              above(magnitude, bits_of(1.25F)) + above(magnitude, bits_of(1.75F) - 1) +
                              above(magnitude, bits_of(2.5F)) + above(magnitude, bits_of(3.5F) - 1) +
                              above(magnitude, bits_of(5.0F));
  return ((u >> 28) & 8) | -passed;
}

void widen(const BF16* from, int n, float* to) {
  for (int i = 0; i < n; ++i) to[i] = to_float(from[i]);
}
void widen(const float* from, int n, float* to) { std::copy_n(from, n, to); }

void round_to_bf16(float* x, int n) {
  for (int i = 0; i < n; ++i) {
    const std::uint32_t u = std::bit_cast<std::uint32_t>(x[i]);
    const std::uint32_t rounded = (u + 0x7FFFU + ((u >> 16) & 1U)) & 0xFFFF'0000U;
    x[i] = std::bit_cast<float>(
        static_cast<std::int32_t>(u & 0x7FFF'FFFFU) > 0x7F80'0000 ? (u | 0x0040'0000U) & 0xFFFF'0000U : rounded);
  }
}

float largest_magnitude(const float* x, int n) {
  std::int32_t amax = 0;
  for (int i = 0; i < n; ++i) {
    const std::int32_t magnitude = std::bit_cast<std::int32_t>(x[i]) & 0x7FFF'FFFF;
    const std::int32_t number =
        magnitude & ~above(magnitude, 0x7F80'0000);  // a NaN is passed over, as by std::max(amax, |x|)
    amax = number > amax ? number : amax;
  }
  return std::bit_cast<float>(amax);
}

void rotate(float* x, const float* cos_sin, int half) {
  for (int i = 0; i < half; ++i) {
    const float e = x[2 * i];
    const float o = x[2 * i + 1];
    x[2 * i] = e * cos_sin[i] - o * cos_sin[half + i];
    x[2 * i + 1] = o * cos_sin[i] + e * cos_sin[half + i];
  }
}

/// One head of fp8: bytes out, the scale returned.
float quantise_fp8(const float* x, int dim, E4M3* out) {
  const int e = e4m3_group_exponent(largest_magnitude(x, dim), false);
  const float inverse = exp2_int(-e);
  std::uint8_t codes[kMaxDim];
  for (int d = 0; d < dim; ++d) codes[d] = static_cast<std::uint8_t>(e4m3_code(x[d] * inverse));
  std::memcpy(out, codes, static_cast<std::size_t>(dim));
  return exp2_int(e);
}

void quantise_mxfp4(const float* x, const RowFormat& format, std::uint8_t* out, std::uint8_t* scales) {
  for (int g = 0; g < format.groups(); ++g) {
    const float* group = x + static_cast<std::ptrdiff_t>(g) * format.group;
    const int e = e2m1_group_exponent(largest_magnitude(group, format.group));
    const float inverse = exp2_int(-e);
    std::int32_t codes[kMaxDim];
    for (int d = 0; d < format.group; ++d) codes[d] = e2m1_code(group[d] * inverse);
    for (int d = 0; d < format.group; d += 2) *out++ = static_cast<std::uint8_t>(codes[d] | (codes[d + 1] << 4));
    scales[g] = static_cast<std::uint8_t>(e + 127);
  }
}

/// Token t: every head through one buffer of floats.
template <class In>
void run_token(const IndexerQ::Problem& problem, const IndexerQ::Args& args, std::int64_t t) {
  const RowFormat& format = *problem.format;
  const bool quantised = format.scale != ScaleKind::kNone;
  const auto dim_factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(problem.dim)));
  const auto head_factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(problem.heads)));
  const std::int64_t pos =
      std::clamp<std::int64_t>(static_cast<const std::int64_t*>(args.positions.data)[t], 0, args.cos_sin.size(0) - 1);
  const float* cos_sin = static_cast<const float*>(args.cos_sin.data) + pos * args.cos_sin.stride[0];
  const In* weights = static_cast<const In*>(args.weights.data) + t * args.weights.stride[0];
  float* weights_out = static_cast<float*>(args.weights_out.data) + t * args.weights_out.stride[0];
  alignas(64) float x[kMaxDim];
  for (std::int64_t h = 0; h < problem.heads; ++h) {
    widen(static_cast<const In*>(args.q.data) + t * args.q.stride[0] + h * args.q.stride[1], problem.dim, x);
    rotate(x + (problem.dim - problem.rope_dim), cos_sin, problem.rope_dim / 2);
    if (quantised) round_to_bf16(x, problem.dim);
    if (problem.hadamard) hadamard(x, problem.dim);
    if (quantised && problem.hadamard) round_to_bf16(x, problem.dim);

    const std::int64_t out = t * args.q_out.stride[0] + h * args.q_out.stride[1];
    float weight = 0;
    widen(weights + h, 1, &weight);
    if (format.nope == Element::kE4M3) {
      weight *= quantise_fp8(x, problem.dim, static_cast<E4M3*>(args.q_out.data) + out);
    } else if (format.nope == Element::kE2M1) {
      std::uint8_t* scales =
          static_cast<std::uint8_t*>(args.q_scale.data) + t * args.q_scale.stride[0] + h * args.q_scale.stride[1];
      quantise_mxfp4(x, format, static_cast<std::uint8_t*>(args.q_out.data) + out, scales);
    } else {
      std::copy_n(x, problem.dim, static_cast<float*>(args.q_out.data) + out);
    }
    weights_out[h] = weight * dim_factor * head_factor;
  }
}

}  // namespace

void indexer_q_cpu(const IndexerQ::Problem& problem, const IndexerQ::Args& args, const RunContext& context) {
  const auto run = problem.in == DType::kBF16 ? run_token<BF16> : run_token<float>;
  const auto threads = static_cast<int>(std::clamp<std::int64_t>(problem.tokens, 1, context.threads));
#pragma omp parallel for num_threads(threads)
  for (std::int64_t t = 0; t < problem.tokens; ++t) run(problem, args, t);
}

}  // namespace smla
