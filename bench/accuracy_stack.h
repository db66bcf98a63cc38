#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/accuracy.h"
#include "checkpoint/linear.h"
#include "core/host_tensor.h"
#include "engine/synthetic.h"
#include "layer/placed_layer.h"
#include "sparsemla/layer.h"
#include "sparsemla/model_config.h"

namespace smla::bench {

using Numbers = std::vector<double>;

/// The random model and a request through it. The last tokens of the request pass through the stack:
/// h = RMSNorm(x), x <- x + RMSNorm(attention(h)), in float64 but for attention. For the tokens before them each
/// layer's h is drawn, exact in bf16.
class AccuracyModel {
 public:
  AccuracyModel(const AccuracyOptions& options, std::int64_t context);

  std::int64_t context() const { return context_; }
  std::int64_t measured() const { return measured_; }
  std::int64_t first() const { return context_ - measured_; }  ///< the first measured position
  std::int64_t layers() const { return config_.num_layers; }
  const ModelConfig& config() const { return config_; }
  const LayerWeights& weights(std::int64_t layer) const { return weights_[static_cast<std::size_t>(layer)].views; }
  /// Embeddings of the measured tokens, a row each.
  std::vector<Numbers> embeddings() const;
  /// h of position `position` < first() at a layer, BF16 or F32 [hidden].
  void drawn(std::int64_t layer, std::int64_t position, const TensorView& row) const;
  /// The next tokens that a greedy model would take behind stacks that end with these x.
  std::vector<std::int64_t> greedy(const std::vector<Numbers>& rows) const;

 private:
  std::int64_t greedy(const Numbers& x) const;

  ModelConfig config_;
  std::int64_t context_;
  std::int64_t measured_;
  std::int64_t vocabulary_;
  std::uint64_t seed_;
  std::vector<OwnedLayerWeights> weights_;
  std::vector<float> unembedding_;  ///< [vocabulary, hidden]
};

/// x / sqrt(mean(x^2)).
Numbers normed(const Numbers& x);

/// What float64 gives for the measured tokens.
struct AccuracyTruth {
  std::vector<std::vector<Numbers>> outputs;  ///< attention(h), by layer and token
  std::vector<HostTensor> topk;               ///< by layer [measured, index_topk] I32, ascending, -1 behind; C4A layers
  std::vector<Numbers> end;                   ///< x behind the last layer
  std::vector<std::int64_t> greedy;
};
AccuracyTruth float64_truth(const AccuracyModel& model);

/// Layers under test: how they compute, and how their weights are stored.
struct AccuracyCase {
  std::string group;
  std::string name;
  LayerOptions options{};
  LinearEncoding weights = LinearEncoding::kPlain;  ///< of the linear weights that checkpoints quantise
  bool keep_fp8 = false;                            ///< LoadOptions::keep_fp8
  bool hadamard = false;
};

/// Runs the model through such layers, once with float64's choice of entries and once with their own.
AccuracyRow measure_case(const AccuracyModel& model, const AccuracyTruth& truth, const AccuracyCase& c);

}  // namespace smla::bench
