#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "sparsemla/communicator.h"
#include "sparsemla/export.h"
#include "sparsemla/front_end.h"
#include "sparsemla/kv_pool.h"
#include "sparsemla/layer_weights.h"
#include "sparsemla/model_config.h"
#include "sparsemla/op.h"
#include "sparsemla/ops/norm_rope.h"
#include "sparsemla/step_metadata.h"
#include "sparsemla/tensor_view.h"

namespace SMLA_API smla {

/// Activations and caches of a layer: bf16 with a quantised or bf16 cache, or float32 throughout (the semantics alone,
/// spec cases).
enum class Precision : std::uint8_t { kBF16, kF32 };

/// The parts into which a layer's time is split.
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
  kOutputProjection,
  kRanks  ///< sum over tensor-parallel ranks; what context-parallel ranks gather counts to top-k and attention
};
inline constexpr int kNumStages = 11;
/// The name of a stage, "attention" for example.
std::string_view name_of(Stage stage);

/// How a layer computes.
struct LayerOptions {
  DeviceKind device =
      DeviceKind::kCpu;  ///< whose memory weights, caches, activations and workspace lie in, and which runs
  Precision precision = Precision::kBF16;  ///< precision of activations
  CacheOptions caches;                     ///< formats of its caches; float32 rows at precision kF32
  /// Queries as attention sees them: BF16, or E4M3 with q_scale. Absent: E4M3 over per-tensor rows, else BF16.
  std::optional<DType> q{};
  float q_scale = 1.0F;                      ///< of E4M3 queries: number = e4m3 * q_scale
  ClampRule clamp = ClampRule::kAmax;        ///< the quantiser's floor
  FrontEnd front_end = FrontEnd::kFlashMla;  ///< how index lists are prepared
  /// flashmla over fp8_ds_mla rows: copy each prefill chunk's rows into a bf16 workspace, which holds them exactly, and
  /// attend to that, as upstream does (spec 7.2, 7.4, 8.5). Off, and for rows of another format: prefills read the
  /// caches themselves.
  bool gather_prefill = false;
  /// Upstream's limits of the front-end, with its texts (spec 8): heads, widths, blocks, dtypes. Heads are padded as
  /// upstream pads them.
  bool strict = false;
  std::int64_t padded_heads =
      0;  ///< heads of the query and output buffers; those past num_heads are 0. 0: num_heads (strict: upstream's)
  /// FP8 output projection (spec 2): the rotated output in E4M3 with scales of 128 dims, stored in this layout; absent:
  /// activations as they are, or kF32 with an E4M3 wo_a.
  std::optional<OutputScale> fp8_output{};
  ChunkLimits chunks{};  ///< of gathered prefills; max_model_len 0: the rope table's length, max_batched_tokens 0: the
                         ///< step's tokens
  /// Of the fp32 score matrix of a C4A layer: longer batches are scored a few rows at a time, two more launches each on
  /// a GPU. A single row may take more. 0: 64 MiB, on a GPU 512 MiB (spec 4.8).
  std::int64_t score_bytes = 0;
  bool short_context = true;   ///< take the short-context path of the indexer (spec 4.7) where it applies
  bool deterministic = false;  ///< a row's result must not depend on its neighbours
  int threads = 0;             ///< CPU threads; 0: as many as OpenMP would start
  /// On a GPU: compressors and indexer, with their projections, run at the same time as latents and queries, on a side
  /// stream of the layer that both meet again before attention (spec 2). In decode steps of few rows, whose products
  /// are joint, it is the queries that are made there, while the indexer chooses, and compressors may have a third one.
  /// Each stream that the layer is called on has its own, so that one thread may record a forward in a graph while
  /// another runs one.
  bool side_streams = true;
  /// The ranks that have the other slices of this layer's heads (tensor_parallel_slice): outputs are summed over them
  /// behind wo_b. Null: none. Every rank must run the same steps (docs/parallel.md).
  std::shared_ptr<Communicator> tensor_parallel{};
  /// The ranks that have the other shares of the compressed and index rows, as `caches` says, and the same weights.
  /// Null: none. For the flashmla front-end without gather_prefill, padded heads and strict; no side stream runs.
  std::shared_ptr<Communicator> context_parallel{};
  /// Implementation by op name ("projection" -> "ref"); "*" names one for every op that has it and accepts. A layer
  /// that has one for "joint_projection" computes the weights of one input at once in steps of up to 64 tokens
  /// ("sm90_stream": 128; `deterministic`: in all), and rounds no inputs of FP8 weights unless `fp8_output` is given;
  /// others never do so.
  std::map<std::string, std::string, std::less<>> implementations;
};

/// The options as they take effect, those filled in that follow from others: float32 rows at precision kF32, E4M3
/// queries over per-tensor rows. A layer does this to its own; whoever lays out caches for it does it first.
/// @throws InvalidArgument naming an option that would have no effect beside the others, what was given and what it
/// needs: kv_scale without per-tensor rows, q_scale without E4M3 queries, gather_prefill without the flashmla front-end
/// or without fp8_ds_mla rows, E4M3 queries at precision kF32. Also a scale that is not a finite number above 0.
LayerOptions effective_options(const LayerOptions& options);

/// Caches of one layer by role; those that its kind does not have stay empty. Every layer has a window cache, compress
/// layers have compressed and state caches too, C4A layers that choose also index and index state caches.
struct LayerCaches {
  std::array<PagedCache, kNumCacheRoles> by_role{};  ///< in the order of CacheRole
  PagedCache& operator[](CacheRole role) { return by_role[static_cast<std::size_t>(role)]; }
  const PagedCache& operator[](CacheRole role) const { return by_role[static_cast<std::size_t>(role)]; }
};

/// All caches of layer `layer` in a pool.
LayerCaches caches_of(const KvPool& pool, std::int64_t layer);

/// Watches a layer at work; every call comes on the calling thread.
class LayerObserver {
 public:
  virtual ~LayerObserver() = default;
  /// After each part, with its time. On a GPU the stream is waited for at each part, and no side stream runs.
  virtual void on_stage(Stage stage, double seconds) = 0;
  /// Rows [first_row, first_row + value.size(0)) of an intermediate: "topk" [*, k] I32 local entries, "index_scores"
  /// [*, max entries] F32 (row t is defined for its visible entries), "attention" [*, Hp, head_dim] the attention
  /// output before it is rotated back.
  virtual void on_tensor(std::string_view name, const ConstTensorView& value, std::int64_t first_row) = 0;
};

/// The choice of implementations and the workspace of one step shape.
class LayerPlan {
 public:
  struct Ops;
  std::size_t workspace_bytes() const;  ///< bytes of workspace that a run needs
  /// "projection avx512, rms_norm cpu, ...": one name an op, in the order of use.
  std::string describe() const;

 private:
  friend class AttentionLayer;
  std::shared_ptr<const Ops> ops_;
};

class SideStreams;

/// A DeepSeek-V4 attention layer: hidden states in, hidden states out (spec 2). Holds views of its weights and no other
/// state.
class AttentionLayer {
 public:
  /// @param config  the layer's numbers
  /// @param weights views, whose memory must outlive the layer
  /// @param options how it computes
  /// @param cos_sin [positions, rope_head_dim] F32, the layer's rope table (rope_table()); must outlive the layer.
  /// @throws InvalidArgument naming the weight or number that does not fit, got and expected.
  AttentionLayer(const LayerConfig& config, const LayerWeights& weights, const LayerOptions& options,
                 const ConstTensorView& cos_sin);

  const LayerConfig& config() const { return config_; }
  const LayerOptions& options() const { return options_; }  ///< the options with defaults filled in

  /// For steps of this shape (StepMetadata::shape()), over caches shaped like `caches`.
  /// @throws Unsupported with upstream's text when strict and a call of the step has no upstream kernel.
  LayerPlan plan(const StepShape& shape, const LayerCaches& caches) const;
  /// The same for `tokens` tokens of `requests` requests, all of them decodes, with no sequence longer than
  /// max_seq_len.
  LayerPlan plan(std::int64_t tokens, std::int64_t requests, std::int64_t max_seq_len,
                 const LayerCaches& caches) const {
    return plan(StepShape::decodes(tokens, requests, max_seq_len), caches);
  }
  /// Workspace that no step of at most `tokens` tokens, `requests` requests and sequences of max_seq_len exceeds: what
  /// a server reserves at the start.
  std::size_t reserve_bytes(std::int64_t tokens, std::int64_t requests, std::int64_t max_seq_len,
                            const LayerCaches& caches) const;

  /// output = attention(hidden); both [T, hidden] BF16 (F32 at precision kF32). Writes this step's rows into the
  /// caches. Padding tokens give 0. On a GPU queued on `stream`, without allocating or waiting (unless observed), so
  /// that it can be recorded in a CUDA graph.
  /// @throws InvalidArgument when a tensor does not fit the plan, or a position is past the rope table.
  void forward(const LayerPlan& plan, const LayerStep& step, const LayerCaches& caches, const ConstTensorView& hidden,
               const TensorView& output, Workspace workspace, Stream stream = {},
               LayerObserver* observer = nullptr) const;

  /// Writes rows of tokens into the window cache and computes nothing else: the context of a draft layer, which sees
  /// what another stack made of these tokens and asks nothing about them (DSpark, spec 10). A row is what a forward
  /// writes for the same hidden state.
  /// @param hidden    [T, hidden] BF16 (F32 at precision kF32)
  /// @param positions [T] I64
  /// @param slots     [T] I64 of the window cache, -1 where nothing is written
  /// @param window    the layer's window cache
  /// @param workspace context_bytes(T) bytes
  /// @param stream    on a GPU where to queue, as forward does
  /// @throws InvalidArgument when a tensor does not fit, or for a layer with a compressor, whose entries need every
  /// token's forward.
  void insert_context(const ConstTensorView& hidden, const ConstTensorView& positions, const ConstTensorView& slots,
                      const PagedCache& window, Workspace workspace, Stream stream = {}) const;
  /// Whether a forward of so many tokens rounds the inputs of E4M3 weights to FP8. On a GPU few rows are multiplied as
  /// they are, as a CPU multiplies all.
  bool rounds_fp8_inputs(std::int64_t tokens) const;
  /// Workspace that insert_context needs for so many tokens.
  std::size_t context_bytes(std::int64_t tokens) const;

  /// A profile run without metadata (spec 2, 8.5): all projections and norms run, no cache is read or written,
  /// attention gives zeros.
  void dummy_run(const LayerPlan& plan, const ConstTensorView& hidden, const TensorView& output, Workspace workspace,
                 Stream stream = {}) const;

 private:
  std::shared_ptr<const LayerPlan::Ops> make_ops(const StepShape& shape, const LayerCaches& caches,
                                                 const LayerOptions& options, std::size_t least_score_bytes,
                                                 std::size_t least_scratch_bytes) const;
  void check_options();
  void check_parallel() const;
  void check_step(const LayerStep& step) const;

  LayerConfig config_;
  LayerWeights weights_;
  LayerOptions options_;
  ConstTensorView cos_sin_;
  std::shared_ptr<SideStreams> side_;  ///< null without
};

}  // namespace smla
