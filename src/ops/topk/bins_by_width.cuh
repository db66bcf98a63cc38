#pragma once

#include <cstdint>

namespace smla::topk {

// Bins of equal width between the smallest and the largest score of a row. Scores of one row have few exponents, so
// that the first digit of their keys puts most of them into a few bins; bins of equal width hold a few scores each.

/// The order's key of the smallest and the largest finite score (key_of in topk_selection.cuh).
constexpr std::uint32_t kLowestFinite = 0x8000'0000U - 0x7F7F'FFFFU;
constexpr std::uint32_t kHighestFinite = 0x8000'0000U + 0x7F7F'FFFFU;

/// The score of a finite key.
__device__ inline float score_of(std::uint32_t key) {
  return key < 0x8000'0000U ? -__uint_as_float(0x8000'0000U - key) : __uint_as_float(key - 0x8000'0000U);
}

/// Which of kCount bins has a score: never a lower one for a larger score, because each step rounds monotonically.
template <int kCount>
struct BinsByWidth {
  std::uint32_t highest = 0;  ///< key of the largest score
  float first = 0;
  float scale = 0;

  /// Of keys low to high.
  __device__ BinsByWidth(std::uint32_t low, std::uint32_t high) : highest(high) {
    if (low < kLowestFinite || high > kHighestFinite) return;
    first = score_of(low);
    scale = static_cast<float>(kCount - 1) / (score_of(high) - first);
  }
  /// Whether there are finite scores alone, and they differ by something that has an inverse.
  __device__ bool usable() const { return scale > 0 && scale < INFINITY; }
  __device__ std::uint32_t of(float score) const {
    return min(__float2uint_rz((score - first) * scale), static_cast<std::uint32_t>(kCount - 1));
  }
  /// A score that those of a bin and all larger ones reach: where the bin before begins. What is rounded here is far
  /// less than a bin, and rounding keeps the order of numbers.
  __device__ float reached_by(std::uint32_t bin) const {
    const float width = (score_of(highest) - first) / static_cast<float>(kCount - 1);
    return bin == 0 ? first : fmaf(static_cast<float>(bin - 1), width, first);
  }
};

/// The smallest and the largest key of a block, a warp each.
template <int kWarps>
struct Extremes {
  std::uint32_t low[kWarps], high[kWarps];
};

}  // namespace smla::topk
