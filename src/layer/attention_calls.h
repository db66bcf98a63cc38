#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "layer/chooser.h"
#include "sparsemla/layer.h"
#include "sparsemla/ops/attention.h"
#include "sparsemla/ops/index.h"

namespace smla {

/// One call of attention over tokens [begin, end) of a step. A gathered call first copies its requests' rows into a
/// bf16 workspace.
struct AttentionCall {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::optional<Plan<SparseAttention>> attention;
  std::optional<PrefillChunk> chunk;  ///< gathered: which prefills
  std::optional<Plan<GatherRows>> gather_entries;
  std::optional<Plan<GatherRows>> gather_window;
  std::optional<Plan<CombineTopkWindow>> combine;
};

/// How a front-end cuts a step's attention into calls (spec 8.5 to 8.7). The formula is the same in each.
struct AttentionCalls {
  FrontEnd front_end = FrontEnd::kFlashMla;
  std::vector<AttentionCall> calls;
  std::optional<Plan<GlobalTopk>> global_topk;    ///< C4A: local entries to slots
  std::optional<Plan<MixedSparseIndices>> mixed;  ///< C4A with flashinfer
  std::int64_t gathered_rows = 0;                 ///< of the largest chunk
  std::int64_t combined_rows = 0;                 ///< tokens of the largest gathered call
  std::int64_t combined_width = 0;                ///< columns of its index rows
  std::int64_t mixed_width = 0;                   ///< columns of the mixed matrix
  bool by_split = true;    ///< whether the calls follow the step's split into decodes and prefills
  bool has_slots = false;  ///< C4A: calls read slots, which the top-k or global_topk makes
};

/// What a step's calls do beside their attention: see SparseAttention.
struct AttentionFolds {
  int rope_dim = 0;    ///< dims of o that they rotate back
  int q_rope_dim = 0;  ///< dims of q that they rotate after its norm
  float q_eps = 1e-6F;

  bool any() const { return rope_dim > 0 || q_rope_dim > 0; }
};

/// `chosen_slots`: the step's own top-k writes slots too.
/// @throws Unsupported with upstream's text when the options are strict and a call has no upstream kernel.
AttentionCalls plan_attention_calls(const Chooser& choose, const LayerConfig& config, const StepShape& shape,
                                    const LayerCaches& caches, bool chosen_slots, const AttentionFolds& folds);

/// Where the calls of a step keep what they make.
struct AttentionBuffers {
  ConstTensorView q;         ///< [T, Hp, d]
  ConstTensorView cos_sin;   ///< [L, rope_dim] F32
  TensorView o;              ///< [T, Hp, d]
  TensorView slots;          ///< [T, K] I32
  TensorView slot_lens;      ///< [T] I32
  TensorView gathered;       ///< [rows, d] BF16
  TensorView combined;       ///< [rows, width] I32
  TensorView combined_lens;  ///< [rows] I32
  TensorView mixed;          ///< [T, width] I32
  TensorView mixed_lens;     ///< [T] I32
};

void run_attention_calls(const AttentionCalls& calls, const LayerConfig& config, const LayerStep& step,
                         const LayerCaches& caches, const ConstTensorView& sink, const AttentionBuffers& buffers,
                         Workspace scratch, Stream stream);

}  // namespace smla
