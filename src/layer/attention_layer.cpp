#include <array>

#include "core/check.h"
#include "core/check_distinct.h"
#include "core/host_tensor.h"
#include "layer/forward.h"
#include "model/weight_table.h"
#include "ops/named_implementations.h"

namespace smla {

namespace {

constexpr std::string_view kWhat = "attention layer";

static_assert(kNvfp4Weight == Projection::kNvfp4);

void check_dense(const std::string& name, const ConstTensorView& view) {
  check_that(view.numel() == 0 || view.contiguous(), kWhat, name, std::string("strided rows"), "contiguous ones");
}

/// NVFP4: codes, the scales of their groups and the scale of all.
void check_nvfp4(const WeightSpec& spec, const LinearWeight& weight) {
  constexpr std::int64_t kGroup = Projection::kNvfp4Group;
  const std::int64_t n = spec.shape[0];
  const std::int64_t k = spec.shape[1];
  check_that(k % kGroup == 0, kWhat, "inputs of " + spec.stem, k,
             "a multiple of " + std::to_string(kGroup) + " for NVFP4 weights");
  check_tensor(kWhat, spec.stem, weight.w, {n, k / 2}, {Projection::kNvfp4});
  check_tensor(kWhat, spec.stem + ".weight_scale", weight.scale, {n, k / kGroup}, {DType::kE4M3});
  check_dense(spec.stem + ".weight_scale", weight.scale);
  check_tensor(kWhat, spec.stem + ".weight_scale_2", weight.global_scale, {1}, {DType::kF32});
}

/// E4M3 with the scales of its blocks, and then with inputs and groups that are whole blocks.
void check_fp8(const WeightSpec& spec, const LinearWeight& weight) {
  constexpr std::int64_t kBlock = Projection::kWeightBlock;
  const std::string& name = spec.stem;
  const std::int64_t groups = spec.fp8_groups;
  const std::int64_t n = spec.shape[0] / groups;
  const std::int64_t k = spec.shape[1];
  const ConstTensorView& scale = weight.scale;
  check_tensor(kWhat, name, weight.w, {groups * n, k}, {DType::kE4M3});
  check_that(k % kBlock == 0, kWhat, "inputs of " + name, k,
             "a multiple of " + std::to_string(kBlock) + " for F8_E4M3 weights");
  check_that(groups == 1 || n % kBlock == 0, kWhat, "outputs of a group of " + name, n,
             "a multiple of " + std::to_string(kBlock) + " for F8_E4M3 weights");
  check_tensor(kWhat, name + ".scale", scale, {(groups * n + kBlock - 1) / kBlock, k / kBlock}, {DType::kF32});
  check_dense(name + ".scale", scale);
}

/// [outputs, inputs] in a dtype that the layer takes, with the scales that go with it and no others.
void check_linear(const WeightSpec& spec, const LinearWeight& weight) {
  const std::string& name = spec.stem;
  const auto none = [&](std::string_view suffix, const ConstTensorView& scale) {
    check_that(scale.absent(), kWhat, words(name, suffix), scale, words("none: the weight is ", weight.w.dtype));
  };
  if (weight.w.dtype == Projection::kNvfp4) {
    check_nvfp4(spec, weight);
  } else if (weight.w.dtype == DType::kE4M3 && spec.fp8_groups > 0) {
    check_fp8(spec, weight);
  } else {
    if (spec.fp8_groups > 0) {
      check_tensor(kWhat, name, weight.w, {spec.shape[0], spec.shape[1]}, {DType::kBF16, DType::kF32, DType::kE4M3});
    } else {
      check_tensor(kWhat, name, weight.w, {spec.shape[0], spec.shape[1]}, {DType::kBF16, DType::kF32});
    }
    none(".scale", weight.scale);
  }
  if (weight.w.dtype != Projection::kNvfp4) none(".weight_scale_2", weight.global_scale);
  check_dense(name, weight.w);
}

/// Every weight that the layer will read against the table.
void check_weights(const LayerConfig& config, LayerWeights& weights) {
  for (const WeightSpec& spec : weight_table(config)) {
    const bool of_indexer = spec.stem.starts_with("indexer.");
    const ConstTensorView& w = spec.view(weights);
    if (spec.kind == WeightKind::kLinear) {
      check_linear(spec, {w, spec.scale(weights), spec.global_scale(weights)});
      if (!spec.stem.ends_with("wgate")) continue;
      const DType wkv = (of_indexer ? weights.index_compressor : weights.compressor).wkv.dtype;
      check_that(w.dtype == wkv, kWhat, spec.stem, w, words(wkv, ", the dtype of the compressor's wkv"));
    } else if (spec.kind == WeightKind::kSink) {
      check_tensor(kWhat, spec.stem, w, {spec.shape[0]}, {DType::kF32});
    } else if (spec.shape.size() == 1) {
      check_tensor(kWhat, spec.stem, w, {spec.shape[0]}, {DType::kBF16, DType::kF32});
    } else {
      check_tensor(kWhat, spec.stem, w, {spec.shape[0], spec.shape[1]}, {DType::kBF16, DType::kF32});
    }
  }
}

}  // namespace

std::string_view name_of(Stage stage) {
  constexpr std::array<std::string_view, kNumStages> kNames{
      "input projections", "norms",        "q projection",      "insert",        "compressor", "indexer", "top-k",
      "attention",         "inverse rope", "output projection", "sum over ranks"};
  return kNames[static_cast<std::size_t>(stage)];
}

LayerCaches caches_of(const KvPool& pool, std::int64_t layer) {
  LayerCaches caches;
  for (const CacheRole role : kCacheRoles) {
    if (pool.layout().find(layer, role) != nullptr) caches[role] = pool.cache(layer, role);
  }
  return caches;
}

AttentionLayer::AttentionLayer(const LayerConfig& config, const LayerWeights& weights, const LayerOptions& options,
                               const ConstTensorView& cos_sin)
    : config_(config), weights_(weights), options_(effective_options(options)), cos_sin_(cos_sin) {
  check_layer_config(config);
  check_weights(config, weights_);
  check_tensor(kWhat, "cos_sin", cos_sin, {kAny, config.rope_head_dim}, {DType::kF32});
  check_options();
  if (has_side_stream(config_, options_)) side_ = std::make_shared<SideStreams>(options_.device);
}

/// Completes the options by what the rope table says: head padding, chunk limits. Strict: what upstream refuses at
/// construction.
void AttentionLayer::check_options() {
  check_named_implementations("attention layer: implementations", options_.implementations, options_.device);
  if (options_.chunks.max_model_len == 0) options_.chunks.max_model_len = cos_sin_.size(0);
  const std::int64_t upstream =
      options_.strict ? upstream_padded_heads(options_.front_end, config_.num_heads) : config_.num_heads;
  if (options_.padded_heads == 0) options_.padded_heads = upstream;
  check_that(options_.padded_heads >= config_.num_heads && options_.padded_heads <= 128, kWhat, "padded_heads",
             options_.padded_heads, std::to_string(config_.num_heads) + ", the layer's heads, to 128");
  check_parallel();
  check_that(options_.score_bytes >= 0, kWhat, "score_bytes", options_.score_bytes, "0 or more");
  check_that(
      !options_.fp8_output || config_.num_heads / config_.o_groups * config_.head_dim % InverseRopeQuant::kGroup == 0,
      kWhat, "dims of an output group", config_.num_heads / config_.o_groups * config_.head_dim,
      "a multiple of " + std::to_string(InverseRopeQuant::kGroup) + " for the FP8 output projection");
}

bool AttentionLayer::rounds_fp8_inputs(std::int64_t tokens) const {
  return smla::rounds_fp8_inputs(config_, options_, weights_, tokens);
}

/// What ranks of a group must have in common, and what the context-parallel path does not do.
void AttentionLayer::check_parallel() const {
  const auto same_device = [&](const std::shared_ptr<Communicator>& ranks, std::string_view name) {
    if (ranks != nullptr)
      check_that(ranks->device() == options_.device, kWhat, name, "a communicator of " + name_of(ranks->device()),
                 "one of " + name_of(options_.device) + ", the layer's device");
  };
  same_device(options_.tensor_parallel, "tensor_parallel");
  same_device(options_.context_parallel, "context_parallel");
  const int ranks = options_.context_parallel == nullptr ? 1 : options_.context_parallel->ranks();
  const int rank = options_.context_parallel == nullptr ? 0 : options_.context_parallel->rank();
  check_that(options_.caches.context_ranks == ranks && options_.caches.context_rank == rank, kWhat,
             "context rank of the caches", words(options_.caches.context_rank, " of ", options_.caches.context_ranks),
             words(rank, " of ", ranks, " as context_parallel"));
  if (options_.context_parallel == nullptr) return;
  constexpr std::string_view kWith = " with context_parallel";
  const auto refuse = [&](bool wrong, std::string_view name, std::string_view got, std::string_view expected) {
    check_that(!wrong, kWhat, name, std::string(got) + std::string(kWith), expected);
  };
  refuse(options_.front_end != FrontEnd::kFlashMla, "front_end", name_of(options_.front_end), "flashmla");
  refuse(options_.gather_prefill, "gather_prefill", "true", "false");
  refuse(options_.strict, "strict", "true", "false");
  refuse(options_.padded_heads != config_.num_heads, "padded_heads", std::to_string(options_.padded_heads),
         std::to_string(config_.num_heads) + ", the layer's heads");
  refuse(config_.has_indexer() && config_.reuses_topk, "reuses_topk", "true", "false");
}

/// Upstream's texts for metadata that a step lacks (spec 8.7, 15) come first where they apply.
void AttentionLayer::check_step(const LayerStep& step) const {
  if (!config_.has_compressor()) return;
  const std::string kind = config_.has_indexer() ? "c4a" : "c128a";
  if (options_.strict && step.entry_lens.absent()) {
    throw InvalidArgument(row_of(options_.front_end).no_entries_text(kind));
  }
  check_that(!step.entry_lens.absent() && !step.entry_slots.absent(), kWhat, "entry_lens and entry_slots of the step",
             "none", words("those of a ", kind, " layer"));
  if (config_.has_indexer()) {
    if (options_.strict && step.topk.absent())
      throw InvalidArgument("C4A decode requires top-k indices from the indexer.");
    check_tensor(kWhat, "topk of the step", step.topk, {step.tokens, config_.index_topk}, {DType::kI32});
    return;
  }
  if (options_.strict && step.dense_indices.absent())
    throw InvalidArgument("Compressed sparse MLA prefill requires compressed sparse indices.");
  check_that(!step.dense_indices.absent(), kWhat, "dense_indices of the step", "none", "those of a c128a layer");
}

void AttentionLayer::forward(const LayerPlan& plan, const LayerStep& step, const LayerCaches& caches,
                             const ConstTensorView& hidden, const TensorView& output, Workspace workspace,
                             Stream stream, LayerObserver* observer) const {
  const LayerPlan::Ops& ops = *plan.ops_;
  const DType act = activation_dtype(options_);
  check_that(step.tokens == ops.tokens, kWhat, "tokens of the step", step.tokens, words(ops.tokens, " as planned"));
  check_that(step.requests == ops.requests, kWhat, "requests of the step", step.requests,
             words(ops.requests, " as planned"));
  check_that(step.max_seq_len <= ops.max_seq_len, kWhat, "max_seq_len of the step", step.max_seq_len,
             words("at most ", ops.max_seq_len));
  check_that(step.max_seq_len <= cos_sin_.size(0), kWhat, "max_seq_len of the step", step.max_seq_len,
             words("at most ", cos_sin_.size(0), ", the rows of cos_sin"));
  check_tensor(kWhat, "hidden", hidden, {ops.tokens, config_.hidden_size}, {act});
  check_tensor(kWhat, "output", output, {ops.tokens, config_.hidden_size}, {act});
  check_distinct(kWhat, "output", output);
  check_that(workspace.bytes >= ops.workspace_bytes, kWhat, "workspace", words(workspace.bytes, " bytes"),
             words("at least ", ops.workspace_bytes));

  check_that(step.split == ops.shape.split || !ops.attention->follows_split(), kWhat, "decode tokens of the step",
             step.split.decode_tokens, words(ops.shape.split.decode_tokens, " as planned"));
  check_that(step.window_indices.size(1) == ops.shape.window_width, kWhat, "columns of window_indices",
             step.window_indices.size(1), words(ops.shape.window_width, " as planned"));
  check_step(step);
  check_that(!row_of(options_.front_end).reads_mixed_rows || config_.has_indexer() || !step.mixed_indices.absent(),
             kWhat, "mixed_indices of the step", "none",
             words("those of step metadata made for the ", name_of(options_.front_end), " front-end"));

  std::size_t used = 0;
  const LayerBuffers buffers = ops.lay_out(config_, options_, workspace.data, &used);
  // Joint products follow one another so closely (programmatic dependent launch) that a second stream costs more, but
  // for wq_b, whose weights take as long to read as the indexer to choose.
  const bool parallel = observer == nullptr && side_ != nullptr && (!ops.joint_inputs || ops.joint_wq_b);
  SideStream* side = parallel ? &side_->of(stream) : nullptr;
  Stopwatch watch(observer, options_.device, stream);
  const Forward forward{.config = config_,
                        .options = options_,
                        .weights = weights_,
                        .ops = ops,
                        .step = step,
                        .caches = caches,
                        .cos_sin = cos_sin_,
                        .b = buffers,
                        .main = {.stream = stream, .scratch = buffers.scratch[0]},
                        .index_lane = {.stream = side == nullptr || ops.joint_inputs ? stream : side->stream.get(),
                                       .scratch = buffers.scratch[1]},
                        .side = side,
                        .observer = observer,
                        .watch = watch,
                        .tensor = options_.tensor_parallel.get(),
                        .context = options_.context_parallel.get()};
  std::unique_lock<std::mutex> lock;
  if (side != nullptr) lock = std::unique_lock(side->lock);
  forward.run(hidden, output);
}

void AttentionLayer::dummy_run(const LayerPlan& plan, const ConstTensorView& hidden, const TensorView& output,
                               Workspace workspace, Stream stream) const {
  const LayerPlan::Ops& ops = *plan.ops_;
  const DType act = activation_dtype(options_);
  check_tensor(kWhat, "hidden", hidden, {ops.tokens, config_.hidden_size}, {act});
  check_tensor(kWhat, "output", output, {ops.tokens, config_.hidden_size}, {act});
  check_distinct(kWhat, "output", output);
  check_that(workspace.bytes >= ops.workspace_bytes, kWhat, "workspace", std::to_string(workspace.bytes) + " bytes",
             "at least " + std::to_string(ops.workspace_bytes));
  std::size_t used = 0;
  const LayerBuffers buffers = ops.lay_out(config_, options_, workspace.data, &used);
  const HostTensor no_slots(DType::kI64, {0});
  // A cache of no blocks: an insert finds nowhere to write.
  LayerCaches no_caches;
  no_caches[CacheRole::kWindow] = {.format = options_.caches.rows, .block_size = 1};
  const ConstTensorView positions = buffers.zero_positions;
  const LayerStep step{.tokens = ops.tokens, .positions = positions, .window_slots = no_slots.view()};
  const Lane lane{.stream = stream, .scratch = buffers.scratch[0]};
  Stopwatch watch(nullptr, options_.device, stream);
  const Forward forward{.config = config_,
                        .options = options_,
                        .weights = weights_,
                        .ops = ops,
                        .step = step,
                        .caches = no_caches,
                        .cos_sin = cos_sin_,
                        .b = buffers,
                        .main = lane,
                        .index_lane = lane,
                        .side = nullptr,
                        .observer = nullptr,
                        .watch = watch,
                        .tensor = options_.tensor_parallel.get(),
                        .context = options_.context_parallel.get()};
  const auto zero = [&](const TensorView& v) {
    fill_bytes(options_.device, v.data, 0, static_cast<std::size_t>(v.numel() * size_of(v.dtype)), stream);
  };
  zero(buffers.zero_positions);
  forward.latent_projections(hidden);
  if (!ops.queries_norm) forward.latent_norms(lane);  // nothing reads keys
  forward.queries();
  forward.window();
  zero(buffers.o);
  forward.output(positions, output);
}

}  // namespace smla
