#include "layer/layer_plan.h"

#include "sparsemla/plan.h"

namespace smla {

namespace {

/// Bytes that the fp32 score matrix of a C4A layer may take; longer batches are scored a few rows at a time.
constexpr std::int64_t kScoreBudgetBytes = std::int64_t{64} << 20;

/// Makes op plans by the layer's options and keeps what they share.
class Chooser {
 public:
  Chooser(const LayerOptions& options, std::size_t* scratch, std::string* text) : options_(options), scratch_(scratch), text_(text) {}

  template <class Op>
  std::optional<Plan<Op>> make(const typename Op::Problem& problem) const {
    PlanOptions plan{.device = DeviceKind::kCpu, .implementation = "", .deterministic = options_.deterministic, .threads = options_.threads};
    if (const auto named = options_.implementations.find(Op::kName); named != options_.implementations.end()) {
      plan.implementation = named->second;
    } else if (const auto all = options_.implementations.find("*"); all != options_.implementations.end()) {
      for (const Candidate& c : explain<Op>(problem, plan)) {
        if (c.name == all->second && c.refusal.empty()) plan.implementation = c.name;
      }
    }
    std::optional<Plan<Op>> made(std::in_place, problem, plan);
    *scratch_ = std::max(*scratch_, made->workspace_bytes());
    const std::string entry = std::string(Op::kName) + " " + std::string(made->implementation());
    if ((", " + *text_ + ",").find(", " + entry + ",") == std::string::npos) *text_ += (text_->empty() ? "" : ", ") + entry;
    return made;
  }

 private:
  const LayerOptions& options_;
  std::size_t* scratch_;
  std::string* text_;
};

}  // namespace

std::size_t LayerPlan::workspace_bytes() const { return ops_->workspace_bytes; }
std::string LayerPlan::describe() const { return ops_->text; }

LayerBuffers LayerPlan::Ops::lay_out(const LayerConfig& c, const LayerOptions& options, void* base, std::size_t* used) const {
  Arena arena(base);
  const DType act = activation_dtype(options);
  const std::int64_t hi = c.index_n_heads;
  LayerBuffers b;
  b.qr = arena.take(act, {tokens, c.q_lora_rank});
  b.kv = arena.take(act, {tokens, c.head_dim});
  b.q = arena.take(act, {tokens, c.num_heads, c.head_dim});
  b.q_attn = options.q == DType::kE4M3 ? arena.take(DType::kE4M3, {tokens, c.num_heads, c.head_dim}) : b.q;
  if (c.has_compressor()) b.kv_score = arena.take(DType::kF32, {tokens, 2 * (c.has_indexer() ? 2 : 1) * c.head_dim});
  if (c.has_indexer()) {
    const RowFormat& format = *options.caches.index;
    b.index_kv_score = arena.take(DType::kF32, {tokens, std::int64_t{4} * c.index_head_dim});
    b.topk = arena.take(DType::kI32, {tokens, c.index_topk});
    b.slots = arena.take(DType::kI32, {tokens, c.index_topk});
    b.slot_lens = arena.take(DType::kI32, {tokens});
    if (!short_context) {
      b.index_weights = arena.take(act, {tokens, hi});
      b.index_q = arena.take(act, {tokens, hi, c.index_head_dim});
      const bool packed = format.nope == Element::kE2M1;
      const DType stored = packed ? DType::kU8 : (format.nope == Element::kE4M3 ? DType::kE4M3 : DType::kF32);
      b.index_q_stored = arena.take(stored, {tokens, hi, packed ? c.index_head_dim / 2 : c.index_head_dim});
      if (packed) b.index_q_scale = arena.take(DType::kU8, {tokens, hi, format.groups()});
      b.index_w = arena.take(DType::kF32, {tokens, hi});
      b.scores = arena.take(DType::kF32, {score_rows, score_width});
    }
  }
  b.o = arena.take(act, {tokens, c.num_heads, c.head_dim});
  b.z = arena.take(act, {tokens, c.o_groups * c.o_lora_rank});
  b.scratch_bytes = scratch_bytes;
  b.scratch = arena.raw(scratch_bytes);
  *used = arena.used();
  return b;
}

namespace {

using Ops = LayerPlan::Ops;

/// The compressor pair (save state, pool + store) of the layer, and of its indexer.
void plan_compressors(const Chooser& choose, const LayerConfig& c, const LayerOptions& options, Ops* ops) {
  const auto store = [&](int dim, const RowFormat* format, bool hadamard) {
    return choose.make<CompressStore>({.tokens = ops->tokens,
                                       .ratio = c.compress_ratio,
                                       .dim = dim,
                                       .rope_dim = c.rope_head_dim,
                                       .format = format,
                                       .hadamard = hadamard,
                                       .eps = c.rms_norm_eps,
                                       .clamp = options.clamp});
  };
  ops->save_state = choose.make<SaveState>({.tokens = ops->tokens, .ratio = c.compress_ratio, .dim = c.head_dim});
  ops->compress = store(c.head_dim, options.caches.rows, false);
  if (!c.has_indexer()) return;
  ops->save_index_state = choose.make<SaveState>({.tokens = ops->tokens, .ratio = c.compress_ratio, .dim = c.index_head_dim});
  ops->compress_index = store(c.index_head_dim, options.caches.index, c.hadamard);
}

/// Scoring and selection; the score matrix is cut along rows to stay within its budget.
void plan_indexer(const Chooser& choose, const LayerConfig& c, const LayerOptions& options, const LayerCaches& caches, Ops* ops) {
  const std::int64_t width = visible_entries(ops->max_seq_len - 1, c.compress_ratio);
  ops->short_context = options.short_context && width <= c.index_topk;
  ops->score_width = width;
  ops->score_rows = std::min(score_rows(width, kScoreBudgetBytes), std::max<std::int64_t>(ops->tokens, 1));
  ops->global_topk = choose.make<GlobalTopk>(
      {.requests = ops->requests, .tokens = ops->tokens, .k = c.index_topk, .storage_block = caches.compressed.block_size, .compact = true});
  if (ops->short_context) {
    ops->short_topk = choose.make<ShortContextTopk>({.tokens = ops->tokens, .ratio = c.compress_ratio, .k = c.index_topk});
    return;
  }
  ops->index_q = choose.make<IndexerQ>({.tokens = ops->tokens,
                                        .heads = c.index_n_heads,
                                        .dim = c.index_head_dim,
                                        .rope_dim = c.rope_head_dim,
                                        .in = activation_dtype(options),
                                        .format = options.caches.index,
                                        .hadamard = c.hadamard});
  const auto score = [&](std::int64_t rows) {
    return choose.make<IndexerLogits>(
        {.rows = rows, .heads = c.index_n_heads, .dim = c.index_head_dim, .width = width, .format = options.caches.index});
  };
  const std::int64_t tail = ops->tokens % ops->score_rows;
  ops->logits = score(ops->score_rows);
  ops->logits_tail = score(tail);
  ops->topk = choose.make<TopK>({.rows = ops->score_rows, .width = width, .k = c.index_topk});
  ops->topk_tail = choose.make<TopK>({.rows = tail, .width = width, .k = c.index_topk});
}

SparseAttention::Problem attention_problem(const LayerConfig& c, const LayerOptions& options, const LayerCaches& caches, const Ops& ops) {
  SparseAttention::Problem problem{.tokens = ops.tokens,
                                   .heads = c.num_heads,
                                   .out_heads = c.num_heads,
                                   .dim = c.head_dim,
                                   .q = options.q == DType::kE4M3 ? DType::kE4M3 : activation_dtype(options),
                                   .o = activation_dtype(options),
                                   .scopes = c.has_compressor() ? 2 : 1,
                                   .scope = {},
                                   .scale = 0.0F,
                                   .q_scale = options.q_scale,
                                   .partial = false};
  problem.scope[0] = {.format = options.caches.rows, .block_size = caches.window.block_size, .width = c.window};
  if (c.has_compressor()) {
    const std::int64_t width = c.has_indexer() ? c.index_topk : std::max<std::int64_t>(ops.max_seq_len / c.compress_ratio, 1);
    problem.scope[1] = {.format = options.caches.rows, .block_size = caches.compressed.block_size, .width = width};
  }
  return problem;
}

}  // namespace

LayerPlan AttentionLayer::plan(std::int64_t tokens, std::int64_t requests, std::int64_t max_seq_len, const LayerCaches& caches) const {
  const LayerConfig& c = config_;
  const DType act = activation_dtype(options_);
  auto ops = std::make_shared<LayerPlan::Ops>();
  ops->tokens = tokens;
  ops->requests = requests;
  ops->max_seq_len = max_seq_len;
  const Chooser choose(options_, &ops->scratch_bytes, &ops->text);
  const auto project = [&](const ConstTensorView& w, std::int64_t n, std::int64_t k, DType y, std::int64_t groups = 1) {
    return choose.make<Projection>({.m = tokens, .n = n, .k = k, .groups = groups, .x = act, .w = w.dtype, .y = y});
  };
  const auto norm = [&](std::int64_t dim) {
    return choose.make<RmsNorm>({.rows = tokens, .dim = dim, .in = act, .out = act, .has_weight = true, .eps = c.rms_norm_eps});
  };

  ops->wq_a = project(weights_.wq_a, c.q_lora_rank, c.hidden_size, act);
  ops->wkv = project(weights_.wkv, c.head_dim, c.hidden_size, act);
  ops->q_norm = norm(c.q_lora_rank);
  ops->kv_norm = norm(c.head_dim);
  ops->wq_b = project(weights_.wq_b, c.num_heads * c.head_dim, c.q_lora_rank, act);
  ops->insert = choose.make<QNormRopeInsert>({.tokens = tokens,
                                              .heads = c.num_heads,
                                              .out_heads = c.num_heads,
                                              .dim = c.head_dim,
                                              .rope_dim = c.rope_head_dim,
                                              .in = act,
                                              .q_out = options_.q == DType::kE4M3 ? DType::kE4M3 : act,
                                              .format = options_.caches.rows,
                                              .eps = c.rms_norm_eps,
                                              .q_scale_inv = 1.0F / options_.q_scale,
                                              .clamp = options_.clamp});
  if (c.has_compressor()) {
    ops->compressor_gemm = project(weights_.compressor.wkv, weights_.compressor.wkv.size(0), c.hidden_size, DType::kF32);
    plan_compressors(choose, c, options_, ops.get());
  }
  if (c.has_indexer()) {
    ops->index_compressor_gemm = project(weights_.index_compressor.wkv, weights_.index_compressor.wkv.size(0), c.hidden_size, DType::kF32);
    ops->index_weights_proj = project(weights_.index_weights_proj, c.index_n_heads, c.hidden_size, act);
    ops->index_wq_b = project(weights_.index_wq_b, c.index_n_heads * c.index_head_dim, c.q_lora_rank, act);
    plan_indexer(choose, c, options_, caches, ops.get());
  }
  ops->attention = choose.make<SparseAttention>(attention_problem(c, options_, caches, *ops));
  ops->inverse_rope =
      choose.make<InverseRope>({.tokens = tokens, .heads = c.num_heads, .dim = c.head_dim, .rope_dim = c.rope_head_dim, .in = act, .out = act});
  ops->wo_a = project(weights_.wo_a, c.o_lora_rank, c.num_heads / c.o_groups * c.head_dim, act, c.o_groups);
  ops->wo_b = project(weights_.wo_b, c.hidden_size, c.o_groups * c.o_lora_rank, act);
  ops->lay_out(c, options_, nullptr, &ops->workspace_bytes);

  LayerPlan plan;
  plan.ops_ = std::move(ops);
  return plan;
}

}  // namespace smla
