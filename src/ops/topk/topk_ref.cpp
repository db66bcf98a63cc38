#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "ops/topk/implementations.h"

namespace smla {

// Columns 0..n-1 sorted by (numbers before NaN, score descending, column ascending); the first k of them, in ascending
// order.
void topk_ref(const TopK::Problem& problem, const TopK::Args& args, const RunContext& context) {
  const std::int32_t* lens = args.lens.as<std::int32_t>();
  for (std::int64_t row = 0; row < problem.rows; ++row) {
    const float* scores = args.logits.as<float>() + row * args.logits.stride[0];
    std::int32_t* out = args.indices.as<std::int32_t>() + row * args.indices.stride[0];
    std::vector<std::int32_t> columns(static_cast<std::size_t>(std::clamp<std::int64_t>(lens[row], 0, problem.width)));
    std::iota(columns.begin(), columns.end(), 0);
    std::stable_sort(columns.begin(), columns.end(), [scores](std::int32_t a, std::int32_t b) {
      if (std::isnan(scores[a]) || std::isnan(scores[b])) return !std::isnan(scores[a]) && std::isnan(scores[b]);
      return scores[a] > scores[b];
    });
    if (static_cast<std::int64_t>(columns.size()) > problem.k) columns.resize(static_cast<std::size_t>(problem.k));
    std::sort(columns.begin(), columns.end());
    std::fill(std::copy(columns.begin(), columns.end(), out), out + problem.k, -1);
  }
  topk_slots(problem, args, context);
  topk_scores(problem, args);
}

}  // namespace smla
