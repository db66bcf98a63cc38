#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace smla::bench {

/// Which clock measures. On a machine that others use too, kCpu still tells two kernels apart; it hides waiting and
/// uneven shares of threads.
enum class Clock : std::uint8_t {
  kWall,  ///< wall time: what a user waits
  kCpu,   ///< processor time of the whole process, divided by the threads
};
double seconds_now(Clock clock, int threads);

/// How long to measure one thing.
struct MeasureOptions {
  Clock clock = Clock::kWall;
  int threads = 1;            ///< the number that kCpu divides by
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
  double reading = 0;  ///< bytes a second that were read in turn with the calls, their median; 0: none were
};

class MemoryReader;

/// Median and percentiles by nearest rank. @throws InvalidArgument without a time.
Timing summarize(std::vector<double> seconds);

/// Calls `run(0)`, `run(1)`, ... and times each. The first calls are warm-up (at least one, and a fifth of
/// min_seconds); measured calls follow until both limits are reached. `run` takes other inputs for each number, so that
/// a CPU's caches hold no more of them than they would for a user. With `beside`, memory is read between the calls for
/// as long as they take: on a machine that is not quiet a call's share of the bandwidth is that of its own minute.
Timing measure(const MeasureOptions& options, const std::function<void(std::int64_t call)>& run,
               MemoryReader* beside = nullptr);

}  // namespace smla::bench
