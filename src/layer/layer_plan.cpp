#include "layer/layer_plan.h"

#include <utility>

#include "layer/joint_products.h"
#include "ops/attention/attention_split.h"
#include "sparsemla/plan.h"

namespace smla {

namespace {

/// LayerOptions::score_bytes, or what it is by itself.
std::int64_t score_budget(const LayerOptions& options) {
  if (options.score_bytes > 0) return options.score_bytes;
  return std::int64_t{options.device == DeviceKind::kCuda ? 512 : 64} << 20;
}

}  // namespace

std::size_t LayerPlan::workspace_bytes() const { return ops_->workspace_bytes; }
std::string LayerPlan::describe() const { return ops_->text; }

LayerBuffers LayerPlan::Ops::lay_out(const LayerConfig& c, const LayerOptions& options, void* base,
                                     std::size_t* used) const {
  Arena arena(base);
  const DType act = activation_dtype(options);
  const std::int64_t hi = c.index_n_heads;
  LayerBuffers b;
  const auto quantised = [&](std::int64_t dim, TensorView& values, TensorView& scales) {
    if (dim == 0) return;
    values = arena.take(DType::kE4M3, {tokens, dim});
    scales = arena.take(DType::kF32, {1, dim / QuantizeRows::kGroup, (tokens + 3) / 4 * 4});
  };
  const auto dim_of = [](const std::optional<Plan<QuantizeRows>>& plan) { return plan ? plan->problem().dim : 0; };
  quantised(dim_of(quantize_hidden), b.hidden_values, b.hidden_scales);
  quantised(latent_norms->problem().quantises_qr ? c.q_lora_rank : 0, b.qr_values, b.qr_scales);
  const bool by_wo_a = wo_a && wo_a->problem().quantises_y;
  quantised(by_wo_a ? c.o_groups * c.o_lora_rank : dim_of(quantize_z), b.z_values, b.z_scales);
  b.latents = arena.take(act, {tokens, c.q_lora_rank + c.head_dim});
  b.qr = b.latents.slice(1, 0, c.q_lora_rank);
  b.kv = b.latents.slice(1, c.q_lora_rank, c.q_lora_rank + c.head_dim);
  b.q = arena.take(act, {tokens, c.num_heads, c.head_dim});
  const bool padded = padded_heads > c.num_heads;
  const bool fp8_q = options.q == DType::kE4M3;
  b.q_attn = fp8_q || padded ? arena.take(fp8_q ? DType::kE4M3 : act, {tokens, padded_heads, c.head_dim}) : b.q;
  if (c.has_compressor()) {
    const std::int64_t main = 2 * (c.has_indexer() ? 2 : 1) * c.head_dim;
    const std::int64_t index = c.runs_indexer() ? 4 * c.index_head_dim : 0;
    b.kv_scores = arena.take(DType::kF32, {tokens, main + index});
    b.kv_score = b.kv_scores.slice(1, 0, main);
    if (index > 0) b.index_kv_score = b.kv_scores.slice(1, main, main + index);
  }
  if (c.runs_indexer()) {
    const RowFormat& format = *options.caches.index;
    if (!short_context) {
      b.index_weights = arena.take(act, {tokens, hi});
      b.index_q = arena.take(act, {tokens, hi, c.index_head_dim});
      const bool packed = format.nope == Element::kE2M1;
      const DType stored = packed ? DType::kU8 : (format.nope == Element::kE4M3 ? DType::kE4M3 : DType::kF32);
      b.index_q_stored = arena.take(stored, {tokens, hi, packed ? c.index_head_dim / 2 : c.index_head_dim});
      if (packed) b.index_q_scale = arena.take(DType::kU8, {tokens, hi, format.groups()});
      b.index_w = arena.take(DType::kF32, {tokens, hi});
      const std::size_t before = arena.used();
      if (context_topk) b.own_topk = arena.take(DType::kI32, {tokens, c.index_topk});
      b.scores = arena.take(DType::kF32, {score_rows, score_width});
      if (const std::size_t taken = arena.used() - before; taken < least_score_bytes)
        arena.raw(least_score_bytes - taken);
    }
  }
  b.o = arena.take(act, {tokens, padded_heads, c.head_dim});
  b.o_heads = padded ? b.q : b.o;  // the queries are no longer needed then
  if (fp8_output) {
    const std::int64_t width = c.num_heads / c.o_groups * c.head_dim;
    const std::int64_t groups = width / InverseRopeQuant::kGroup;
    const std::int64_t rows = (tokens + 3) / 4 * 4;
    b.o_values = arena.take(DType::kE4M3, {c.o_groups, tokens, width});
    b.o_scales = *fp8_output == OutputScale::kF32 ? arena.take(DType::kF32, {c.o_groups, groups, rows})
                                                  : arena.take(DType::kI32, {c.o_groups, (groups + 3) / 4, rows});
  }
  if (c.has_indexer() && row_of(options.front_end).reads_slots) {
    b.slots = arena.take(DType::kI32, {tokens, c.index_topk});
    b.slot_lens = arena.take(DType::kI32, {tokens});
  }
  b.attention_buffers =
      arena.raw(std::max(attention->buffer_bytes(), fused_attention == nullptr ? 0 : fused_attention->buffer_bytes()));
  b.z = arena.take(act, {tokens, c.o_groups * c.o_lora_rank});
  b.zero_positions = arena.take(DType::kI64, {tokens});
  b.scratch.fill({.data = arena.raw(scratch_bytes), .bytes = scratch_bytes});
  if (has_side_stream(c, options)) b.scratch[1].data = arena.raw(scratch_bytes);
  *used = arena.used();
  return b;
}

namespace {

using Ops = LayerPlan::Ops;

/// The compressor of the layer, and of its indexer.
void plan_compressors(const OpPlanner& planner, const LayerConfig& c, const LayerOptions& options, Ops* ops) {
  CompressStore::Problem p{.tokens = ops->tokens,
                           .ratio = c.compress_ratio,
                           .rope_dim = c.rope_head_dim,
                           .eps = c.rms_norm_eps,
                           .clamp = options.clamp};
  p.compressor[0] = {.dim = c.head_dim, .format = options.caches.rows};
  if (c.runs_indexer()) {
    p.compressors = 2;
    p.compressor[1] = {.dim = c.index_head_dim, .format = options.caches.index, .hadamard = c.hadamard};
  }
  ops->compress = planner.make<CompressStore>(p);
}

/// Scoring and selection; the score matrix is cut along rows to stay within its budget. slot_block: entries in a block
/// of the compressed cache.
void plan_indexer(const OpPlanner& planner, const LayerConfig& c, const LayerOptions& options, std::int64_t slot_block,
                  Ops* ops) {
  const bool ranks = options.context_parallel != nullptr;
  const EntryShare share = entry_share(options.caches, c.compress_ratio);
  // As many columns, and so rows at once, on every rank: all gather at the same time.
  const EntryShare first{.rank = 0, .ranks = share.ranks, .interleave = share.interleave};
  const std::int64_t most = first.count(visible_entries(ops->max_seq_len - 1, c.compress_ratio));
  const std::int64_t width = ranks ? std::max<std::int64_t>(most, 1) : most;  // ranks score without entries, too
  ops->short_context = options.short_context && width <= c.index_topk && !ranks;
  ops->score_width = width;
  ops->score_rows = std::min(score_rows(width, score_budget(options)), std::max<std::int64_t>(ops->tokens, 1));
  if (ops->short_context) {
    ops->short_topk =
        planner.make<ShortContextTopk>({.tokens = ops->tokens, .ratio = c.compress_ratio, .k = c.index_topk});
    return;
  }
  ops->index_q = planner.make<IndexerQ>({.tokens = ops->tokens,
                                         .heads = c.index_n_heads,
                                         .dim = c.index_head_dim,
                                         .rope_dim = c.rope_head_dim,
                                         .in = activation_dtype(options),
                                         .format = options.caches.index,
                                         .hadamard = c.hadamard});
  const auto score = [&](std::int64_t rows) {
    return planner.make<IndexerLogits>({.rows = rows,
                                        .heads = c.index_n_heads,
                                        .dim = c.index_head_dim,
                                        .width = width,
                                        .format = options.caches.index});
  };
  const std::int64_t tail = ops->tokens % ops->score_rows;
  ops->logits = score(ops->score_rows);
  ops->logits_tail = score(tail);
  if (ranks) {
    const auto select = [&](std::int64_t rows) {
      return planner.make_piece<ContextTopK, TopK>(
          ContextTopK::Problem{.rows = rows, .width = width, .k = c.index_topk, .share = share});
    };
    ops->context_topk = select(ops->score_rows);
    ops->context_topk_tail = select(tail);
    return;
  }
  if (row_of(options.front_end).reads_slots) ops->slot_block = slot_block;
  const auto select = [&](std::int64_t rows) {
    TopK::Problem p{.rows = rows, .width = width, .k = c.index_topk};
    if (ops->slot_block > 0) p.slots = {.storage_block = ops->slot_block};
    return planner.make<TopK>(p);
  };
  ops->topk = select(ops->score_rows);
  ops->topk_tail = select(tail);
  if (options.device != DeviceKind::kCuda || options.implementations.contains(IndexerLogits::kName) ||
      options.implementations.contains(TopK::kName))
    return;
  IndexerTopK::Problem p{.rows = ops->tokens,
                         .heads = c.index_n_heads,
                         .dim = c.index_head_dim,
                         .width = width,
                         .k = c.index_topk,
                         .format = options.caches.index};
  if (ops->slot_block > 0) p.slots = {.storage_block = ops->slot_block};
  ops->indexer_topk = planner.make_one_launch<IndexerTopK>(p);
}

/// The products of the latent queries. Where `sm90_stream` makes them of few rows they may norm these themselves, so
/// that no norm lies between them and the hidden states' product. A layer that reserves for its largest step has the
/// workspace of such products for smaller ones.
void plan_joint_queries(const OpPlanner& planner, const LayerConfig& c, const LayerOptions& options,
                        const LayerWeights& weights, bool joint, Ops* ops) {
  const JointProjection::Problem problem = joint_queries(c, options, weights, *ops, {}).problem;
  const std::int64_t most = normed_query_rows(c, options, weights, problem);
  const bool few = problem.m <= most;
  if (most > 0 && (few ? joint : has_joint_products(c, options, weights, most))) {
    std::string of_others;
    const OpPlanner aside(options, &ops->scratch_bytes, &of_others);
    JointProjection::Problem p = problem;
    p.m = std::min(p.m, most);
    if (aside.make<JointProjection>(p)->implementation() == JointProjection::kOneLaunchOnHopper) {
      p.norms_x = true;
      p.eps = c.rms_norm_eps;
      ops->joint_queries = (few ? planner : aside).make_named<JointProjection>(p, JointProjection::kOneLaunchOnHopper);
      ops->queries_norm = few && ops->joint_queries;
      if (ops->queries_norm) return;
    }
  }
  ops->joint_queries.reset();
  if (joint) ops->joint_queries = planner.make<JointProjection>(problem);
}

/// wq_b and the indexer's as products of their own, by the kernel that both have together.
void plan_queries_apart(const OpPlanner& planner, const LayerConfig& c, const LayerOptions& options,
                        const LayerWeights& weights, Ops* ops) {
  const std::string_view kernel = ops->joint_queries->implementation();
  const bool streams = kernel == JointProjection::kOneLaunch || kernel == JointProjection::kOneLaunchOnHopper;
  // Without it attention's queries are made of wq_b's product before the indexer runs.
  const bool late = ops->query_prologue.has_value();
  if (ops->tokens > kQueriesApartRows || ops->joint_queries->problem().parts < 2 || !streams || !late ||
      !has_side_stream(c, options))
    return;
  JointProjection::Problem beside = joint_wq_b(c, options, weights, *ops, {}).problem;
  beside.leaves_room = wq_b_leaves_room(weights);
  auto wq_b = planner.make_named<JointProjection>(beside, kernel);
  auto index = planner.make_named<JointProjection>(joint_index_wq_b(c, options, weights, *ops, {}).problem, kernel);
  if (!wq_b || !index) return;
  ops->joint_wq_b = std::move(wq_b);
  ops->joint_index_wq_b = std::move(index);
  ops->compressors_apart =
      ops->queries_norm && ops->compress->workspace_bytes() == 0 && compressors_run_apart(weights, ops->tokens);
  ops->index_q_rehearses = index_queries_rehearse(weights, ops->tokens);
}

/// The rotation back and the output projection, in the activations' dtype or in FP8 (spec 2).
void plan_output(const OpPlanner& planner, const LayerConfig& c, const LayerOptions& options,
                 const LayerWeights& weights, Ops* ops) {
  const DType act = activation_dtype(options);
  const std::int64_t width = c.num_heads / c.o_groups * c.head_dim;
  Projection::Problem wo_a{.m = ops->tokens,
                           .n = c.o_lora_rank,
                           .k = width,
                           .groups = c.o_groups,
                           .x = act,
                           .w = weights.wo_a.dtype,
                           .y = act};
  if (ops->fp8_output) {
    ops->inverse_rope_quant = planner.make<InverseRopeQuant>({.tokens = ops->tokens,
                                                              .heads = c.num_heads,
                                                              .groups = c.o_groups,
                                                              .dim = c.head_dim,
                                                              .rope_dim = c.rope_head_dim,
                                                              .in = act,
                                                              .scale = *ops->fp8_output});
    wo_a.x = DType::kE4M3;
    wo_a.x_scale = *ops->fp8_output;
  } else {
    ops->inverse_rope = planner.make<InverseRope>({.tokens = ops->tokens,
                                                   .heads = c.num_heads,
                                                   .dim = c.head_dim,
                                                   .rope_dim = c.rope_head_dim,
                                                   .in = act,
                                                   .out = act});
  }
  const bool joint = ops->joint_inputs.has_value();
  const bool fp8 = ops->rounds_fp8_inputs && weights.wo_b.dtype == DType::kE4M3;  // never of joint products
  wo_a.quantises_y = fp8 && c.o_lora_rank % Projection::kScaleGroup == 0;
  if (joint && !ops->fp8_output) {
    ops->output_projection =
        planner.make_one_launch<OutputProjection>(output_projection(c, options, weights, *ops, {}, {}).problem);
    if (ops->output_projection) return;
    ops->joint_wo_a = planner.make<JointProjection>(joint_wo_a(c, options, weights, *ops, {}).problem);
  } else {
    ops->wo_a = planner.make<Projection>(wo_a);
  }
  if (joint) {
    ops->joint_wo_b = planner.make<JointProjection>(joint_wo_b(c, options, weights, *ops, {}, {}).problem);
    return;
  }
  const std::int64_t latent = c.o_groups * c.o_lora_rank;
  if (fp8 && !wo_a.quantises_y)
    ops->quantize_z = planner.make<QuantizeRows>({.rows = ops->tokens, .dim = latent, .in = act});
  ops->wo_b = planner.make<Projection>({.m = ops->tokens,
                                        .n = c.hidden_size,
                                        .k = latent,
                                        .groups = 1,
                                        .x = fp8 ? DType::kE4M3 : act,
                                        .w = weights.wo_b.dtype,
                                        .y = act});
}

}  // namespace

LayerPlan AttentionLayer::plan(const StepShape& shape, const LayerCaches& caches) const {
  LayerPlan plan;
  plan.ops_ = make_ops(shape, caches, options_, 0, 0);
  return plan;
}

/// From so many tokens on attention quantises its output for an FP8 projection itself. Lists of fewer may be cut by
/// their lengths, which the kernels that quantise do not know: a forward that is observed would differ in bits.
constexpr std::int64_t kFewestQuantisedTokens = 513;

/// The ops of a step shape. `least_score_bytes`: see LayerPlan::Ops. `least_scratch_bytes`: what attention's calls of
/// other shapes may need, whose lists are cut into more parts.
std::shared_ptr<const LayerPlan::Ops> AttentionLayer::make_ops(const StepShape& shape, const LayerCaches& caches,
                                                               const LayerOptions& options,
                                                               std::size_t least_score_bytes,
                                                               std::size_t least_scratch_bytes) const {
  const LayerConfig& c = config_;
  const DType act = activation_dtype(options);
  const std::int64_t tokens = shape.tokens;
  auto ops = std::make_shared<LayerPlan::Ops>();
  ops->shape = shape;
  ops->tokens = tokens;
  ops->requests = shape.requests;
  ops->max_seq_len = shape.max_seq_len;
  ops->padded_heads = options.padded_heads;
  ops->least_score_bytes = least_score_bytes;
  const bool joint = has_joint_products(c, options, weights_, tokens);
  ops->rounds_fp8_inputs = may_round_fp8_inputs(options) && !joint;
  ops->fp8_output = options.fp8_output;
  if (ops->rounds_fp8_inputs && weights_.wo_a.dtype == DType::kE4M3 && !ops->fp8_output)
    ops->fp8_output = OutputScale::kF32;
  const bool over_ranks = options.context_parallel != nullptr && c.has_compressor();
  if (options.device == DeviceKind::kCuda && options.padded_heads == c.num_heads && !over_ranks) {
    if (!ops->fp8_output) ops->output_epilogue = {.rope_dim = c.rope_head_dim};
    if (options.q != DType::kE4M3) ops->query_prologue = {.rope_dim = c.rope_head_dim, .eps = c.rms_norm_eps};
  }
  const OpPlanner planner(options, &ops->scratch_bytes, &ops->text);
  const auto fp8 = [&](const ConstTensorView& w) {
    return ops->rounds_fp8_inputs && !w.absent() && w.dtype == DType::kE4M3;
  };
  const auto project = [&](const ConstTensorView& w, std::int64_t n, std::int64_t k, DType y) {
    return planner.make<Projection>(
        {.m = tokens, .n = n, .k = k, .groups = 1, .x = fp8(w) ? DType::kE4M3 : act, .w = w.dtype, .y = y});
  };
  const auto quantize = [&](std::int64_t dim) {
    return planner.make<QuantizeRows>({.rows = tokens, .dim = dim, .in = act});
  };
  if (options.strict)
    check_upstream_blocks(caches[CacheRole::kWindow].block_size, caches[CacheRole::kCompressed].block_size,
                          c.compress_ratio);

  if (!joint) {
    if (fp8(weights_.wq_a) || fp8(weights_.wkv)) ops->quantize_hidden = quantize(c.hidden_size);
    ops->wq_a = project(weights_.wq_a, c.q_lora_rank, c.hidden_size, act);
    ops->wkv = project(weights_.wkv, c.head_dim, c.hidden_size, act);
    if (weights_.wq_a.dtype == weights_.wkv.dtype && weights_.wq_a.dtype != Projection::kNvfp4)
      ops->latents = project(weights_.wkv, c.q_lora_rank + c.head_dim, c.hidden_size, act);
  }
  if (!joint) ops->wq_b = project(weights_.wq_b, c.num_heads * c.head_dim, c.q_lora_rank, act);
  ops->insert = planner.make<QNormRopeInsert>({.tokens = tokens,
                                               .heads = c.num_heads,
                                               .out_heads = options.padded_heads,
                                               .dim = c.head_dim,
                                               .rope_dim = c.rope_head_dim,
                                               .in = act,
                                               .q_out = options.q == DType::kE4M3 ? DType::kE4M3 : act,
                                               .format = options.caches.rows,
                                               .eps = c.rms_norm_eps,
                                               .q_scale_inv = 1.0F / options.q_scale,
                                               .clamp = options.clamp});
  if (c.has_compressor()) {
    if (!joint) {
      ops->compressor_gemm =
          project(weights_.compressor.wkv, weights_.compressor.wkv.size(0), c.hidden_size, DType::kF32);
      std::int64_t outputs = 2 * weights_.compressor.wkv.size(0);
      if (c.runs_indexer()) outputs += 2 * weights_.index_compressor.wkv.size(0);
      const DType dtype = weights_.compressor.wkv.dtype;
      if (dtype != Projection::kNvfp4 && (!c.runs_indexer() || dtype == weights_.index_compressor.wkv.dtype))
        ops->compressors = project(weights_.compressor.wkv, outputs, c.hidden_size, DType::kF32);
    }
    plan_compressors(planner, c, options, ops.get());
  }
  if (c.runs_indexer()) {
    if (!joint) {
      ops->index_compressor_gemm =
          project(weights_.index_compressor.wkv, weights_.index_compressor.wkv.size(0), c.hidden_size, DType::kF32);
      ops->index_weights_proj = project(weights_.index_weights_proj, c.index_n_heads, c.hidden_size, act);
      ops->index_wq_b = project(weights_.index_wq_b, c.index_n_heads * c.index_head_dim, c.q_lora_rank, act);
    }
    plan_indexer(planner, c, options, caches[CacheRole::kCompressed].block_size, ops.get());
  }
  // After the indexer's plan, which says whether it scores.
  if (joint)
    ops->joint_inputs = planner.make<JointProjection>(joint_inputs(c, options, weights_, *ops, {}, {}).problem);
  plan_joint_queries(planner, c, options, weights_, joint, ops.get());
  if (joint) plan_queries_apart(planner, c, options, weights_, ops.get());
  LatentNorms::Problem norms{
      .rows = tokens,
      .qr_dim = ops->queries_norm ? 0 : c.q_lora_rank,
      .kv_dim = c.head_dim,
      .in = act,
      .out = act,
      .eps = c.rms_norm_eps,
      .quantises_qr = !joint && (fp8(weights_.wq_b) || (c.runs_indexer() && fp8(weights_.index_wq_b)))};
  ops->latent_norms = planner.make<LatentNorms>(norms);
  norms.insert = {.format = options.caches.rows, .rope_dim = c.rope_head_dim, .clamp = options.clamp};
  if (ops->query_prologue) ops->latent_norms_and_insert = planner.make<LatentNorms>(norms);
  AttentionPlanning planning{.planner = planner,
                             .config = c,
                             .shape = shape,
                             .caches = caches,
                             .topk_writes_slots = ops->slot_block > 0,
                             .others_prologue = ops->query_prologue,
                             .others_epilogue = ops->output_epilogue};
  const FrontEndRow& front_end = row_of(options.front_end);
  ops->attention = over_ranks ? plan_context_calls(planning) : front_end.plan(planning);
  if (ops->query_prologue || ops->output_epilogue) {
    std::swap(planning.query_prologue, planning.others_prologue);
    std::swap(planning.output_epilogue, planning.others_epilogue);
    ops->fused_attention = front_end.plan(planning);
  }
  if (ops->fp8_output && options.device == DeviceKind::kCuda && options.padded_heads == c.num_heads && !over_ranks &&
      act == DType::kBF16 && tokens >= kFewestQuantisedTokens) {
    bool quantises = true;
    AttentionPlanning quantised = planning;
    quantised.query_prologue = ops->query_prologue;
    quantised.output_epilogue = {.rope_dim = c.rope_head_dim, .groups = c.o_groups, .scale = *ops->fp8_output};
    quantised.others_prologue = ops->query_prologue;
    quantised.others_epilogue.reset();
    quantised.quantises = &quantises;
    std::unique_ptr<const AttentionCalls> calls = front_end.plan(quantised);
    if (quantises) ops->fused_attention = std::move(calls), ops->fused_attention_quantises = true;
  }
  plan_output(planner, c, options, weights_, ops.get());
  // Pieces of several ranks keep more in it than attention's workspace.
  ops->scratch_bytes =
      over_ranks ? ops->scratch_bytes + least_scratch_bytes : std::max(ops->scratch_bytes, least_scratch_bytes);
  ops->lay_out(c, options, nullptr, &ops->workspace_bytes);
  return ops;
}

std::size_t AttentionLayer::reserve_bytes(std::int64_t tokens, std::int64_t requests, std::int64_t max_seq_len,
                                          const LayerCaches& caches) const {
  const LayerConfig& c = config_;
  LayerOptions options = options_;
  options.short_context = false;  // scoring needs more
  options.strict = false;         // a shape that upstream's kernels refuse is not run, only measured
  // The score matrix is cut to its budget whatever its width; only a row wider than the budget takes more.
  const std::int64_t width = std::max<std::int64_t>(visible_entries(max_seq_len - 1, config_.compress_ratio), 1);
  const std::int64_t scores =
      std::min(std::max(score_budget(options), 4 * width), 4 * width * std::max<std::int64_t>(tokens, 1));
  StepShape shape = StepShape::decodes(tokens, requests, max_seq_len);
  shape.window_width = std::max<std::int64_t>(shape.window_width, draft_window_width(config_.window, tokens));
  const std::size_t scratch =
      options.device == DeviceKind::kCuda ? static_cast<std::size_t>(AttentionSplit::kMostBytes) : 0;
  const std::size_t bytes =
      make_ops(shape, caches, options, static_cast<std::size_t>(scores), scratch)->workspace_bytes;
  const auto most_buffer_bytes = row_of(options.front_end).most_buffer_bytes;
  return bytes + (most_buffer_bytes == nullptr ? 0 : most_buffer_bytes(c, options, tokens, max_seq_len));
}

}  // namespace smla
