#pragma once

#include <functional>
#include <span>
#include <vector>

#include "bench/gpu.h"
#include "bench/measure.h"
#include "device/memory.h"
#include "device/streams.h"

namespace smla::bench {

/// Times calls on a GPU. A call is recorded as a graph: a sweep that reads a buffer several times as large as L2, an event, the call, an event. What an
/// earlier replay left in L2 is gone when the first event is recorded, and nothing but the call lies between the two.
class DeviceTimer {
 public:
  DeviceTimer();
  Stream stream() const { return stream_.get(); }

  /// Runs each call once and records it. The calls differ in their inputs; they queue on stream().
  std::vector<GpuRecording> record(std::span<const std::function<void()>> calls) const;
  /// Replays the recordings in turn: as warm-up for a fifth of min_seconds, at least once each; then until both limits of `options` are reached, no
  /// longer than kMostSeconds where min_runs is out of reach. Limits count everything, sweeps too; the times are those between the events.
  Timing time(const MeasureOptions& options, std::span<const GpuRecording> recordings) const;
  /// Both.
  Timing time(const MeasureOptions& options, std::span<const std::function<void()>> calls) const { return time(options, record(calls)); }
  /// Host seconds that a launch takes of the caller's thread, and that a replay takes from one to the next when they follow each other, nothing swept.
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
};

}  // namespace smla::bench
