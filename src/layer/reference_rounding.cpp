#include "layer/reference_rounding.h"

#include <algorithm>
#include <cmath>

#include "layer/layer_plan.h"

namespace smla {

namespace {

constexpr double kLargestE4m3 = 448.0;
constexpr double kLargestE2m1 = 6.0;

/// x to `fraction_bits` bits behind the leading one, ties to even; below 2^least_exponent the spacing stays.
double round_to_bits(double x, int fraction_bits, int least_exponent) {
  if (x == 0 || !std::isfinite(x)) return x;
  const double step = std::ldexp(1.0, std::max(std::ilogb(x), least_exponent) - fraction_bits);
  return std::nearbyint(x / step) * step;
}

double bf16(double x) { return round_to_bits(x, 7, -126); }
double e4m3(double x) { return round_to_bits(std::clamp(x, -kLargestE4m3, kLargestE4m3), 3, -6); }
double e2m1(double x) { return round_to_bits(std::clamp(x, -kLargestE2m1, kLargestE2m1), 1, 0); }

double element(Element stored, double x) {
  switch (stored) {
    case Element::kF32: return x;
    case Element::kBF16: return bf16(x);
    case Element::kE4M3: return e4m3(x);
    case Element::kE2M1: return e2m1(x);
  }
  return x;
}

double largest_magnitude(std::span<const double> x) {
  double most = 0;
  for (const double v : x) most = std::max(most, std::fabs(v));
  return most;
}

/// The smallest power of two that is not below x.
double power_of_two_above(double x) {
  const double power = std::ldexp(1.0, std::ilogb(x));
  return power < x ? 2 * power : power;
}

/// The power-of-two scale of a group of row numbers whose largest magnitude is `amax`.
double group_scale(Element stored, ClampRule clamp, double amax) {
  constexpr double kFloor = 1e-4;
  if (stored == Element::kE2M1)
    return power_of_two_above(std::max(amax, kLargestE2m1 * std::ldexp(1.0, -126)) / kLargestE2m1);
  if (clamp == ClampRule::kScale) return power_of_two_above(std::max(amax / kLargestE4m3, kFloor));
  return power_of_two_above(std::max(amax, kFloor) / kLargestE4m3);
}

}  // namespace

ReferenceRounding ReferenceRounding::of(const LayerOptions& options, float window_scale, float compressed_scale) {
  ReferenceRounding r;
  r.fp8_inputs = may_round_fp8_inputs(options);
  r.fp8_output = options.fp8_output.has_value();
  if (options.precision == Precision::kF32) return r;
  r.activations = true;
  r.rows = options.caches.rows;
  r.index = options.caches.index;
  r.window_scale = window_scale;
  r.compressed_scale = compressed_scale;
  r.fp8_queries = options.q == DType::kE4M3;
  r.q_scale = options.q_scale;
  r.clamp = options.clamp;
  return r;
}

void round_to_bf16(std::span<double> x) {
  for (double& v : x) v = bf16(v);
}

void round_to_e4m3(std::span<double> x, double scale) {
  for (double& v : x) v = e4m3(v / scale) * scale;
}

void round_row(const RowFormat& format, double scale, ClampRule clamp, std::span<double> x) {
  const auto nope = x.first(static_cast<std::size_t>(format.nope_dim));
  if (format.scale == ScaleKind::kPerTensor) {
    round_to_e4m3(nope, scale);
  } else if (format.group > 0) {
    round_to_bf16(nope);
    for (std::size_t begin = 0; begin < nope.size(); begin += static_cast<std::size_t>(format.group)) {
      const auto group = nope.subspan(begin, static_cast<std::size_t>(format.group));
      const double s = group_scale(format.nope, clamp, largest_magnitude(group));
      for (double& v : group) v = element(format.nope, v / s) * s;
    }
  } else {
    for (double& v : nope) v = element(format.nope, v);
  }
  for (double& v : x.subspan(nope.size())) v = element(format.rope, v);
}

void round_projection_input(std::span<double> x) {
  constexpr std::size_t kGroup = 128;
  constexpr double kFloor = 1e-10;
  for (std::size_t begin = 0; begin < x.size(); begin += kGroup) {
    const auto group = x.subspan(begin, std::min(kGroup, x.size() - begin));
    round_to_e4m3(group, power_of_two_above(std::max(largest_magnitude(group), kFloor) / kLargestE4m3));
  }
}

}  // namespace smla
