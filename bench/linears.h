#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "bench/bench.h"

namespace smla::bench {

/// A linear map of a layer: `groups` maps of k inputs and n outputs side by side.
struct Linear {
  std::string_view name;
  std::int64_t n = 0;
  std::int64_t k = 0;
  std::int64_t groups = 1;
  DType y = DType::kBF16;
  bool fp8 = true;  ///< whether FP8 checkpoints have it in FP8
};

/// The linear maps of all layer kinds in Options::ratios.
std::vector<Linear> linears(const Options& options);

}  // namespace smla::bench
