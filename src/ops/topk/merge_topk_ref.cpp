#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/topk/implementations.h"

namespace smla {

// All candidates sorted by (numbers before NaN, score descending, global number ascending); the first k of them, by
// their numbers.
void merge_topk_ref(const MergeTopK::Problem& problem, const MergeTopK::Args& args, const RunContext& /*context*/) {
  struct Scored {
    float score;
    std::int64_t entry;
  };
  const auto better = [](const Scored& a, const Scored& b) {
    if (std::isnan(a.score) != std::isnan(b.score)) return std::isnan(b.score);
    if (!std::isnan(a.score) && a.score != b.score) return a.score > b.score;
    return a.entry < b.entry;
  };
  const auto k = static_cast<std::size_t>(problem.k);
  std::vector<Scored> all;
  std::vector<std::int64_t> best;
  for (std::int64_t row = 0; row < problem.rows; ++row) {
    all.clear();
    for (std::int64_t rank = 0; rank < problem.share.ranks; ++rank) {
      const EntryShare share{.rank = rank, .ranks = problem.share.ranks, .interleave = problem.share.interleave};
      const auto* entries =
          args.indices.as<std::int32_t>() + rank * args.indices.stride[0] + row * args.indices.stride[1];
      const auto* scores = args.scores.as<float>() + rank * args.scores.stride[0] + row * args.scores.stride[1];
      for (std::size_t c = 0; c < k; ++c) {
        if (entries[c] >= 0) all.push_back({scores[c], share.global(entries[c])});
      }
    }
    std::sort(all.begin(), all.end(), better);
    if (all.size() > k) all.resize(k);
    best.clear();
    for (const Scored& c : all) best.push_back(c.entry);
    std::sort(best.begin(), best.end());

    auto* own = args.own.as<std::int32_t>() + row * args.own.stride[0];
    std::size_t owned = 0;
    for (const std::int64_t entry : best) {
      if (problem.share.owns(entry)) own[owned++] = static_cast<std::int32_t>(problem.share.local(entry));
    }
    std::fill(own + owned, own + k, -1);
    if (args.chosen.absent()) continue;
    auto* chosen = args.chosen.as<std::int32_t>() + row * args.chosen.stride[0];
    for (std::size_t i = 0; i < k; ++i) chosen[i] = i < best.size() ? static_cast<std::int32_t>(best[i]) : -1;
  }
}

}  // namespace smla
