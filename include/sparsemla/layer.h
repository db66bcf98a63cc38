#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sparsemla/export.h"
#include "sparsemla/kv_pool.h"
#include "sparsemla/model_config.h"
#include "sparsemla/op.h"
#include "sparsemla/tensor_view.h"

namespace SMLA_API smla {

/// Activations and caches of a layer: bf16 with a quantised or bf16 cache, or float32 throughout (the semantics alone, spec cases).
enum class Precision : std::uint8_t { kBF16, kF32 };

/// Parts of a layer's time.
enum class Stage : std::uint8_t {
  kInputProjections,
  kNorms,
  kQProjection,
  kInsert,
  kCompressor,
  kIndexer,
  kTopk,
  kAttention,
  kInverseRope,
  kOutputProjection
};
inline constexpr int kNumStages = 10;
std::string_view name_of(Stage stage);

/// Weights of one compressor (spec 3): `dim` 512 for the layer's, 128 for the indexer's.
struct CompressorWeights {
  ConstTensorView wkv;    ///< [coff*dim, hidden] BF16 or F32
  ConstTensorView wgate;  ///< [coff*dim, hidden]
  ConstTensorView ape;    ///< [ratio, coff*dim] F32 or BF16
  ConstTensorView norm;   ///< [dim] BF16 or F32
};

/// Weights of one layer by their checkpoint names (spec 1); memory belongs to the caller and must outlive the layer.
struct LayerWeights {
  ConstTensorView wq_a;                ///< [q_lora_rank, hidden]
  ConstTensorView q_norm;              ///< [q_lora_rank]
  ConstTensorView wq_b;                ///< [num_heads*head_dim, q_lora_rank]
  ConstTensorView wkv;                 ///< [head_dim, hidden]
  ConstTensorView kv_norm;             ///< [head_dim]
  ConstTensorView wo_a;                ///< [o_groups*o_lora_rank, num_heads/o_groups*head_dim]
  ConstTensorView wo_b;                ///< [hidden, o_groups*o_lora_rank]
  ConstTensorView attn_sink;           ///< [num_heads] F32
  CompressorWeights compressor;        ///< compress_ratio > 1
  CompressorWeights index_compressor;  ///< compress_ratio = 4
  ConstTensorView index_wq_b;          ///< [index_n_heads*index_head_dim, q_lora_rank], compress_ratio = 4
  ConstTensorView index_weights_proj;  ///< [index_n_heads, hidden], compress_ratio = 4
};

/// How a layer computes.
struct LayerOptions {
  Precision precision = Precision::kBF16;
  CacheOptions caches;     ///< formats of its caches; float32 rows at precision kF32
  DType q = DType::kBF16;  ///< queries as attention sees them: BF16, or E4M3 with q_scale
  float q_scale = 1.0F;
  ClampRule clamp = ClampRule::kAmax;
  bool short_context = true;  ///< take the short-context path of the indexer (spec 4.7) where it applies
  bool deterministic = false;
  int threads = 0;
  /// Implementation by op name ("projection" -> "ref"); "*" names one for every op that has it and accepts.
  std::map<std::string, std::string, std::less<>> implementations;
};

/// Caches of one layer; those that its kind does not have stay empty.
struct LayerCaches {
  PagedCache window;
  PagedCache compressed;
  PagedCache index;
  PagedCache state;
  PagedCache index_state;
};

/// All caches of layer `layer` in a pool.
LayerCaches caches_of(const KvPool& pool, std::int64_t layer);

/// One step's batch, decodes first and prefills after; shared by all layers (spec 6).
struct StepBatch {
  ConstTensorView query_start_loc;            ///< [R+1] I32, from 0
  ConstTensorView seq_lens;                   ///< [R] I32, this step's tokens included; 0 for padding requests
  ConstTensorView positions;                  ///< [T] I64; T may exceed query_start_loc's end: the rest is padding
  std::vector<ConstTensorView> block_tables;  ///< one for each group of the layout, [R, columns] I32
  std::int64_t max_seq_len = 0;               ///< upper bound of seq_lens, known on the host
};

/// What one layer reads of the step's metadata.
struct LayerStep {
  std::int64_t tokens = 0;
  std::int64_t requests = 0;
  std::int64_t max_seq_len = 0;
  ConstTensorView positions;          ///< [T] I64
  ConstTensorView token_to_req;       ///< [T] I32
  ConstTensorView valid;              ///< [T] BOOL
  ConstTensorView window_slots;       ///< [T] I64
  ConstTensorView window_indices;     ///< [T, window] I32
  ConstTensorView window_lens;        ///< [T] I32
  ConstTensorView entry_slots;        ///< [T] I64, compress layers
  ConstTensorView entry_lens;         ///< [T] I32 visible entries, compress layers; 0 for padding
  ConstTensorView entry_block_table;  ///< [R, columns] I32, compress layers
  ConstTensorView state_slots;        ///< [T] I64, compress layers
  ConstTensorView state_block_table;
  ConstTensorView index_state_slots;  ///< C4A layers
  ConstTensorView index_state_block_table;
  ConstTensorView dense_indices;  ///< [T, W] I32, C128A layers
  ConstTensorView dense_lens;     ///< [T] I32, C128A layers
};

/// Slots, window rows and C128A rows of a step (spec 5.5, 6.1 to 6.5): built once a step, each cache group and layer kind once, read by every layer.
class StepMetadata {
 public:
  /// The layout and the configs of the layers it was made for, in the same order.
  StepMetadata(const KvLayout& layout, std::span<const LayerConfig> layers);
  ~StepMetadata();
  StepMetadata(StepMetadata&&) noexcept;
  StepMetadata& operator=(StepMetadata&&) noexcept;

  /// @throws InvalidArgument naming the tensor that does not fit.
  void build(const StepBatch& batch);
  LayerStep layer(std::int64_t layer) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Watches a layer at work; every call comes on the calling thread.
class LayerObserver {
 public:
  virtual ~LayerObserver() = default;
  virtual void on_stage(Stage stage, double seconds) = 0;
  /// Rows [first_row, first_row + value.size(0)) of an intermediate: "topk" [*, k] I32 local entries, "index_scores" [*, max entries] F32 (row t is
  /// defined for its visible entries).
  virtual void on_tensor(std::string_view name, const ConstTensorView& value, std::int64_t first_row) = 0;
};

/// The choice of implementations and the workspace of one step shape.
class LayerPlan {
 public:
  struct Ops;
  std::size_t workspace_bytes() const;
  /// "projection avx512, rms_norm cpu, ...": one name an op, in the order of use.
  std::string describe() const;

 private:
  friend class AttentionLayer;
  std::shared_ptr<const Ops> ops_;
};

/// A DeepSeek-V4 attention layer: hidden states in, hidden states out (spec 2). Holds views of its weights and no other state.
class AttentionLayer {
 public:
  /// @param cos_sin [positions, rope_head_dim] F32, the layer's rope table (rope_table()); must outlive the layer.
  /// @throws InvalidArgument naming the weight or number that does not fit, got and expected.
  AttentionLayer(const LayerConfig& config, const LayerWeights& weights, const LayerOptions& options, const ConstTensorView& cos_sin);

  const LayerConfig& config() const { return config_; }
  const LayerOptions& options() const { return options_; }

  /// For steps of exactly `tokens` tokens of `requests` requests with no sequence longer than max_seq_len, over caches shaped like `caches`.
  LayerPlan plan(std::int64_t tokens, std::int64_t requests, std::int64_t max_seq_len, const LayerCaches& caches) const;

  /// output = attention(hidden); both [T, hidden] BF16 (F32 at precision kF32). Writes this step's rows into the caches. Padding tokens give 0.
  /// @throws InvalidArgument when a tensor does not fit the plan, or a position is past the rope table.
  void forward(const LayerPlan& plan, const LayerStep& step, const LayerCaches& caches, const ConstTensorView& hidden, const TensorView& output,
               Workspace workspace, Stream stream = {}, LayerObserver* observer = nullptr) const;

 private:
  LayerConfig config_;
  LayerWeights weights_;
  LayerOptions options_;
  ConstTensorView cos_sin_;
};

}  // namespace smla
