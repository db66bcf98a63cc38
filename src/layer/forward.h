#pragma once

#include <chrono>

#include "device/memory.h"
#include "layer/grouped_views.h"
#include "layer/joint_products.h"
#include "layer/layer_plan.h"
#include "layer/side_streams.h"

namespace smla {

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
  const LayerOptions& options;
  const LayerWeights& weights;
  const LayerPlan::Ops& ops;
  const LayerStep& step;
  const LayerCaches& caches;
  const ConstTensorView& cos_sin;
  const LayerBuffers& b;
  Lane main;
  Lane index_lane;   ///< compressors and indexer; beside joint products and without a side stream `main`'s stream
  SideStream* side;  ///< null: one part after the other
  LayerObserver* observer;
  Stopwatch& watch;
  Communicator* tensor;   ///< sums outputs; null: one rank
  Communicator* context;  ///< of the ranks that share the entries; null: one rank

  /// Whether the attention kernel norms and rotates the projected queries itself, and whether it rotates its output
  /// back. It does neither in an observed forward: the observer is shown queries and output as they are in between.
  bool has_query_prologue() const { return ops.query_prologue && observer == nullptr; }
  /// Whether attention quantises its output.
  bool quantises() const { return ops.fused_attention_quantises && observer == nullptr; }
  bool has_output_epilogue() const { return ops.output_epilogue && observer == nullptr; }
  /// Everything, with a batch's metadata.
  void run(const ConstTensorView& hidden, const TensorView& out) const;
  /// Joint products make what compressors and indexer read, too.
  void latent_projections(const ConstTensorView& hidden) const;
  void compressor_projections(const ConstTensorView& hidden) const;
  void latent_norms(const Lane& lane, bool beside_previous = false) const;
  /// Joint products make the indexer's queries, too.
  void queries() const;
  /// The indexer's queries, and the others on the side stream if there is one, there with the keys' norms where
  /// products norm the queries.
  void queries_apart() const;
  void window() const;
  void compress(const Lane& lane, bool beside_previous = false) const;
  /// The same on a stream of their own, beside the products of the latent queries; the indexer's scores wait for them.
  void compress_apart() const;
  bool compresses_apart() const { return ops.compressors_apart && side != nullptr; }
  bool norms_beside_compressor() const;
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
  void project(const Lane& lane, const Plan<Projection>& plan, const Input& x, const LinearWeight& weight,
               const TensorView& y) const;
  void run_joint(const Plan<JointProjection>& plan, const JointProduct& product) const {
    plan.run(product.args, main.scratch, main.stream);
  }
  void score() const;
};

}  // namespace smla
