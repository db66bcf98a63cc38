#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "layer/op_planner.h"
#include "sparsemla/layer.h"
#include "sparsemla/ops/attention.h"
#include "sparsemla/ops/index.h"

namespace smla {

/// What a front-end plans the attention of one step from.
struct AttentionPlanning {
  const OpPlanner& planner;
  const LayerConfig& config;
  const StepShape& shape;
  const LayerCaches& caches;  ///< their formats and block sizes
  bool topk_writes_slots;     ///< C4A: the step's top-k writes slots too, so that nothing is left to look up
  std::optional<SparseAttention::QueryPrologue> query_prologue{};    ///< fused with the calls
  std::optional<SparseAttention::OutputEpilogue> output_epilogue{};  ///< fused with the calls
  /// Of calls that are planned without the two for a forward that is observed: those of the others.
  std::optional<SparseAttention::QueryPrologue> others_prologue{};
  std::optional<SparseAttention::OutputEpilogue> others_epilogue{};

  /// With an epilogue that quantises: cleared where a call's kernels do not write E4M3 o. The calls are of no use then.
  bool* quantises = nullptr;

  const LayerOptions& options() const { return planner.options(); }
  /// Columns of the compressed part of an index row; 0 for window-only layers.
  std::int64_t entry_width() const;
  /// First token of prefill r; for the one behind the last the end of the step, padding included.
  std::int64_t prefill_begin(std::int64_t r) const;
  /// The op over tokens [begin, end), its scopes still to be filled in. Strict: refuses what upstream's kernel refuses.
  SparseAttention::Problem problem(std::int64_t begin, std::int64_t end) const;
  /// The same with the layer's caches as scopes, and `entry_columns` columns for the compressed one.
  SparseAttention::Problem paged_problem(std::int64_t begin, std::int64_t end, std::int64_t entry_columns) const;
  /// The plan of a call. With and without prologue and epilogue the same implementation takes it where it can, so that
  /// an observed forward shows the numbers of the others.
  std::optional<Plan<SparseAttention>> attention(const SparseAttention::Problem& problem) const;
};

/// What the attention of one step reads and writes. T tokens, Hp padded heads, d head_dim, K index_topk.
struct AttentionRun {
  const LayerConfig& config;
  const LayerStep& step;
  const LayerCaches& caches;
  ConstTensorView sink;     ///< [H] F32
  ConstTensorView cos_sin;  ///< [L, rope_dim] F32
  ConstTensorView q;        ///< [T, Hp, d]
  TensorView o;             ///< [T, Hp, d]
  TensorView o_values;      ///< [G, T, D] E4M3 in place of it, where the calls quantise
  TensorView o_scales;      ///< of these, columns behind T included; absent: they do not
  TensorView slots;         ///< [T, K] I32, C4A layers of front-ends that read slots
  TensorView slot_lens;     ///< [T] I32, likewise
  void* buffers = nullptr;  ///< AttentionCalls::buffer_bytes()
  Workspace scratch;
  Stream stream;
  TensorView own_topk{};            ///< [T, K] I32 local entries, C4A layers of context-parallel ranks
  Communicator* context = nullptr;  ///< of context-parallel ranks

  /// The arguments of the op over tokens [begin, end), its scopes still to be filled in.
  SparseAttention::Args args(std::int64_t begin, std::int64_t end) const;
};

/// The attention of one step as a front-end cuts it into calls (spec 8.5 to 8.7). The formula is the same in each.
class AttentionCalls {
 public:
  AttentionCalls() = default;
  AttentionCalls(const AttentionCalls&) = delete;
  AttentionCalls& operator=(const AttentionCalls&) = delete;
  virtual ~AttentionCalls() = default;
  /// Bytes of the index rows and the gathered rows that a run makes for itself.
  virtual std::size_t buffer_bytes() const { return 0; }
  /// Whether the calls depend on how the step falls into decodes and prefills.
  virtual bool follows_split() const { return true; }
  virtual void run(const AttentionRun& run) const = 0;
};

/// One call for all tokens: each context-parallel rank's rows, then the ranks' results together.
std::unique_ptr<const AttentionCalls> plan_context_calls(const AttentionPlanning& planning);

/// Calls that read the caches where they lie: one scope of window rows, one of compressed entries by their slots.
class TwoScopeCalls {
 public:
  explicit TwoScopeCalls(const AttentionPlanning& planning);
  /// Plans one call over tokens [begin, end).
  void add(const AttentionPlanning& planning, std::int64_t begin, std::int64_t end);
  void run(const AttentionRun& run) const;

 private:
  struct Call {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::optional<Plan<SparseAttention>> attention;
  };
  std::optional<Plan<GlobalTopk>> global_topk_;  ///< C4A: entries to slots, where the top-k has not done it
  std::vector<Call> calls_;
};

}  // namespace smla
