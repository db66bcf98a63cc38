#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/host_tensor.h"
#include "engine/device_step.h"
#include "engine/step_tensors.h"
#include "sparsemla/step_metadata.h"

namespace smla {

/// The DSpark blocks of a step (spec 6.3): behind the context of each decode that drafts, its newest token and noise,
/// one token a draft. The decodes are those of `batch`, in its order; those that draft nothing have no token.
StepTensors make_draft_blocks(const StepTensors& batch);

/// Hidden states of the blocks' tokens [tokens, hidden]: the newest tokens' own, and one for all noise.
HostTensor draft_inputs(const StepTensors& blocks, const StepTensors& batch, const EngineOptions& options);

/// The sizes of a step's blocks.
inline StepSizes block_sizes(const StepSizes& step) {
  return {.tokens = step.draft_tokens, .requests = step.requests, .max_seq_len = step.max_seq_len};
}

/// The step of the layers that draft, which are the last of a pool's: their metadata, and their batch where they run.
class DraftStep {
 public:
  /// @param pool    caches of all layers
  /// @param configs of all layers
  /// @param stack   layers that do not draft
  DraftStep(const KvLayout& pool, std::span<const LayerConfig> configs, std::size_t stack, FrontEnd front_end,
            DeviceKind device);

  /// Copies blocks and their hidden states to the device, as DeviceStep::upload does.
  /// @param tables one for each group of the pool
  StepBatch upload(DeviceKind device, const StepTensors& blocks, const HostTensor& hidden, const StepSizes& sizes,
                   std::span<const ConstTensorView> tables, std::int64_t drafts, Stream stream);
  StepMetadata& metadata() { return metadata_; }
  TensorView x() { return step_.x(); }  ///< [tokens, hidden] the residual stream
  TensorView y() { return step_.y(); }  ///< [tokens, hidden] a layer's output

 private:
  std::vector<std::size_t> groups_;  ///< of the pool, that draft layers have caches in
  StepMetadata metadata_;
  DeviceStep step_;
};

}  // namespace smla
