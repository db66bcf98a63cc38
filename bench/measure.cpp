#include "bench/measure.h"

#include <algorithm>
#include <chrono>
#include <ctime>

#include "bench/machine.h"
#include "sparsemla/error.h"

namespace smla::bench {

namespace {

constexpr double kWarmUpShare = 0.2;

}  // namespace

double seconds_now(Clock clock, int threads) {
  if (clock == Clock::kWall)
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  std::timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9) / threads;
}

Timing summarize(std::vector<double> seconds) {
  if (seconds.empty()) throw InvalidArgument("bench: got no times, expected at least one");
  std::ranges::sort(seconds);
  const auto rank = [&](std::size_t percent) {
    return seconds[std::min((seconds.size() * percent) / 100, seconds.size() - 1)];
  };
  return {.runs = static_cast<std::int64_t>(seconds.size()),
          .median = rank(50),
          .p10 = rank(10),
          .p90 = rank(90),
          .best = seconds[0]};
}

Timing measure(const MeasureOptions& options, const std::function<void(std::int64_t call)>& run, MemoryReader* beside) {
  const auto now = [&] { return seconds_now(options.clock, options.threads); };
  std::int64_t call = 0;
  const double start = now();
  do {
    run(call++);
  } while (now() - start < kWarmUpShare * options.min_seconds);
  std::vector<double> seconds;
  std::vector<double> reading;  // bytes a second
  double spent = 0;
  double read = 0;
  while (seconds.empty() || spent < options.min_seconds ||
         static_cast<std::int64_t>(seconds.size()) < options.min_runs) {
    const double before = now();
    run(call++);
    seconds.push_back(now() - before);
    spent += seconds.back();
    while (beside != nullptr && read < spent) {
      const double begin = now();
      reading.push_back(beside->read(options.clock));
      read += now() - begin;
    }
  }
  Timing out = summarize(std::move(seconds));
  if (!reading.empty()) out.reading = summarize(std::move(reading)).median;
  return out;
}

}  // namespace smla::bench
