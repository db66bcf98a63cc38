#include "run_times.h"

#include <algorithm>
#include <cmath>

namespace smla {

Spread spread(std::vector<double> seconds) {
  Spread s{.count = seconds.size()};
  if (seconds.empty()) return s;
  std::ranges::sort(seconds);
  const auto at = [&](double q) {  // nearest rank
    const auto rank = static_cast<std::size_t>(std::ceil(q * static_cast<double>(seconds.size())));
    return 1e3 * seconds[std::clamp<std::size_t>(rank, 1, seconds.size()) - 1];
  };
  for (const double v : seconds) s.mean += 1e3 * v / static_cast<double>(seconds.size());
  s.p50 = at(0.50);
  s.p99 = at(0.99);
  return s;
}

Spread ttft(const std::vector<RequestResult>& results, double arrival_speed) {
  std::vector<double> v;
  for (const RequestResult& q : results) {
    const double arrival = arrival_speed > 0 ? q.spec.arrival_seconds : 0;
    if (q.first_token_seconds >= 0) v.push_back(q.first_token_seconds - arrival);
  }
  return spread(std::move(v));
}

Spread tpot(const std::vector<RequestResult>& results) {
  std::vector<double> v;
  for (const RequestResult& q : results) {
    if (q.finish_seconds >= 0 && q.spec.output_tokens > 1) {
      v.push_back((q.finish_seconds - q.first_token_seconds) / static_cast<double>(q.spec.output_tokens - 1));
    }
  }
  return spread(std::move(v));
}

}  // namespace smla
