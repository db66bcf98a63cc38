#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sparsemla/run_check.h"

namespace smla {

/// Judges a layer's choice among the scores of the visible entries, float64's: writes topk_ok, topk_text and
/// topk_difference.
/// @param fp8_inputs  whether some projection's input is rounded to FP8
void judge_topk(std::span<const std::int32_t> chosen, const std::vector<double>& scores, std::int64_t k,
                bool fp8_inputs, CheckedSample& sample);

}  // namespace smla
