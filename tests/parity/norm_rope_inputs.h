#pragma once

// Seeded inputs that the cases of the norm_rope family are made from. Shared by parity, property, fuzz and bench
// programs.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>

#include "core/host_tensor.h"

namespace smla::norm_rope_cases {

constexpr std::uint8_t kPoison = 0xA5;

/// Numbers as activations have them: normal, but of very different magnitude from one group of 32 to the next, with
/// zero and tiny groups.
inline void fill_activations(HostTensor& tensor, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  float magnitude = 1.0F;
  for (std::int64_t i = 0; i < tensor.numel(); ++i) {
    if (i % 32 == 0) {
      const auto kind = random() % 16;
      magnitude = kind == 0 ? 0.0F : kind == 1 ? 1e-6F : std::ldexp(1.0F, static_cast<int>(random() % 8) - 4);
    }
    const float v = magnitude * normal(random);
    if (tensor.dtype() == DType::kF32) {
      tensor.as<float>()[i] = v;
    } else {
      tensor.as<BF16>()[i] = to_bf16(v);
    }
  }
}

/// [positions, dim] cos || sin of angles that grow with the position.
inline HostTensor rope_rows(std::int64_t positions, int dim) {
  HostTensor table(DType::kF32, {positions, dim});
  for (std::int64_t p = 0; p < positions; ++p) {
    for (int i = 0; i < dim / 2; ++i) {
      const double angle = static_cast<double>(p) * std::pow(10000.0, -2.0 * i / dim);
      table.as<float>()[p * dim + i] = static_cast<float>(std::cos(angle));
      table.as<float>()[p * dim + dim / 2 + i] = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

inline void poison(HostTensor& tensor) { std::memset(tensor.data(), kPoison, tensor.bytes()); }

}  // namespace smla::norm_rope_cases
