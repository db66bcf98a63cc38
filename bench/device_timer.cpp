#include "bench/device_timer.h"

#include <algorithm>

#include "sparsemla/error.h"

namespace smla::bench {

namespace {

constexpr std::size_t kTimesL2 = 4;
constexpr std::size_t kMinSweptBytes = std::size_t{64} << 20;
constexpr double kWarmUpShare = 0.2;

}  // namespace

DeviceTimer::DeviceTimer()
    : stream_(DeviceKind::kCuda),
      swept_(DeviceKind::kCuda, std::max(kMinSweptBytes, kTimesL2 * gpu_facts().l2_bytes), false) {
  fill_bytes(DeviceKind::kCuda, swept_.data(), 0x35, swept_.bytes(), stream());
  gpu_sweep(swept_.data(), swept_.bytes(), stream());  // loaded before it is first recorded
  synchronize(DeviceKind::kCuda, stream());
  constexpr int kIdle = 4;
  for (int i = 0; i < kIdle; ++i) {
    idle_.emplace_back(
        stream(), [&] { gpu_sweep(swept_.data(), swept_.bytes(), stream()); }, [] {});
  }
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

DeviceTimer::Replay DeviceTimer::measure_replay(const std::function<void()>& call) const {
  constexpr int kRounds = 9;
  constexpr int kReplays = 20;
  const GpuRecording recording(
      stream(), [] {}, call);
  replay(recording);
  std::vector<double> launches;
  std::vector<double> warm;
  for (int round = 0; round < kRounds; ++round) {
    const double start = seconds_now(Clock::kWall, 1);
    double last = start;
    for (int i = 0; i < kReplays; ++i) {
      recording.launch(stream());
      const double now = seconds_now(Clock::kWall, 1);
      // Later launches may wait for room in the queue.
      if (i == 0) launches.push_back(now - last);
      last = now;
    }
    synchronize(DeviceKind::kCuda, stream());
    warm.push_back((seconds_now(Clock::kWall, 1) - start) / kReplays);
  }
  return {.launch = summarize(std::move(launches)).median, .warm = summarize(std::move(warm)).median};
}

Timing DeviceTimer::time(const MeasureOptions& options, std::span<const GpuRecording> recordings) const {
  if (recordings.empty()) throw InvalidArgument("bench: got no recordings, expected at least one");
  const auto now = [] { return seconds_now(Clock::kWall, 1); };
  const auto round = [&] {
    for (std::size_t i = 0; i < recordings.size(); ++i) {
      // Twice: the first one also waits while what a call before left in L2 is written to memory. Only the second is
      // measured.
      const GpuRecording& idle = idle_[i % idle_.size()];
      idle.launch(stream());
      idle.launch(stream());
      recordings[i].launch(stream());
    }
    synchronize(DeviceKind::kCuda, stream());
  };
  const double start = now();
  do {
    round();
  } while (now() - start < kWarmUpShare * options.min_seconds);
  std::vector<double> seconds;
  std::vector<double> idle;
  const double measured = now();
  const auto enough = [&] {
    const auto runs = static_cast<std::int64_t>(seconds.size());
    const double spent = now() - measured;
    return runs >= kMinRuns && spent >= options.min_seconds && (runs >= options.min_runs || spent >= kMaxSeconds);
  };
  while (!enough()) {
    round();
    for (std::size_t i = 0; i < std::min(idle_.size(), recordings.size()); ++i) idle.push_back(idle_[i].seconds());
    for (const GpuRecording& r : recordings) seconds.push_back(r.seconds());
  }
  const double nothing = summarize(std::move(idle)).median;
  for (double& s : seconds) s -= nothing;
  return summarize(std::move(seconds));
}

}  // namespace smla::bench
