#pragma once

#include <chrono>

#include "layer/layer_plan.h"

namespace smla {

/// Runs the parts of a forward and reports the time of each.
class Stopwatch {
 public:
  explicit Stopwatch(LayerObserver* observer) : observer_(observer), last_(std::chrono::steady_clock::now()) {}
  void lap(Stage stage) {
    if (observer_ == nullptr) return;
    const auto now = std::chrono::steady_clock::now();
    observer_->on_stage(stage, std::chrono::duration<double>(now - last_).count());
    last_ = now;
  }

 private:
  LayerObserver* observer_;
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
  Workspace scratch;
  Stream stream;
  LayerObserver* observer;
  Stopwatch& watch;

  void project(const Plan<Projection>& plan, const ConstTensorView& x, const ConstTensorView& w, const TensorView& y) const;
  void input_projections(const ConstTensorView& hidden) const;
  void queries_and_window() const;
  void compress() const;
  void index() const;
  void score() const;
  void attend() const;
  void output(const ConstTensorView& positions, const TensorView& out) const;
};

}  // namespace smla
