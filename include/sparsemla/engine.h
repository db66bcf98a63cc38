#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sparsemla/checkpoint.h"
#include "sparsemla/export.h"
#include "sparsemla/layer.h"
#include "sparsemla/prefix_cache.h"

namespace SMLA_API smla {

/// A request. Its tokens are synthetic: the hidden state of a token is a function of (seed, id, position), with the
/// request's id or, where prompt_ids names one, that.
struct RequestSpec {
  std::int64_t id = 0;             ///< unique in a run
  double arrival_seconds = 0;      ///< since the start of the run
  std::int64_t prompt_tokens = 0;  ///< at least 1
  std::int64_t output_tokens = 0;  ///< at least 1
  /// Ids of the blocks of the prompt: the i-th stands for positions [i * prompt_id_tokens, (i + 1) * prompt_id_tokens)
  /// of it. Requests with the same ids have the same tokens there. May be empty or shorter than the prompt.
  std::vector<std::int64_t> prompt_ids{};
  std::int64_t prompt_id_tokens = 0;  ///< at least 1 where there are ids
  /// Positions that pass through the layers: the last output token is never fed back.
  std::int64_t positions() const { return prompt_tokens + output_tokens - 1; }
};

/// A fault to plant, so that a check can be seen to fail.
enum class PlantedError : std::uint8_t {
  kNone,
  kPosition,  ///< neighbouring tokens of a step swap their positions
  kBlock,     ///< every window block is taken for block 0
  kRope       ///< every layer rotates by the first layer's rope table
};

/// A stack of attention layers under continuous batching.
struct EngineOptions {
  ModelConfig model;
  std::vector<std::int64_t> layers;  ///< indices into the model
  LayerOptions layer;                ///< how and where every layer computes; its device holds the pool, too
  bool graphs = true;                ///< on a GPU: decode steps are recorded as CUDA graphs, one for each padded size
  /// Recorded graphs that are kept, in number and in bytes of the GPU's memory, at least 1 of each: the one that was
  /// launched longest ago goes first.
  std::int64_t max_graphs = 64;
  std::int64_t max_graph_bytes = std::int64_t{1} << 30;  ///< of a recording's own; all share activations and metadata
  /// Decode steps of a size that run as they are queued, before the next one of it is recorded; at least 1. A size
  /// whose recording was given up begins anew.
  std::int64_t graph_after = 1;
  bool time_stages = true;  ///< sum up the layers' stages; on a GPU each part is waited for then, and no graphs run
  std::int64_t max_batched_tokens = 512;  ///< most tokens of a step
  std::int64_t max_seqs = 16;             ///< most requests that run at once
  std::int64_t num_blocks = 0;            ///< blocks of the KV pool
  std::int64_t max_model_len = 0;         ///< longest request in positions; rope tables are this long
  /// Begins requests with prefixes that earlier ones computed (docs/prefix-caching.md); none: computes every token.
  std::optional<PrefixCacheOptions> prefix_cache{};
  /// IndexCache layer by layer: a letter for each C4A layer of `layers`, in order. F: it chooses entries itself; S: it
  /// takes those of the last one before it that does. Empty: as the model says.
  std::string index_topk_pattern{};
  int speculative = 0;  ///< draft tokens a decode step verifies
  /// Layers that draft in DSpark blocks, window-only ones of the model, which come behind `layers` wherever layers are
  /// counted (docs/engine.md). Empty: drafts cost nothing but their verification.
  std::vector<std::int64_t> dspark_layers{};
  /// Each request drafts as many tokens as its last verification suggests, 1 to `speculative`, instead of always
  /// `speculative` (spec 6.10).
  bool adaptive_speculation = false;
  double draft_acceptance = 0.7;                     ///< share of drafts that a seeded coin accepts
  std::uint64_t seed = 0;                            ///< seed of weights, inputs, drafts
  PlantedError planted_error = PlantedError::kNone;  ///< so that a check can be seen to fail
  /// Weights of the layers; random ones of `seed` when null. A layer's q_scale and KV scales in it come before those of
  /// `layer`.
  std::shared_ptr<const Checkpoint> weights{};
  bool fp8_weights = false;    ///< keep FP8 weights of `weights` (LoadOptions::keep_fp8); off: dequantised at load
  bool nvfp4_weights = false;  ///< keep NVFP4 weights of `weights` (LoadOptions::keep_nvfp4); off: dequantised at load
};

/// The numbers of the layers of a run: those of the model, with index_topk_pattern, and behind them dspark_layers.
/// @throws InvalidArgument for a layer that the model does not have, and for a pattern of other letters, of another
/// length than there are C4A layers, or that begins with S.
std::vector<LayerConfig> layer_configs(const EngineOptions& options);
/// The caches of those layers as an engine lays them out. @throws what layer_configs throws.
KvLayout engine_layout(const EngineOptions& options);

/// One row of a step's batch.
struct StepRow {
  std::int64_t request = 0;
  std::int64_t position = 0;  ///< position in its request
  bool rejected = false;      ///< a draft that verification throws away; the position comes again later
  bool fp8_inputs = false;    ///< shown to an observer: the step rounds the inputs of FP8 weights of this layer
};

/// Watches a run; every call comes on the calling thread.
class EngineObserver {
 public:
  virtual ~EngineObserver() = default;
  /// Whether on_layer is to be called with this row. What nobody wants is not copied from a GPU.
  virtual bool wants(std::int64_t /*layer*/, const StepRow& /*row*/) const { return true; }
  /// Neighbouring rows of a step that are wanted; those of a step come in as many calls as there are gaps between them,
  /// and one. A layer's input and output [T, hidden] before norm and residual; `topk` [T, K] I32 for C4A layers, else
  /// absent.
  virtual void on_layer(std::int64_t layer, std::span<const StepRow> rows, const ConstTensorView& input,
                        const ConstTensorView& output, const ConstTensorView& topk) = 0;
  /// Rows of the stack's end [T, hidden] that the layers of DSpark drafts have as context from now on, those that are
  /// wanted of layer number `layers.size()`.
  virtual void on_context(std::span<const StepRow> /*rows*/, const ConstTensorView& /*hidden*/) {}
  /// The draft block of one request in one of the draft layers: tokens in order, the first known, the others noise.
  /// Only blocks whose first token is wanted.
  virtual void on_draft_block(std::int64_t /*layer*/, std::span<const StepRow> /*rows*/,
                              const ConstTensorView& /*input*/, const ConstTensorView& /*output*/) {}
};

/// The outcome of a request so far.
struct RequestResult {
  /// Its state.
  enum class State : std::uint8_t { kWaiting, kRunning, kFinished, kRefused, kCancelled };
  RequestSpec spec;
  State state = State::kWaiting;    ///< when the result was asked for
  std::string refusal;              ///< why it can never run
  std::int64_t generated = 0;       ///< output tokens so far
  std::int64_t preemptions = 0;     ///< times that blocks were taken away
  std::int64_t cached_tokens = 0;   ///< of the prompt, that the prefix cache had when the request was first admitted
  double first_token_seconds = -1;  ///< since the start of the run; -1: none yet
  double finish_seconds = -1;       ///< since the start of the run; -1: not yet
  std::uint64_t digest = 0;         ///< of the stack's output bits at every position, in order; finished requests
};

/// Sums over a run.
struct RunTotals {
  std::int64_t steps = 0;
  std::int64_t prefill_tokens = 0;   ///< prompt tokens computed, recomputation included
  std::int64_t decode_tokens = 0;    ///< accepted output positions
  std::int64_t draft_tokens = 0;     ///< proposed
  std::int64_t rejected_drafts = 0;  ///< thrown away by verification
  std::int64_t draft_blocks = 0;     ///< that DSpark's layers computed, one a request and step
  std::int64_t preemptions = 0;
  std::int64_t recomputed_tokens = 0;   ///< prompt tokens computed again after a preemption
  std::int64_t cached_requests = 0;     ///< that began with a prefix from the cache
  std::int64_t cached_tokens = 0;       ///< of these prefixes
  std::int64_t recovered_tokens = 0;    ///< found in the cache after a preemption
  std::int64_t peak_blocks = 0;         ///< of the pool, over all groups
  std::int64_t peak_cached_tokens = 0;  ///< tokens whose rows stood in the caches at once
  double prefill_seconds = 0;           ///< step time by share of tokens
  double decode_seconds = 0;            ///< step time by share of tokens
  std::int64_t graph_steps = 0;         ///< steps that were launched as a recorded graph
  std::int64_t graphs = 0;              ///< recorded graphs that are there
  std::int64_t graph_bytes = 0;         ///< of the GPU's memory that they took
  std::int64_t graphs_recorded = 0;     ///< since the start
  std::int64_t graphs_evicted = 0;      ///< given up for max_graphs or max_graph_bytes
  std::int64_t table_bytes = 0;         ///< of block tables that steps moved to the device
  double metadata_seconds = 0;          ///< in StepMetadata; on a GPU the time to queue it
  double residual_seconds = 0;  ///< norm and residual between layers, inputs, digests; on a GPU the time to queue them
  std::array<double, kNumStages> stage_seconds{};  ///< by Stage; zeros without time_stages
};

/// Blocks a request needs at its full length, at most. `chunk`: the most tokens one step feeds.
std::int64_t blocks_needed(const KvLayout& layout, const RequestSpec& request, std::int64_t chunk);

/// Continuous batching over paged caches: chunked prefill, decodes first, preemption of the youngest, speculative
/// verification (spec 6).
///
/// On a GPU an engine belongs to the one that is current when it is made; step, save_request and restore_request want
/// it to be the calling thread's current one and throw InvalidArgument otherwise. Engines of several GPUs, and several
/// of one, may run in one process, each on one thread at a time.
class Engine {
 public:
  /// @throws InvalidArgument naming the option that is impossible.
  explicit Engine(const EngineOptions& options, EngineObserver* observer = nullptr);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Queues a request; one that can never fit is refused by name in its result. @throws InvalidArgument for a duplicate
  /// id or lengths below 1.
  void submit(const RequestSpec& request);
  /// Runs one step over what is queued. False when nothing is left to do. `now`: seconds since the start of the run.
  bool step(const std::function<double()>& now);

  /// The state of a running request as a snapshot (docs/snapshot.md), taken between two steps; the request runs on
  /// here. Another engine with the same layers, formats, weights and seed goes on with it bit for bit. @throws
  /// InvalidArgument for an id that is not running.
  std::vector<std::uint8_t> save_request(std::int64_t id) const;
  /// Takes a saved request over and runs it on. All or nothing: on an error the engine is as before.
  /// @throws IoError for a damaged snapshot; InvalidArgument for one of other layers or formats, an id that was
  /// submitted before, a request that can never fit, too few free blocks or seats. @return its id.
  std::int64_t restore_request(std::span<const std::uint8_t> snapshot);
  /// Gives up a request that is waiting or running; its blocks are free. @throws InvalidArgument for another id.
  void cancel(std::int64_t id);
  /// Results of the requests that have ended (finished, refused, cancelled), in order of submission. Forgets them: an
  /// engine that runs for long keeps nothing of them, and their ids are free again.
  std::vector<RequestResult> take_ended();

  bool idle() const;                                      ///< whether nothing is left to do
  const KvPool& pool() const;                             ///< the blocks
  const PrefixCache* prefix_cache() const;                ///< null without one
  const RunTotals& totals() const;                        ///< so far
  std::vector<RequestResult> results() const;             ///< in order of submission, those that were taken left out
  const AttentionLayer& layer(std::int64_t index) const;  ///< by position in the list of layers
  ConstTensorView rope(std::int64_t index) const;         ///< a layer's rope table
  const LayerWeights& weights(std::int64_t index) const;  ///< a layer's
  /// Implementations of the last step, by op.
  std::string implementations() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace smla
