#pragma once

#include <functional>
#include <span>
#include <vector>

#include "bench/gpu.h"
#include "bench/measure.h"
#include "device/memory.h"
#include "device/streams.h"

namespace smla::bench {

/// Times calls on a GPU: what a call adds to a graph. It is recorded as one: an event, a sweep that reads a buffer
/// several times as large as L2, the call, an event; what an earlier replay left in L2 is gone when the call begins.
/// The same without a call is replayed in turn with it, and its median is subtracted. So a time holds what a kernel
/// needs behind another one, and not what it needs behind an event, which is 2 us more on an H200 and in no layer. What
/// a call leaves in L2 to be written to memory later is in no time.
class DeviceTimer {
 public:
  DeviceTimer();
  Stream stream() const { return stream_.get(); }

  /// Runs each call once and records it. The calls differ in their inputs; they queue on stream().
  std::vector<GpuRecording> record(std::span<const std::function<void()>> calls) const;
  /// Replays the recordings in turn: as warm-up for a fifth of min_seconds, at least once each; then until both limits
  /// of `options` are reached, no longer than kMostSeconds where min_runs is out of reach. Limits count everything,
  /// sweeps too. Of a call that does nothing half of the times are negative: what they spread over is how well others
  /// are known.
  Timing time(const MeasureOptions& options, std::span<const GpuRecording> recordings) const;
  /// Both.
  Timing time(const MeasureOptions& options, std::span<const std::function<void()>> calls) const {
    return time(options, record(calls));
  }
  /// Host seconds that a launch takes of the caller's thread, and that a replay takes from one to the next when they
  /// follow each other, nothing swept.
  struct Replay {
    double launch = 0;
    double warm = 0;
  };
  Replay measure_replay(const std::function<void()>& call) const;
  /// One replay, complete on return.
  void replay(const GpuRecording& recording) const;

  static constexpr double kMostSeconds = 3;
  static constexpr int kLeastRuns = 7;  ///< however long they take

 private:
  OwnedStream stream_;
  DeviceMemory swept_;
  std::vector<GpuRecording> idle_;  ///< without a call
};

}  // namespace smla::bench
