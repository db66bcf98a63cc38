#include "engine/topk_judge.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

namespace smla {

namespace {

/// How far a choice may be from float64's.
struct TopkBound {
  double share = 0.10;   ///< of the chosen set that may differ
  double margin = 0.10;  ///< standard deviations around the k-th best score
};

TopkBound topk_bound(bool fp8_inputs) { return fp8_inputs ? TopkBound{.share = 0.10, .margin = 0.25} : TopkBound{}; }

}  // namespace

void judge_topk(std::span<const std::int32_t> chosen, const std::vector<double>& scores, std::int64_t k,
                bool fp8_inputs, CheckedSample& sample) {
  const TopkBound bound = topk_bound(fp8_inputs);
  const std::size_t n = scores.size();
  const std::size_t wanted = std::min(n, static_cast<std::size_t>(k));
  std::vector<bool> in(n, false);
  std::size_t count = 0;
  for (const std::int32_t j : chosen) {
    if (j < 0) continue;
    if (static_cast<std::size_t>(j) >= n || in[static_cast<std::size_t>(j)]) {
      sample.topk_ok = false;
      sample.topk_text =
          "entry " + std::to_string(j) + (static_cast<std::size_t>(j) >= n ? " is not visible" : " was chosen twice");
      return;
    }
    in[static_cast<std::size_t>(j)] = true;
    ++count;
  }
  if (count != wanted) {
    sample.topk_ok = false;
    sample.topk_text = "got " + std::to_string(count) + " entries, expected " + std::to_string(wanted);
    return;
  }
  if (n <= wanted) return;

  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
  std::size_t different = 0;
  for (std::size_t i = 0; i < wanted; ++i) different += in[order[i]] ? 0 : 1;
  sample.topk_difference = static_cast<double>(different) / static_cast<double>(wanted);

  const double mean = std::accumulate(scores.begin(), scores.end(), 0.0) / static_cast<double>(n);
  double variance = 0;
  for (const double s : scores) variance += (s - mean) * (s - mean);
  const double margin = bound.margin * std::sqrt(variance / static_cast<double>(n));
  const double boundary = scores[order[wanted - 1]];
  for (std::size_t j = 0; j < n; ++j) {
    if (in[j] ? scores[j] >= boundary - margin : scores[j] <= boundary + margin) continue;
    sample.topk_ok = false;
    sample.topk_text = "entry " + std::to_string(j) +
                       (in[j] ? " was chosen with score " : " was left out with score ") + std::to_string(scores[j]) +
                       ", k-th best " + std::to_string(boundary) + ", margin " + std::to_string(margin);
    return;
  }
  if (sample.topk_difference > bound.share) {
    sample.topk_ok = false;
    sample.topk_text =
        std::to_string(different) + " of " + std::to_string(wanted) + " entries differ from float64's choice";
  }
}

}  // namespace smla
