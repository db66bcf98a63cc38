#pragma once

#include <vector>

#include "device/device_tensor.h"
#include "device/streams.h"
#include "engine/step_tensors.h"
#include "sparsemla/layer.h"

namespace smla {

/// Sizes that a step's tensors are padded to.
struct StepSizes {
  std::int64_t tokens = 0;
  std::int64_t requests = 0;
  std::int64_t max_seq_len = 0;
  std::vector<std::int64_t> columns;  ///< of each group's block table
  friend bool operator==(const StepSizes&, const StepSizes&) = default;
};

/// As large as the batch itself.
StepSizes exact_sizes(const StepTensors& batch);
/// As large as every decode step is made whose tokens, requests and lengths are about as many: tokens and requests to
/// 1, 2, 4, 8, 16 and multiples of 16, lengths to powers of two from 1,024 on.
StepSizes padded_sizes(const StepTensors& batch, const KvLayout& layout, std::int64_t max_model_len);

/// A step's batch in the memory of the device that runs it.
class DeviceStep {
 public:
  /// Copies a batch and its hidden states there. Padding requests have no tokens and no blocks, padding tokens no
  /// request. Over the same sizes every tensor keeps its address. @return views of what was copied; the host's copies
  /// live until the next upload.
  StepBatch upload(DeviceKind device, const StepTensors& batch, const HostTensor& hidden, const StepSizes& sizes,
                   Stream stream);
  TensorView x() { return x_.view(); }  ///< [tokens, hidden] the residual stream
  TensorView y() { return y_.view(); }  ///< [tokens, hidden] a layer's output

 private:
  DeviceTensor query_start_loc_;
  DeviceTensor seq_lens_;
  DeviceTensor positions_;
  std::vector<DeviceTensor> tables_;
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

/// A decode step of one size, recorded once. It owns all that its addresses name but weights, caches and workspace.
struct DecodeGraph {
  StepSizes sizes;
  DeviceStep step;
  StepMetadata metadata;
  std::vector<LayerPlan> plans;
  std::vector<SeenLayer> seen;  ///< one a layer when the engine is observed
  Graph graph;
};

}  // namespace smla
