#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sparsemla/export.h"
#include "sparsemla/front_end.h"
#include "sparsemla/kv_pool.h"
#include "sparsemla/model_config.h"
#include "sparsemla/plan.h"
#include "sparsemla/tensor_view.h"

namespace SMLA_API smla {

/// One step's batch, decodes first and prefills after; shared by all layers (spec 6).
struct StepBatch {
  ConstTensorView query_start_loc;  ///< [R+1] I32, from 0
  ConstTensorView seq_lens;         ///< [R] I32, this step's tokens included; 0 for padding requests
  ConstTensorView positions;        ///< [T] I64; T may exceed query_start_loc's end: the rest is padding
  /// One for each group of the layout, [R, columns] I32, rows of any stride. They are not copied: StepMetadata::build,
  /// advance and the layers of the step read them where they lie, so they must stay until the step is done, and under a
  /// recorded graph as long as the recording. The other tensors are copied by build.
  std::vector<ConstTensorView> block_tables;
  std::int64_t max_seq_len = 0;  ///< upper bound of seq_lens, known on the host
  /// Requests at the head with at most this many tokens are decodes: 1 + draft tokens (spec 6).
  std::int64_t decode_threshold = 1;
  /// false: the decodes are DSpark draft blocks whose tokens see the whole block, the later ones too (spec 6.3).
  bool causal = true;
  std::int64_t dspark_tokens = 0;  ///< draft tokens of DSpark; 0: another way of speculation, or none
  /// The host's copies of query_start_loc and seq_lens: they rule the split and the chunks, while rows are defined by
  /// the tensors alone, which may deal a decode batch's tokens out otherwise (adaptive draft lengths, spec 6.10).
  /// Absent: the tensors are read.
  std::span<const std::int32_t> host_query_start_loc{};
  std::span<const std::int32_t> host_seq_lens{};  ///< [R]
};

/// What a layer's plan knows of a step: counts and the chunks of its prefills, all on the host.
struct StepShape {
  std::int64_t tokens = 0;
  std::int64_t requests = 0;
  std::int64_t max_seq_len = 0;                  ///< upper bound of the lengths
  BatchSplit split;                              ///< decodes first
  std::int64_t window_width = 128;               ///< columns of window_indices
  std::vector<std::int32_t> prefill_query_lens;  ///< [prefills]
  std::vector<std::int32_t> prefill_seq_lens;    ///< [prefills]

  /// All tokens as decodes: for callers that need no more than counts.
  static StepShape decodes(std::int64_t tokens, std::int64_t requests, std::int64_t max_seq_len) {
    return {.tokens = tokens,
            .requests = requests,
            .max_seq_len = max_seq_len,
            .split = {.decodes = requests, .prefills = 0, .decode_tokens = tokens, .prefill_tokens = 0},
            .window_width = 128,
            .prefill_query_lens = {},
            .prefill_seq_lens = {}};
  }
};

/// What one layer reads of the step's metadata. R requests, Rp of them prefills, Td decode tokens.
struct LayerStep {
  std::int64_t tokens = 0;
  std::int64_t requests = 0;
  std::int64_t max_seq_len = 0;        ///< upper bound of the lengths
  BatchSplit split;                    ///< decodes first
  ConstTensorView query_start_loc;     ///< [R+1] I32
  ConstTensorView seq_lens;            ///< [R] I32
  ConstTensorView positions;           ///< [T] I64
  ConstTensorView token_to_req;        ///< [T] I32
  ConstTensorView valid;               ///< [T] BOOL
  ConstTensorView window_slots;        ///< [T] I64
  ConstTensorView window_indices;      ///< [T, window width] I32
  ConstTensorView window_lens;         ///< [T] I32
  ConstTensorView window_block_table;  ///< [R, columns] I32
  ConstTensorView gather_lens;         ///< [Rp] I32: window rows that a prefill gathers (spec 6.4)
  ConstTensorView entry_slots;         ///< [T] I64, compress layers
  ConstTensorView entry_lens;          ///< [T] I32 visible entries, compress layers; 0 for padding
  ConstTensorView topk_lens;          ///< [T] I32 entries that a C4A row holds: min(entry_lens, index_topk), C4A layers
  ConstTensorView entry_counts;       ///< [Rp] I32: entries of a prefill's sequence, seq / ratio, compress layers
  ConstTensorView entry_block_table;  ///< [R, columns] I32, compress layers
  ConstTensorView state_slots;        ///< [T] I64, compress layers
  ConstTensorView state_block_table;  ///< [R, columns] I32
  ConstTensorView index_state_slots;  ///< C4A layers that choose
  ConstTensorView index_state_block_table;  ///< [R, columns] I32
  ConstTensorView dense_indices;            ///< [T, W] I32 global, C128A layers
  ConstTensorView dense_lens;               ///< [T] I32, C128A layers
  ConstTensorView dense_local;              ///< [T - Td, W] I32 local, C128A layers' prefills
  ConstTensorView
      mixed_indices;  ///< [T, window width + P] I32: flashinfer, window-only and C128A layers (C4A layers make theirs)
  TensorView topk;    ///< [T, index_topk] I32: the entries C4A layers chose; one buffer for all layers of a step
};

/// Slots, window rows and C128A rows of a step (spec 5.5, 6.1 to 6.5, 7.3): built once a step, each cache group and
/// layer kind once, read by every layer.
class SMLA_API StepMetadata {
 public:
  /// The layout and the configs of the layers it was made for, in the same order. Its tensors, and those of the batches
  /// it is built from, lie in the memory of `device`.
  StepMetadata(const KvLayout& layout, std::span<const LayerConfig> layers, FrontEnd front_end = FrontEnd::kFlashMla,
               DeviceKind device = DeviceKind::kCpu);
  ~StepMetadata();
  StepMetadata(StepMetadata&&) noexcept;
  StepMetadata& operator=(StepMetadata&&) noexcept;

  /// On a GPU queued on `stream`: nothing waits, and nothing is allocated once as large a step was built before, so
  /// that a build can be recorded in a CUDA graph. host_query_start_loc and host_seq_lens must be given there.
  /// @throws InvalidArgument naming the tensor that does not fit.
  void build(const StepBatch& batch, Stream stream = {});

  /// A further draft step over the same requests (MTP with more than one draft, spec 6.10): one token a request, at
  /// seq_len - 1. Positions, slots and window rows are made anew in place: every buffer keeps its address and shape.
  /// @param seq_lens    [R] I32, 0 for a request that sits out
  /// @param max_seq_len their upper bound, known on the host
  /// @param stream      where to queue on a GPU
  /// @throws InvalidArgument unless the last build had one token for each request.
  void advance(const ConstTensorView& seq_lens, std::int64_t max_seq_len, Stream stream = {});
  /// The same with lengths that only the device knows: each request that does not sit out is one token longer than
  /// before. Nothing comes from the host, so that a whole loop of draft steps can be recorded as one CUDA graph.
  /// max_seq_len of the last build or advance bounds these lengths, too.
  /// @param stream where to queue on a GPU
  /// @throws InvalidArgument as above.
  void advance(Stream stream = {});

  const StepShape& shape() const;             ///< what plans need
  LayerStep layer(std::int64_t layer) const;  ///< what the layer at this position reads

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace smla
