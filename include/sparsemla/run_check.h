#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sparsemla/engine.h"
#include "sparsemla/export.h"

namespace SMLA_API smla {

/// One (request, token, layer) whose attention was recomputed in float64.
struct CheckedSample {
  std::int64_t request = 0;
  std::int64_t position = 0;     ///< position of the token
  std::int64_t layer = 0;        ///< index into the run's layers, those that draft last
  std::int64_t model_layer = 0;  ///< index into the model
  int compress_ratio = 1;        ///< of the layer: 1, 4 or 128
  bool computed = false;         ///< false: the run ended before it, or its request was refused
  double bound = 0;              ///< on relative_l2, by how the layer computes
  double relative_l2 = 0;        ///< |got - want| / |want| over the layer's output; infinite where only `want` is zero
  double topk_difference = 0;    ///< share of the chosen entries that are not float64's own choice
  bool topk_ok = true;           ///< the choice lies close to the k-th best score (TopkBound in topk_judge.cpp)
  std::string topk_text{};       ///< what is wrong with the choice; empty when nothing is
};

/// The result of a check.
struct CheckReport {
  std::vector<CheckedSample> samples;  ///< all samples that were picked
  int computed = 0;                    ///< how many of them the run reached and the check recomputed
  double bound = 0;                    ///< largest bound on relative_l2 among the computed samples
  bool passed = false;                 ///< at least one sample was computed, and all that were are within their bounds
  int worst = -1;                      ///< sample with the largest relative_l2; -1: none was computed
};

/// The bound on a checked output's relative l2 error: 0.01, twice as much for E4M3 queries, for an FP8 output
/// projection and for E4M3 weights (on a GPU four times for these); 1e-4 in float32 with none of them. The float64
/// reference rounds where the layer rounds, so that what is left is the order of sums and the codes that it turns over.
double check_bound(const LayerOptions& options, const LayerWeights& weights);

/// Samples of a run against the float64 layer that knows no pages and no chunks: keeps the layer's inputs of the
/// sampled requests while the run goes on and recomputes at the end, attending over the run's own top-k set, which is
/// judged apart. Weights, scales and rope tables are made anew from the options, not taken from the engine.
class RunCheck : public EngineObserver {
 public:
  /// Picks `samples` places among `requests` by the seed; every layer kind gets its turn.
  RunCheck(std::span<const RequestSpec> requests, const EngineOptions& options, int samples);
  ~RunCheck() override;

  /// Inputs of the sampled requests up to their last samples, on the samples' layers.
  bool wants(std::int64_t layer, const StepRow& row) const override;
  void on_layer(std::int64_t layer, std::span<const StepRow> rows, const ConstTensorView& input,
                const ConstTensorView& output, const ConstTensorView& topk) override;

  /// What the blocks of the layers that draft see.
  void on_context(std::span<const StepRow> rows, const ConstTensorView& hidden) override;
  void on_draft_block(std::int64_t layer, std::span<const StepRow> rows, const ConstTensorView& input,
                      const ConstTensorView& output) override;

  /// Recomputes what was kept. @param progress called after each sample with the number done.
  CheckReport finish(const std::function<void(int)>& progress = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace smla
