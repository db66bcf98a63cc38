#pragma once

#include <cstdint>
#include <vector>

#include "core/host_tensor.h"
#include "engine/scheduler.h"

namespace smla {

/// The tensors of one step but its block tables (BlockTables), alive until it is complete.
struct StepTensors {
  std::vector<Scheduled> parts;
  std::vector<StepRow> rows;   ///< one a token, in batch order
  HostTensor query_start_loc;  ///< [requests+1] I32
  HostTensor seq_lens;         ///< [requests] I32
  HostTensor positions;        ///< [tokens] I64
  std::int64_t max_seq_len = 0;
};

/// Lays out what was scheduled, tosses the coins of its drafts and plants wrong positions if that was asked for.
StepTensors make_step(std::vector<Scheduled> parts, const EngineOptions& options);

/// Element type of hidden states.
DType activations_of(const EngineOptions& options);

/// Hidden states of the step's tokens [tokens, hidden].
HostTensor step_inputs(const StepTensors& batch, const EngineOptions& options);

}  // namespace smla
