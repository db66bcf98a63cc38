#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace smla::bench {

/// What time is. On a machine that others use too, kCpu still tells two kernels apart; it hides waiting and uneven
/// shares of threads.
enum class Clock : std::uint8_t {
  kWall,  ///< the clock on the wall: what a user waits
  kCpu,   ///< processor time of the whole process, divided by the threads
};
double seconds_now(Clock clock, int threads);

/// How long to measure one thing.
struct MeasureOptions {
  Clock clock = Clock::kWall;
  int threads = 1;            ///< that kCpu divides by
  double min_seconds = 0.3;   ///< measured time, warm-up not counted
  std::int64_t min_runs = 5;  ///< measured calls at least
};

/// Times of one thing, in seconds. The median counts; p10 and p90 show the spread.
struct Timing {
  std::int64_t runs = 0;
  double median = 0;
  double p10 = 0;
  double p90 = 0;
  double best = 0;
};

/// Sorted by nearest rank. @throws InvalidArgument without a time.
Timing summarize(std::vector<double> seconds);

/// Calls `run(0)`, `run(1)`, ... and times each: first calls as warm-up (one at least, and a fifth of min_seconds),
/// then until both limits are reached. `run` uses the number to take other inputs from call to call, so that nothing is
/// found in a cache that a user would not find there.
Timing measure(const MeasureOptions& options, const std::function<void(std::int64_t call)>& run);

}  // namespace smla::bench
