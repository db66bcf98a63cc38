#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "bench/bench.h"
#include "core/host_tensor.h"
#include "sparsemla/ops/projection.h"

namespace smla::bench {

/// A linear map of a layer: `groups` maps of k inputs and n outputs side by side.
struct Linear {
  std::string_view name;
  std::int64_t n = 0;
  std::int64_t k = 0;
  std::int64_t groups = 1;
  DType y = DType::kBF16;
  bool fp8 = true;  ///< whether FP8 checkpoints have it in FP8, and NVFP4 ones in NVFP4
};

/// The dtype of a map's weights.
inline DType weight_dtype(const Options& options, const Linear& linear) {
  if (!linear.fp8) return DType::kBF16;
  if (options.nvfp4_weights) return Projection::kNvfp4;
  return options.fp8_weights ? DType::kE4M3 : DType::kBF16;
}

/// Scales [groups, n, k/16] of NVFP4 weights: powers of two of which neighbours differ, so that one taken for another
/// shows. 2^-8 to 2^-6.
HostTensor nvfp4_scales(std::int64_t groups, std::int64_t n, std::int64_t k);

/// The linear maps of all layer kinds in Options::ratios.
std::vector<Linear> linears(const Options& options);

}  // namespace smla::bench
