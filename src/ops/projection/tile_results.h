#pragma once

// From a tile's sums to its outputs. Included by projection_*.cpp only, after the SIMD word and `using Word`. Internal
// linkage: see device/simd_generic.h.

#include <cstdint>
#include <cstring>

#include "ops/projection/implementations.h"

namespace smla {
namespace {

inline void write_row(const float* sums, std::int64_t n, bool bf16, void* y, std::int64_t offset) {
  std::int64_t j = 0;
  if (bf16) {
    BF16* to = static_cast<BF16*>(y) + offset;
    for (; j + Word::kLanes <= n; j += Word::kLanes) Word::load(sums + j).store_bf16(to + j);
    if (j < n) {
      BF16 last[Word::kLanes];
      Word::load_first(sums + j, static_cast<int>(n - j)).store_bf16(last);
      std::memcpy(to + j, last, static_cast<std::size_t>(n - j) * sizeof(BF16));
    }
  } else {
    std::memcpy(static_cast<float*>(y) + offset, sums, static_cast<std::size_t>(n) * sizeof(float));
  }
}

inline void write_rows(const ProjectionTile& t, float* sums, std::int64_t sums_stride) {
  for (std::int64_t i = 0; i < t.m; ++i) {
    float* row = sums + i * sums_stride;
    if (t.global_scale != nullptr) {
      for (std::int64_t j = 0; j < t.n; ++j) row[j] *= *t.global_scale;
    }
    write_row(row, t.n, t.y_bf16, t.y, i * t.y_stride);
  }
}

}  // namespace
}  // namespace smla
