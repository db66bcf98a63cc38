#pragma once

#include <functional>
#include <span>
#include <vector>

#include "bench/gpu.h"
#include "bench/measure.h"
#include "device/memory.h"
#include "device/streams.h"

namespace smla::bench {

/// Times calls on a GPU. A time is what a call adds to a CUDA graph of an event, a sweep that reads a buffer several
/// times as large as L2, the call, and an event; the sweep removes from L2 what an earlier replay left there. The same
/// graph without the call is replayed in turn with it, and its median is subtracted. So a time contains what a kernel
/// needs behind another kernel, and not what it needs behind an event, which is 2 us more on an H200 and occurs in no
/// layer. A time does not contain the writing of what a call leaves in L2.
class DeviceTimer {
 public:
  DeviceTimer();
  Stream stream() const { return stream_.get(); }

  /// Runs each call once and records it. The calls differ in their inputs; they queue on stream().
  std::vector<GpuRecording> record(std::span<const std::function<void()>> calls) const;
  /// Replays the recordings in turn: first as warm-up, at least once each and for a fifth of min_seconds; then until
  /// both limits of `options` are reached, but no longer than kMaxSeconds. The limits count sweeps too. Half of the
  /// times of a call that does nothing are negative; their spread is the error of all times.
  Timing time(const MeasureOptions& options, std::span<const GpuRecording> recordings) const;
  /// Records the calls and times them.
  Timing time(const MeasureOptions& options, std::span<const std::function<void()>> calls) const {
    return time(options, record(calls));
  }
  /// `launch`: seconds that the caller's thread needs to launch a recorded call. `warm`: seconds from one replay to the
  /// next when replays follow each other without sweeps.
  struct Replay {
    double launch = 0;
    double warm = 0;
  };
  Replay measure_replay(const std::function<void()>& call) const;
  /// Replays a recording once; complete on return.
  void replay(const GpuRecording& recording) const;

  static constexpr double kMaxSeconds = 3;
  static constexpr int kMinRuns = 7;  ///< runs at least, however long they take

 private:
  OwnedStream stream_;
  DeviceMemory swept_;
  std::vector<GpuRecording> idle_;  ///< recordings without a call
};

}  // namespace smla::bench
