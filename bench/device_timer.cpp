#include "bench/device_timer.h"

#include <algorithm>

#include "sparsemla/error.h"

namespace smla::bench {

namespace {

constexpr std::size_t kTimesL2 = 4;
constexpr std::size_t kLeastSwept = std::size_t{64} << 20;
constexpr double kWarmUpShare = 0.2;

}  // namespace

DeviceTimer::DeviceTimer() : stream_(DeviceKind::kCuda), swept_(DeviceKind::kCuda, std::max(kLeastSwept, kTimesL2 * gpu_facts().l2_bytes), false) {
  fill_bytes(DeviceKind::kCuda, swept_.data(), 0x35, swept_.bytes(), stream());
  gpu_sweep(swept_.data(), swept_.bytes(), stream());  // loaded before it is first recorded
  synchronize(DeviceKind::kCuda, stream());
}

std::vector<GpuRecording> DeviceTimer::record(std::span<const std::function<void()>> calls) const {
  std::vector<GpuRecording> out;
  for (const std::function<void()>& call : calls) {
    call();
    synchronize(DeviceKind::kCuda, stream());
    out.emplace_back(
        stream(), [&] { gpu_sweep(swept_.data(), swept_.bytes(), stream()); }, call);
  }
  return out;
}

void DeviceTimer::replay(const GpuRecording& recording) const {
  recording.launch(stream());
  synchronize(DeviceKind::kCuda, stream());
}

Timing DeviceTimer::time(const MeasureOptions& options, std::span<const GpuRecording> recordings) const {
  if (recordings.empty()) throw InvalidArgument("bench: got no recordings, expected at least one");
  const auto now = [] { return seconds_now(Clock::kWall, 1); };
  const auto round = [&] {
    for (const GpuRecording& r : recordings) r.launch(stream());
    synchronize(DeviceKind::kCuda, stream());
  };
  const double start = now();
  do {
    round();
  } while (now() - start < kWarmUpShare * options.min_seconds);
  std::vector<double> seconds;
  const double measured = now();
  const auto enough = [&] {
    const auto runs = static_cast<std::int64_t>(seconds.size());
    const double spent = now() - measured;
    return runs >= kLeastRuns && spent >= options.min_seconds && (runs >= options.min_runs || spent >= kMostSeconds);
  };
  while (!enough()) {
    round();
    for (const GpuRecording& r : recordings) seconds.push_back(r.seconds());
  }
  return summarize(std::move(seconds));
}

}  // namespace smla::bench
