#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "device/device_tensor.h"
#include "device/streams.h"
#include "engine/lru_cache.h"
#include "engine/sight_counts.h"
#include "engine/step_tensors.h"
#include "sparsemla/layer.h"

namespace smla {

/// Sizes that a step's tensors are padded to.
struct StepSizes {
  std::int64_t tokens = 0;
  std::int64_t requests = 0;
  std::int64_t max_seq_len = 0;
  std::int64_t draft_tokens = 0;  ///< of DSpark blocks
  friend bool operator==(const StepSizes&, const StepSizes&) = default;
};

/// 1, 2, 4, 8, 16 or a multiple of 16.
std::int64_t padded_count(std::int64_t n);
/// As large as the batch itself.
StepSizes exact_sizes(const StepTensors& batch);
/// As large as every decode step is made whose tokens, requests and lengths are about as many: tokens and requests to
/// padded_count, lengths to powers of two from 1,024 on.
StepSizes padded_sizes(const StepTensors& batch, std::int64_t max_model_len);

/// A step's batch in the memory of the device that runs it.
class DeviceStep {
 public:
  /// Copies a batch and its hidden states there. Padding requests have no tokens, padding tokens no request. Over
  /// sizes that are nowhere larger than those of an earlier call every tensor keeps its address.
  /// @param tables  of the batch's requests and the padding ones behind them (BlockTables::views)
  /// @return views of what was copied; the host's copies live until the next upload.
  StepBatch upload(DeviceKind device, const StepTensors& batch, const HostTensor& hidden, const StepSizes& sizes,
                   std::vector<ConstTensorView> tables, Stream stream);
  TensorView x() { return x_.view(); }  ///< [tokens, hidden] the residual stream
  TensorView y() { return y_.view(); }  ///< [tokens, hidden] a layer's output

 private:
  DeviceTensor query_start_loc_;
  DeviceTensor seq_lens_;
  DeviceTensor positions_;
  DeviceTensor x_;
  DeviceTensor y_;
  std::vector<std::int32_t> host_start_;
  std::vector<std::int32_t> host_lens_;
};

/// What an observer is shown of a layer of a recorded step.
struct SeenLayer {
  DeviceTensor input;
  DeviceTensor output;
  DeviceTensor topk;
};

/// A decode step of one size, recorded once.
struct DecodeGraph {
  std::vector<std::optional<LayerPlan>> plans;  ///< one a layer; without blocks none of those that draft
  std::vector<SeenLayer> seen;                  ///< likewise, when the engine is observed
  Graph graph;
};

/// The recorded decode steps of an engine and the memory that they share: each step of them has its batch, activations
/// and metadata at the same addresses, made for the largest step once, so that a recording has no memory but its own.
struct DecodeGraphs {
  /// More than an engine of 256 seats and 1,048,576 tokens has sizes.
  static constexpr std::int64_t kMaxSizes = 1024;
  DecodeGraphs(std::int64_t max_graphs, std::int64_t max_bytes, std::int64_t steps_before)
      : recorded(max_graphs, max_bytes), sights(kMaxSizes, steps_before) {}
  DeviceStep step;
  std::unique_ptr<StepMetadata> metadata;  ///< null until the first decode step
  DeviceTensor workspace;                  ///< as large as any decode step needs
  LruCache<StepSizes, DecodeGraph> recorded;
  SightCounts<StepSizes> sights;  ///< of steps whose size has no recording
};

}  // namespace smla
