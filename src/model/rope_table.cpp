#include <algorithm>
#include <cmath>
#include <numbers>

#include "sparsemla/error.h"
#include "sparsemla/model_config.h"

namespace smla {

namespace {

constexpr std::int64_t kMaxPositions = std::int64_t{1} << 24;  // beyond it fp32 no longer holds every position

void check_rope(const RopeConfig& config) {
  const auto fail = [](const char* what, double got, const char* expected) {
    throw InvalidArgument(std::string("rope: ") + what + ": got " + std::to_string(got) + ", expected " + expected);
  };
  if (!(config.theta > 1.0) || !std::isfinite(config.theta)) fail("theta", config.theta, "a finite number above 1");
  if (config.dim < 2 || config.dim % 2 != 0 || config.dim > 4096)
    fail("dim", config.dim, "an even number from 2 to 4096");
  if (!config.yarn) return;
  const YarnConfig& yarn = *config.yarn;
  if (!(yarn.factor >= 1.0) || !std::isfinite(yarn.factor))
    fail("yarn factor", yarn.factor, "a finite number of at least 1");
  if (yarn.original_max_position < 1)
    fail("yarn original_max_position", static_cast<double>(yarn.original_max_position), "at least 1");
  if (!(yarn.beta_fast > 0.0) || !std::isfinite(yarn.beta_fast))
    fail("yarn beta_fast", yarn.beta_fast, "a finite number above 0");
  if (!(yarn.beta_slow > 0.0) || !std::isfinite(yarn.beta_slow))
    fail("yarn beta_slow", yarn.beta_slow, "a finite number above 0");
  if (yarn.beta_fast < yarn.beta_slow)
    fail("yarn beta_fast", yarn.beta_fast, ("at least beta_slow " + std::to_string(yarn.beta_slow)).c_str());
}

/// The (fractional) pair that turns `rotations` times over the original context.
double yarn_dimension(const RopeConfig& config, double rotations) {
  const double context = static_cast<double>(config.yarn->original_max_position);
  return config.dim * std::log(context / (2.0 * std::numbers::pi * rotations)) / (2.0 * std::log(config.theta));
}

}  // namespace

std::vector<float> rope_frequencies(const RopeConfig& config) {
  check_rope(config);
  const int pairs = config.dim / 2;
  std::vector<float> frequencies(static_cast<std::size_t>(pairs));
  for (int i = 0; i < pairs; ++i)
    frequencies[static_cast<std::size_t>(i)] = static_cast<float>(std::pow(config.theta, -2.0 * i / config.dim));
  if (!config.yarn) return frequencies;

  const auto low = static_cast<float>(std::max(std::floor(yarn_dimension(config, config.yarn->beta_fast)), 0.0));
  auto high = static_cast<float>(
      std::min(std::ceil(yarn_dimension(config, config.yarn->beta_slow)), static_cast<double>(config.dim - 1)));
  if (low == high) high += 0.001F;
  const auto factor = static_cast<float>(config.yarn->factor);
  for (int i = 0; i < pairs; ++i) {
    float& f = frequencies[static_cast<std::size_t>(i)];
    const float ramp = std::clamp((static_cast<float>(i) - low) / (high - low), 0.0F, 1.0F);
    f = (f / factor) * ramp + f * (1.0F - ramp);
  }
  return frequencies;
}

std::vector<float> rope_table(const RopeConfig& config, std::int64_t positions) {
  if (positions < 0 || positions > kMaxPositions) {
    throw InvalidArgument("rope table: got " + std::to_string(positions) + " positions, expected 0 to " +
                          std::to_string(kMaxPositions));
  }
  const std::vector<float> frequencies = rope_frequencies(config);
  const std::int64_t pairs = config.dim / 2;
  std::vector<float> table(static_cast<std::size_t>(positions * config.dim));
#pragma omp parallel for schedule(static)
  for (std::int64_t p = 0; p < positions; ++p) {
    float* row = table.data() + p * config.dim;
    for (std::int64_t i = 0; i < pairs; ++i) {
      // The angle is the fp32 product on purpose: every reference shares its rounding, up to 0.03 rad near a million.
      const float angle = static_cast<float>(p) * frequencies[static_cast<std::size_t>(i)];
      row[i] = static_cast<float>(std::cos(static_cast<double>(angle)));
      row[pairs + i] = static_cast<float>(std::sin(static_cast<double>(angle)));
    }
  }
  return table;
}

}  // namespace smla
