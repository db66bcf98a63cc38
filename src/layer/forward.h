#pragma once

#include <chrono>
#include <mutex>

#include "device/memory.h"
#include "device/streams.h"
#include "layer/layer_plan.h"

namespace smla {

/// Streams beside the caller's for the compressor and the indexer of one layer. A forward holds the lock while it queues its work: an event's meaning is
/// that of its last record.
struct SideStreams {
  explicit SideStreams(DeviceKind device)
      : compressor(device), indexer(device), inputs_ready(device), queries_ready(device), compressed(device), indexed(device) {}
  std::mutex lock;
  OwnedStream compressor;
  OwnedStream indexer;
  Event inputs_ready;   ///< all input projections are done
  Event queries_ready;  ///< the latent queries are normed
  Event compressed;
  Event indexed;
};

/// Where a part of a forward is queued, and the scratch that no other part uses at the same time.
struct Lane {
  Stream stream;
  Workspace scratch;
};

/// Runs the parts of a forward and reports the time of each.
class Stopwatch {
 public:
  Stopwatch(LayerObserver* observer, DeviceKind device, Stream stream)
      : observer_(observer), device_(device), stream_(stream), last_(std::chrono::steady_clock::now()) {}
  void lap(Stage stage) {
    if (observer_ == nullptr) return;
    synchronize(device_, stream_);
    const auto now = std::chrono::steady_clock::now();
    observer_->on_stage(stage, std::chrono::duration<double>(now - last_).count());
    last_ = now;
  }

 private:
  LayerObserver* observer_;
  DeviceKind device_;
  Stream stream_;
  std::chrono::steady_clock::time_point last_;
};

/// What the parts of one forward share.
struct Forward {
  const LayerConfig& config;
  const LayerWeights& weights;
  const LayerPlan::Ops& ops;
  const LayerStep& step;
  const LayerCaches& caches;
  const ConstTensorView& cos_sin;
  const LayerBuffers& b;
  Lane main;
  Lane compressor;  ///< the same as `main` without side streams
  Lane indexer;
  SideStreams* side;  ///< null: one part after the other
  LayerObserver* observer;
  Stopwatch& watch;

  /// Whether attention ends with the rotation back. Observers are shown what it was before.
  bool rotates() const { return ops.rotating_attention && observer == nullptr; }
  /// Everything, with a batch's metadata.
  void run(const ConstTensorView& hidden, const TensorView& out) const;
  void input_projections(const ConstTensorView& hidden) const;
  void latent_norms() const;
  void queries_and_window() const;
  void compress() const;
  void index() const;
  void attend() const;
  void output(const ConstTensorView& positions, const TensorView& out) const;

 private:
  /// An input as it is and, where a weight wants it so, in FP8.
  struct Input {
    ConstTensorView x;
    ConstTensorView values{};
    ConstTensorView scales{};
  };
  void project(const Lane& lane, const Plan<Projection>& plan, const Input& x, const ConstTensorView& w, const TensorView& y,
               const ConstTensorView& w_scale = {}) const;
  void compress_into(const Lane& lane, const Plan<CompressStore>& plan, const CompressorWeights& w, const TensorView& kv_score,
                     const ConstTensorView& slots, const ConstTensorView& table, const PagedCache& state, const PagedCache& entries) const;
  void score() const;
};

}  // namespace smla
