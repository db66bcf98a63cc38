#pragma once

#include <cstddef>
#include <vector>

#include "run_report.h"

namespace smla {

/// Mean and percentiles of seconds, in milliseconds.
struct Spread {
  std::size_t count = 0;
  double mean = 0, p50 = 0, p99 = 0;
};

Spread spread(std::vector<double> seconds);
/// Times to the first token of the requests that got so far.
Spread ttft(const std::vector<RequestResult>& results, double arrival_speed);
/// Times a token after the first of finished requests.
Spread tpot(const std::vector<RequestResult>& results);

}  // namespace smla
