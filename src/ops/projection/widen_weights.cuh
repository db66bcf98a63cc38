#pragma once

#include <cstdint>

#include "device/launch.cuh"
#include "device/numbers.cuh"
#include "ops/projection/widen_codes.cuh"
#include "sparsemla/ops/projection.h"

namespace smla::projection {

/// NVFP4 weights that become bf16 numbers in memory.
struct WidenedWeights {
  const std::uint8_t* codes = nullptr;   ///< two a byte, aligned to 8 bytes
  const std::uint8_t* scales = nullptr;  ///< one for each Projection::kNvfp4Group codes
  const float* global_scale = nullptr;
  std::int64_t numbers = 0;  ///< a multiple of Projection::kNvfp4Group
  BF16* widened = nullptr;   ///< exact but for factors[0], aligned to 16 bytes
  float* factors = nullptr;  ///< two: what sums of the widened numbers are multiplied by, and zero
};

namespace detail {

constexpr int kWidenThreads = 256;

/// A thread widens the codes of a scale.
__global__ void __launch_bounds__(kWidenThreads) widen(const __grid_constant__ WidenedWeights w) {
  const std::int64_t group = static_cast<std::int64_t>(blockIdx.x) * kWidenThreads + threadIdx.x;
  if (group == 0) {
    w.factors[0] = kNvfp4Unit * *w.global_scale;
    w.factors[1] = 0;
  }
  if (group >= w.numbers / Projection::kNvfp4Group) return;
  const uint2 codes = reinterpret_cast<const uint2*>(w.codes)[group];
  const std::uint32_t scale = widen_nvfp4_scale(w.scales[group], 0);
  auto* to = reinterpret_cast<uint4*>(w.widened) + 2 * group;
  to[0] = in_code_order(widen_nvfp4(codes.x, scale));
  to[1] = in_code_order(widen_nvfp4(codes.y, scale));
}

}  // namespace detail

inline void widen_weights(const WidenedWeights& w, cudaStream_t stream) {
  const std::int64_t groups = w.numbers / Projection::kNvfp4Group;
  const std::int64_t blocks = (groups + detail::kWidenThreads - 1) / detail::kWidenThreads;
  detail::widen<<<static_cast<unsigned>(blocks), detail::kWidenThreads, 0, stream>>>(w);
  check_launch("projection");
}

}  // namespace smla::projection
