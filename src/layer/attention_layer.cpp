#include <array>
#include <chrono>
#include <cstring>

#include "core/check.h"
#include "core/host_tensor.h"
#include "layer/layer_plan.h"

namespace smla {

namespace {

constexpr std::string_view kWhat = "attention layer";

/// [rows, n] as the [rows, 1, n] that a projection takes.
template <class View>
View as_groups(const View& v, std::int64_t groups) {
  View out = v;
  out.rank = 3;
  out.shape = {v.size(0), groups, v.size(1) / groups, 0};
  out.stride = {v.stride[0], v.size(1) / groups, 1, 0};
  return out;
}

void check_compressor(const std::string& prefix, const CompressorWeights& w, const LayerConfig& c, std::int64_t dim) {
  const std::int64_t width = (c.has_indexer() ? 2 : 1) * dim;
  check_tensor(kWhat, prefix + "wkv", w.wkv, {width, c.hidden_size}, {DType::kBF16, DType::kF32});
  check_tensor(kWhat, prefix + "wgate", w.wgate, {width, c.hidden_size}, {w.wkv.dtype});
  check_tensor(kWhat, prefix + "ape", w.ape, {c.compress_ratio, width}, {DType::kF32, DType::kBF16});
  check_tensor(kWhat, prefix + "norm", w.norm, {dim}, {DType::kBF16, DType::kF32});
}

/// Runs the parts of a forward and reports the time of each.
class Stopwatch {
 public:
  explicit Stopwatch(LayerObserver* observer) : observer_(observer), last_(std::chrono::steady_clock::now()) {}
  void lap(Stage stage) {
    if (observer_ == nullptr) return;
    const auto now = std::chrono::steady_clock::now();
    observer_->on_stage(stage, std::chrono::duration<double>(now - last_).count());
    last_ = now;
  }

 private:
  LayerObserver* observer_;
  std::chrono::steady_clock::time_point last_;
};

/// What the parts of one forward share.
struct Forward {
  const LayerConfig& config;
  const LayerWeights& weights;
  const LayerPlan::Ops& ops;
  const LayerStep& step;
  const LayerCaches& caches;
  const ConstTensorView& cos_sin;
  const LayerBuffers& b;
  Workspace scratch;
  Stream stream;
  LayerObserver* observer;
  Stopwatch& watch;

  static ConstTensorView grouped(const ConstTensorView& w, const Projection::Problem& p) {
    ConstTensorView weight = w;
    weight.rank = 3;
    weight.shape = {p.groups, p.n, p.k, 0};
    weight.stride = {p.n * p.k, p.k, 1, 0};
    return weight;
  }
  void project(const Plan<Projection>& plan, const ConstTensorView& x, const ConstTensorView& w, const TensorView& y) const {
    const Projection::Problem& p = plan.problem();
    plan.run({.x = as_groups(x, p.groups), .w = grouped(w, p), .y = as_groups(y, p.groups)}, scratch, stream);
  }
  void input_projections(const ConstTensorView& hidden) const;
  void queries_and_window() const;
  void compress() const;
  void index() const;
  void score() const;
  void attend() const;
  void output(const ConstTensorView& positions, const TensorView& out) const;
};

void Forward::input_projections(const ConstTensorView& hidden) const {
  project(*ops.wq_a, hidden, weights.wq_a, b.qr);
  project(*ops.wkv, hidden, weights.wkv, b.kv);
  const auto kv_score = [&](const Plan<Projection>& plan, const CompressorWeights& w, const TensorView& out) {
    const std::int64_t half = out.size(1) / 2;
    project(plan, hidden, w.wkv, out.slice(1, 0, half));
    project(plan, hidden, w.wgate, out.slice(1, half, 2 * half));
  };
  if (config.has_compressor()) kv_score(*ops.compressor_gemm, weights.compressor, b.kv_score);
  if (config.chooses()) {
    kv_score(*ops.index_compressor_gemm, weights.index_compressor, b.index_kv_score);
    if (!ops.short_context) project(*ops.index_weights_proj, hidden, weights.index_weights_proj, b.index_weights);
  }
  watch.lap(Stage::kInputProjections);
}

void Forward::queries_and_window() const {
  ops.q_norm->run({.x = b.qr, .weight = weights.q_norm, .y = b.qr}, scratch, stream);
  ops.kv_norm->run({.x = b.kv, .weight = weights.kv_norm, .y = b.kv}, scratch, stream);
  watch.lap(Stage::kNorms);

  TensorView q_rows = b.q;
  q_rows.rank = 2;
  q_rows.shape = {ops.tokens, config.num_heads * config.head_dim, 0, 0};
  q_rows.stride = {config.num_heads * config.head_dim, 1, 0, 0};
  project(*ops.wq_b, b.qr, weights.wq_b, q_rows);
  watch.lap(Stage::kQProjection);

  ops.insert->run({.q = b.q,
                   .kv = b.kv,
                   .positions = step.positions,
                   .cos_sin = cos_sin,
                   .slot_mapping = step.window_slots,  // absent in a dummy run: nothing is inserted
                   .q_out = b.q_attn,
                   .cache = caches.window},
                  scratch, stream);
  watch.lap(Stage::kInsert);
}

void Forward::compress() const {
  const auto pair = [&](const Plan<SaveState>& save, const Plan<CompressStore>& store, const CompressorWeights& w, const TensorView& kv_score,
                        const ConstTensorView& slots, const ConstTensorView& table, const PagedCache& state, const PagedCache& entries) {
    save.run({.kv_score = kv_score, .ape = w.ape, .positions = step.positions, .state_slots = slots, .state = state}, scratch, stream);
    store.run({.positions = step.positions,
               .token_to_req = step.token_to_req,
               .state_slots = slots,
               .entry_slots = step.entry_slots,
               .block_table = table,
               .norm_weight = w.norm,
               .cos_sin = cos_sin,
               .state = state,
               .entries = entries},
              scratch, stream);
  };
  if (!config.has_compressor()) return;
  pair(*ops.save_state, *ops.compress, weights.compressor, b.kv_score, step.state_slots, step.state_block_table, caches.state, caches.compressed);
  if (config.chooses()) {
    pair(*ops.save_index_state, *ops.compress_index, weights.index_compressor, b.index_kv_score, step.index_state_slots, step.index_state_block_table,
         caches.index_state, caches.index);
  }
  watch.lap(Stage::kCompressor);
}

void Forward::score() const {
  TensorView rows = b.index_q;
  rows.rank = 2;
  rows.shape = {step.tokens, config.index_n_heads * config.index_head_dim, 0, 0};
  rows.stride = {config.index_n_heads * config.index_head_dim, 1, 0, 0};
  project(*ops.index_wq_b, b.qr, weights.index_wq_b, rows);
  ops.index_q->run({.q = b.index_q,
                    .weights = b.index_weights,
                    .positions = step.positions,
                    .cos_sin = cos_sin,
                    .q_out = b.index_q_stored,
                    .q_scale = b.index_q_scale,
                    .weights_out = b.index_w},
                   scratch, stream);
  watch.lap(Stage::kIndexer);
  for (std::int64_t begin = 0; begin < step.tokens; begin += ops.score_rows) {
    const std::int64_t end = std::min(begin + ops.score_rows, step.tokens);
    const bool whole = end - begin == ops.score_rows;
    const TensorView scores = b.scores.slice(0, 0, end - begin);
    (whole ? ops.logits : ops.logits_tail)
        ->run({.q = b.index_q_stored.slice(0, begin, end),
               .q_scale = b.index_q_scale.absent() ? ConstTensorView() : ConstTensorView(b.index_q_scale.slice(0, begin, end)),
               .weights = b.index_w.slice(0, begin, end),
               .row_to_req = step.token_to_req.slice(0, begin, end),
               .lens = step.entry_lens.slice(0, begin, end),
               .block_table = step.entry_block_table,
               .cache = caches.index,
               .logits = scores},
              scratch, stream);
    watch.lap(Stage::kIndexer);
    if (observer != nullptr) observer->on_tensor("index_scores", scores, begin);
    (whole ? ops.topk : ops.topk_tail)
        ->run({.logits = scores, .lens = step.entry_lens.slice(0, begin, end), .indices = step.topk.slice(0, begin, end)}, scratch, stream);
    watch.lap(Stage::kTopk);
  }
}

void Forward::index() const {
  if (!config.has_indexer()) return;
  if (config.chooses()) {
    if (ops.short_context) {
      ops.short_topk->run({.positions = step.positions, .indices = step.topk}, scratch, stream);
    } else {
      score();
    }
  }
  if (observer != nullptr) observer->on_tensor("topk", step.topk, 0);
  watch.lap(Stage::kTopk);
}

void Forward::attend() const {
  run_attention_calls(ops.attention, config, step, caches, weights.attn_sink, b.attention, scratch, stream);
  watch.lap(Stage::kAttention);
  if (observer != nullptr) observer->on_tensor("attention", b.o, 0);
}

void Forward::output(const ConstTensorView& positions, const TensorView& out) const {
  if (ops.inverse_rope_quant) {
    ops.inverse_rope_quant->run({.x = b.o, .positions = positions, .cos_sin = cos_sin, .values = b.o_values, .scales = b.o_scales}, scratch, stream);
    watch.lap(Stage::kInverseRope);
    const Projection::Problem& p = ops.wo_a->problem();
    ConstTensorView x = b.o_values;  // [G, T, D] seen as [T, G, D]
    x.shape = {p.m, p.groups, p.k, 0};
    x.stride = {p.k, p.m * p.k, 1, 0};
    ops.wo_a->run({.x = x, .w = grouped(weights.wo_a, p), .y = as_groups(b.z, p.groups), .x_scale = b.o_scales}, scratch, stream);
  } else {
    const std::int64_t width = config.num_heads * config.head_dim;
    const TensorView heads = b.o.slice(1, 0, config.num_heads);
    ops.inverse_rope->run({.x = heads, .positions = positions, .cos_sin = cos_sin, .y = b.o_heads}, scratch, stream);
    watch.lap(Stage::kInverseRope);
    TensorView o_rows = b.o_heads;
    o_rows.rank = 2;
    o_rows.shape = {positions.size(0), width, 0, 0};
    o_rows.stride = {width, 1, 0, 0};
    project(*ops.wo_a, o_rows, weights.wo_a, b.z);
  }
  project(*ops.wo_b, b.z, weights.wo_b, out);
  watch.lap(Stage::kOutputProjection);
}

}  // namespace

std::string_view name_of(Stage stage) {
  constexpr std::array<std::string_view, kNumStages> kNames{"input projections", "norms", "q projection", "insert",       "compressor",
                                                            "indexer",           "top-k", "attention",    "inverse rope", "output projection"};
  return kNames[static_cast<std::size_t>(stage)];
}

LayerCaches caches_of(const KvPool& pool, std::int64_t layer) {
  LayerCaches caches;
  const auto get = [&](CacheRole role) { return pool.layout().find(layer, role) == nullptr ? PagedCache{} : pool.cache(layer, role); };
  return {.window = get(CacheRole::kWindow),
          .compressed = get(CacheRole::kCompressed),
          .index = get(CacheRole::kIndex),
          .state = get(CacheRole::kState),
          .index_state = get(CacheRole::kIndexState)};
}

AttentionLayer::AttentionLayer(const LayerConfig& config, const LayerWeights& weights, const LayerOptions& options, const ConstTensorView& cos_sin)
    : config_(config), weights_(weights), options_(options), cos_sin_(cos_sin) {
  check_layer_config(config);
  const auto linear = {DType::kBF16, DType::kF32};
  check_tensor(kWhat, "wq_a", weights.wq_a, {config.q_lora_rank, config.hidden_size}, linear);
  check_tensor(kWhat, "q_norm", weights.q_norm, {config.q_lora_rank}, linear);
  check_tensor(kWhat, "wq_b", weights.wq_b, {config.num_heads * config.head_dim, config.q_lora_rank}, linear);
  check_tensor(kWhat, "wkv", weights.wkv, {config.head_dim, config.hidden_size}, linear);
  check_tensor(kWhat, "kv_norm", weights.kv_norm, {config.head_dim}, linear);
  check_tensor(kWhat, "wo_a", weights.wo_a, {config.o_groups * config.o_lora_rank, config.num_heads / config.o_groups * config.head_dim}, linear);
  check_tensor(kWhat, "wo_b", weights.wo_b, {config.hidden_size, config.o_groups * config.o_lora_rank}, linear);
  check_tensor(kWhat, "attn_sink", weights.attn_sink, {config.num_heads}, {DType::kF32});
  check_tensor(kWhat, "cos_sin", cos_sin, {kAny, config.rope_head_dim}, {DType::kF32});
  if (config.has_compressor()) check_compressor("compressor.", weights.compressor, config, config.head_dim);
  if (config.chooses()) {
    check_compressor("indexer.compressor.", weights.index_compressor, config, config.index_head_dim);
    check_tensor(kWhat, "indexer.wq_b", weights.index_wq_b, {config.index_n_heads * config.index_head_dim, config.q_lora_rank}, linear);
    check_tensor(kWhat, "indexer.weights_proj", weights.index_weights_proj, {config.index_n_heads, config.hidden_size}, linear);
  }
  check_options();
}

/// Completes the options: float32 rows at precision kF32, head padding, chunk limits. Strict: what upstream refuses at construction.
void AttentionLayer::check_options() {
  if (options_.precision == Precision::kF32) {
    options_.caches = {.rows = &f32_rows(), .index = &index_f32_rows(), .kv_scale = 1.0F};
    options_.q = DType::kBF16;  // attention reads float32 activations as they are
  }
  if (options_.chunks.max_model_len == 0) options_.chunks.max_model_len = cos_sin_.size(0);
  const std::int64_t upstream = options_.strict ? upstream_padded_heads(options_.front_end, config_.num_heads) : config_.num_heads;
  if (options_.padded_heads == 0) options_.padded_heads = upstream;
  check_that(options_.padded_heads >= config_.num_heads && options_.padded_heads <= 128, kWhat, "padded_heads", options_.padded_heads,
             std::to_string(config_.num_heads) + ", the layer's heads, to 128");
  check_that(!options_.fp8_output || config_.num_heads / config_.o_groups * config_.head_dim % InverseRopeQuant::kGroup == 0, kWhat,
             "dims of an output group", config_.num_heads / config_.o_groups * config_.head_dim,
             "a multiple of " + std::to_string(InverseRopeQuant::kGroup) + " for the FP8 output projection");
}

/// Upstream's texts for metadata that a step lacks (spec 8.7, 15) come first where they apply.
void AttentionLayer::check_step(const LayerStep& step) const {
  if (!config_.has_compressor()) return;
  const std::string kind = config_.has_indexer() ? "c4a" : "c128a";
  if (options_.strict && step.entry_lens.absent()) {
    throw InvalidArgument(options_.front_end == FrontEnd::kSm120 ? "Sparse MLA metadata is required for compressed layers."
                                                                 : "missing schedule entry for layer kind " + kind);
  }
  check_that(!step.entry_lens.absent() && !step.entry_slots.absent(), kWhat, "entry_lens and entry_slots of the step", std::string("none"),
             "those of a " + kind + " layer");
  if (config_.has_indexer()) {
    if (options_.strict && step.topk.absent()) throw InvalidArgument("C4A decode requires top-k indices from the indexer.");
    check_tensor(kWhat, "topk of the step", step.topk, {step.tokens, config_.index_topk}, {DType::kI32});
    return;
  }
  if (options_.strict && step.dense_indices.absent()) throw InvalidArgument("Compressed sparse MLA prefill requires compressed sparse indices.");
  check_that(!step.dense_indices.absent(), kWhat, "dense_indices of the step", std::string("none"), "those of a c128a layer");
}

void AttentionLayer::forward(const LayerPlan& plan, const LayerStep& step, const LayerCaches& caches, const ConstTensorView& hidden,
                             const TensorView& output, Workspace workspace, Stream stream, LayerObserver* observer) const {
  const LayerPlan::Ops& ops = *plan.ops_;
  const DType act = activation_dtype(options_);
  check_that(step.tokens == ops.tokens, kWhat, "tokens of the step", step.tokens, std::to_string(ops.tokens) + " as planned");
  check_that(step.requests == ops.requests, kWhat, "requests of the step", step.requests, std::to_string(ops.requests) + " as planned");
  check_that(step.max_seq_len <= ops.max_seq_len, kWhat, "max_seq_len of the step", step.max_seq_len, "at most " + std::to_string(ops.max_seq_len));
  check_that(step.max_seq_len <= cos_sin_.size(0), kWhat, "max_seq_len of the step", step.max_seq_len,
             "at most " + std::to_string(cos_sin_.size(0)) + ", the rows of cos_sin");
  check_tensor(kWhat, "hidden", hidden, {ops.tokens, config_.hidden_size}, {act});
  check_tensor(kWhat, "output", output, {ops.tokens, config_.hidden_size}, {act});
  check_that(workspace.bytes >= ops.workspace_bytes, kWhat, "workspace", std::to_string(workspace.bytes) + " bytes",
             "at least " + std::to_string(ops.workspace_bytes));

  check_that(step.split == ops.shape.split || !ops.attention.by_split, kWhat, "decode tokens of the step", step.split.decode_tokens,
             std::to_string(ops.shape.split.decode_tokens) + " as planned");
  check_that(step.window_indices.size(1) == ops.shape.window_width, kWhat, "columns of window_indices", step.window_indices.size(1),
             std::to_string(ops.shape.window_width) + " as planned");
  check_step(step);
  check_that(options_.front_end != FrontEnd::kFlashInfer || config_.has_indexer() || !step.mixed_indices.absent(), kWhat, "mixed_indices of the step",
             std::string("none"), "those of step metadata made for the flashinfer front-end");

  std::size_t used = 0;
  const LayerBuffers buffers = ops.lay_out(config_, options_, workspace.data, &used);
  Stopwatch watch(observer);
  const Forward forward{.config = config_,
                        .weights = weights_,
                        .ops = ops,
                        .step = step,
                        .caches = caches,
                        .cos_sin = cos_sin_,
                        .b = buffers,
                        .scratch = {.data = buffers.scratch, .bytes = buffers.scratch_bytes},
                        .stream = stream,
                        .observer = observer,
                        .watch = watch};
  forward.input_projections(hidden);
  forward.queries_and_window();
  forward.compress();
  forward.index();
  forward.attend();
  forward.output(step.positions, output);
}

void AttentionLayer::dummy_run(const LayerPlan& plan, const ConstTensorView& hidden, const TensorView& output, Workspace workspace,
                               Stream stream) const {
  const LayerPlan::Ops& ops = *plan.ops_;
  const DType act = activation_dtype(options_);
  check_tensor(kWhat, "hidden", hidden, {ops.tokens, config_.hidden_size}, {act});
  check_tensor(kWhat, "output", output, {ops.tokens, config_.hidden_size}, {act});
  check_that(workspace.bytes >= ops.workspace_bytes, kWhat, "workspace", std::to_string(workspace.bytes) + " bytes",
             "at least " + std::to_string(ops.workspace_bytes));
  std::size_t used = 0;
  const LayerBuffers buffers = ops.lay_out(config_, options_, workspace.data, &used);
  const HostTensor positions(DType::kI64, {ops.tokens});
  const HostTensor no_slots(DType::kI64, {0});
  // A cache of no blocks: an insert finds nowhere to write.
  const LayerCaches no_caches{.window = {.format = options_.caches.rows, .block_size = 1}};
  const LayerStep step{.tokens = ops.tokens, .positions = positions.view(), .window_slots = no_slots.view()};
  Stopwatch watch(nullptr);
  const Forward forward{.config = config_,
                        .weights = weights_,
                        .ops = ops,
                        .step = step,
                        .caches = no_caches,
                        .cos_sin = cos_sin_,
                        .b = buffers,
                        .scratch = {.data = buffers.scratch, .bytes = buffers.scratch_bytes},
                        .stream = stream,
                        .observer = nullptr,
                        .watch = watch};
  forward.input_projections(hidden);
  forward.queries_and_window();
  std::memset(buffers.o.data, 0, static_cast<std::size_t>(buffers.o.numel() * size_of(buffers.o.dtype)));
  forward.output(positions.view(), output);
}

}  // namespace smla
