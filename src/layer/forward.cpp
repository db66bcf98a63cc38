// The parts of a forward in their order.
#include "layer/forward.h"

#include "layer/grouped_views.h"
#include "layer/joined_weights.h"

namespace smla {

void Forward::project(const Lane& lane, const Plan<Projection>& plan, const Input& x, const LinearWeight& weight,
                      const TensorView& y) const {
  const Projection::Problem& p = plan.problem();
  const bool fp8 = p.x == DType::kE4M3;
  plan.run({.x = as_groups(fp8 ? x.values : x.x, p.groups),
            .w = grouped(weight.w, p.groups),
            .y = as_groups(y, p.groups),
            .x_scale = fp8 ? x.scales : ConstTensorView(),
            .w_scale = grouped_scales(weight.w, weight.scale, p.groups),
            .w_global_scale = weight.global_scale,
            .y_values = p.quantises_y ? b.z_values : TensorView(),  // of wo_a alone
            .y_scales = p.quantises_y ? b.z_scales : TensorView()},
           lane.scratch, lane.stream);
}

void Forward::latent_projections(const ConstTensorView& hidden) const {
  if (ops.joint_inputs) {
    run_joint(*ops.joint_inputs, joint_inputs(config, options, weights, ops, b, hidden));
    return;
  }
  const Input input{.x = hidden, .values = b.hidden_values, .scales = b.hidden_scales};
  if (ops.quantize_hidden)
    ops.quantize_hidden->run({.x = hidden, .values = b.hidden_values, .scales = b.hidden_scales}, main.scratch,
                             main.stream);
  if (const JoinedWeight both = joined_latents(weights); ops.latents && !both.w.absent()) {
    project(main, *ops.latents, input, {both.w, both.scale}, b.latents);
    return;
  }
  project(main, *ops.wq_a, input, linear_wq_a(weights), b.qr);
  project(main, *ops.wkv, input, linear_wkv(weights), b.kv);
}

/// What compressors and indexer make of the hidden states; their weights are never FP8.
void Forward::compressor_projections(const ConstTensorView& hidden) const {
  if (ops.joint_inputs) return;
  const auto kv_score = [&](const Plan<Projection>& plan, const CompressorWeights& w, const TensorView& out) {
    const std::int64_t half = out.size(1) / 2;
    project(index_lane, plan, {.x = hidden}, linear_wkv(w), out.slice(1, 0, half));
    project(index_lane, plan, {.x = hidden}, linear_wgate(w), out.slice(1, half, 2 * half));
  };
  if (const JoinedWeight all = joined_compressors(config, weights); ops.compressors && !all.w.absent()) {
    project(index_lane, *ops.compressors, {.x = hidden}, {all.w}, b.kv_scores);
  } else {
    if (config.has_compressor()) kv_score(*ops.compressor_gemm, weights.compressor, b.kv_score);
    if (config.runs_indexer()) kv_score(*ops.index_compressor_gemm, weights.index_compressor, b.index_kv_score);
  }
  if (config.runs_indexer() && !ops.short_context)
    project(index_lane, *ops.index_weights_proj, {.x = hidden}, linear_index_weights_proj(weights), b.index_weights);
}

void Forward::latent_norms(const Lane& lane, bool beside_previous) const {
  const TensorView qr = ops.queries_norm ? b.qr.slice(1, 0, 0) : b.qr;
  LatentNorms::Args args{.qr = qr,
                         .qr_weight = ops.queries_norm ? weights.q_norm.slice(0, 0, 0) : weights.q_norm,
                         .qr_out = qr,
                         .qr_values = b.qr_values,
                         .qr_scales = b.qr_scales,
                         .kv = b.kv,
                         .kv_weight = weights.kv_norm,
                         .beside_previous = beside_previous};
  if (has_query_prologue()) {
    args.insert = {.positions = step.positions,
                   .cos_sin = cos_sin,
                   .slot_mapping = step.window_slots,
                   .cache = caches[CacheRole::kWindow]};
    ops.latent_norms_and_insert->run(args, lane.scratch, lane.stream);
  } else {
    args.kv_out = b.kv;
    ops.latent_norms->run(args, lane.scratch, lane.stream);
  }
  watch.lap(Stage::kNorms);
}

void Forward::queries() const {
  if (ops.joint_wq_b) {
    queries_apart();
  } else if (ops.joint_queries) {
    run_joint(*ops.joint_queries, joint_queries(config, options, weights, ops, b));
  } else {
    project(main, *ops.wq_b, {.x = b.qr, .values = b.qr_values, .scales = b.qr_scales}, linear_wq_b(weights),
            as_rows(b.q));
  }
  watch.lap(Stage::kQProjection);
}

void Forward::queries_apart() const {
  const Stream beside = side == nullptr ? main.stream : side->stream.get();
  if (side != nullptr) side->queries_ready.record(main.stream);
  ops.joint_index_wq_b->run(joint_index_wq_b(config, options, weights, ops, b).args, index_lane.scratch, main.stream);
  if (side != nullptr) side->queries_ready.make_wait(beside);
  ops.joint_wq_b->run(joint_wq_b(config, options, weights, ops, b).args, main.scratch, beside);
  if (ops.queries_norm) latent_norms({.stream = beside, .scratch = main.scratch}, /*beside_previous=*/true);
  if (side != nullptr) side->done.record(beside);
}

void Forward::window() const {
  if (has_query_prologue()) return;
  ops.insert->run({.q = b.q,
                   .kv = b.kv,
                   .positions = step.positions,
                   .cos_sin = cos_sin,
                   .slot_mapping = step.window_slots,  // absent in a dummy run: nothing is inserted
                   .q_out = b.q_attn,
                   .cache = caches[CacheRole::kWindow]},
                  main.scratch, main.stream);
  watch.lap(Stage::kInsert);
}

/// Whether a step of one stream runs its norms beside its compressors (docs/kernels/decode-layer.md "Beside the
/// compressor" has the measurements).
bool Forward::norms_beside_compressor() const {
  constexpr std::int64_t kMost = 256;  // of more tokens either fills the GPU
  constexpr std::int64_t kC128a = 8;   // of fewer its compressor is over before the norms could begin
  const std::int64_t tokens = step.positions.size(0);
  // Without states to write the compressors launch nothing.
  const bool compresses = config.has_compressor() && !step.state_slots.absent() && step.state_slots.size(0) > 0;
  return compresses && tokens <= kMost && (config.has_indexer() || tokens >= kC128a);
}

/// The layer's compressor and its indexer's.
void Forward::compress(const Lane& lane, bool beside_previous) const {
  if (!config.has_compressor()) return;
  CompressStore::Args args{.positions = step.positions,
                           .token_to_req = step.token_to_req,
                           .entry_slots = step.entry_slots,
                           .cos_sin = cos_sin,
                           .compressors = {},
                           .beside_previous = beside_previous};
  args.compressors[0] = {.state_slots = step.state_slots,
                         .block_table = step.state_block_table,
                         .norm_weight = weights.compressor.norm,
                         .kv_score = b.kv_score,
                         .ape = weights.compressor.ape,
                         .state = caches[CacheRole::kState],
                         .entries = caches[CacheRole::kCompressed]};
  if (config.runs_indexer()) {
    args.compressors[1] = {.state_slots = step.index_state_slots,
                           .block_table = step.index_state_block_table,
                           .norm_weight = weights.index_compressor.norm,
                           .kv_score = b.index_kv_score,
                           .ape = weights.index_compressor.ape,
                           .state = caches[CacheRole::kIndexState],
                           .entries = caches[CacheRole::kIndex]};
  }
  ops.compress->run(args, lane.scratch, lane.stream);
  watch.lap(Stage::kCompressor);
}

void Forward::compress_apart() const {
  const Stream stream = side->compressors();
  side->begun.record(main.stream);
  side->begun.make_wait(stream);
  compress({.stream = stream, .scratch = {}});
  side->compressed.record(stream);
}

void Forward::score() const {
  if (!ops.joint_queries) {
    project(index_lane, *ops.index_wq_b, {.x = b.qr, .values = b.qr_values, .scales = b.qr_scales},
            linear_index_wq_b(weights), as_rows(b.index_q));
  }
  ops.index_q->run({.q = b.index_q,
                    .weights = b.index_weights,
                    .positions = step.positions,
                    .cos_sin = cos_sin,
                    .q_out = b.index_q_stored,
                    .q_scale = b.index_q_scale,
                    .weights_out = b.index_w,
                    .rehearses = ops.index_q_rehearses},
                   index_lane.scratch, index_lane.stream);
  watch.lap(Stage::kIndexer);
  if (compresses_apart()) side->compressed.make_wait(index_lane.stream);
  const auto slots = [&](std::int64_t begin, std::int64_t end) {
    if (ops.slot_block == 0) return TopK::Slots::Args{};
    return TopK::Slots::Args{.token_to_req = step.token_to_req.slice(0, begin, end),
                             .block_table = step.entry_block_table,
                             .valid = step.valid.slice(0, begin, end),
                             .slots = b.slots.slice(0, begin, end),
                             .lens = b.slot_lens.slice(0, begin, end)};
  };
  if (ops.indexer_topk && observer == nullptr) {
    ops.indexer_topk->run({.q = b.index_q_stored,
                           .q_scale = b.index_q_scale,
                           .weights = b.index_w,
                           .row_to_req = step.token_to_req,
                           .lens = step.entry_lens,
                           .block_table = step.entry_block_table,
                           .cache = caches[CacheRole::kIndex],
                           .indices = step.topk,
                           .slots = slots(0, step.tokens)},
                          index_lane.scratch, index_lane.stream);
    watch.lap(Stage::kTopk);
    return;
  }
  for (std::int64_t begin = 0; begin < step.tokens; begin += ops.score_rows) {
    const std::int64_t end = std::min(begin + ops.score_rows, step.tokens);
    const bool whole = end - begin == ops.score_rows;
    const TensorView scores = b.scores.slice(0, 0, end - begin);
    (whole ? ops.logits : ops.logits_tail)
        ->run({.q = b.index_q_stored.slice(0, begin, end),
               .q_scale =
                   b.index_q_scale.absent() ? ConstTensorView() : ConstTensorView(b.index_q_scale.slice(0, begin, end)),
               .weights = b.index_w.slice(0, begin, end),
               .row_to_req = step.token_to_req.slice(0, begin, end),
               .lens = step.entry_lens.slice(0, begin, end),
               .block_table = step.entry_block_table,
               .cache = caches[CacheRole::kIndex],
               .logits = scores},
              index_lane.scratch, index_lane.stream);
    watch.lap(Stage::kIndexer);
    if (observer != nullptr) observer->on_tensor("index_scores", scores, begin);
    if (ops.context_topk) {
      (whole ? ops.context_topk : ops.context_topk_tail)
          ->run(*context,
                {.logits = scores,
                 .lens = step.entry_lens.slice(0, begin, end),
                 .chosen = step.topk.slice(0, begin, end),
                 .own = b.own_topk.slice(0, begin, end)},
                index_lane.scratch, index_lane.stream);
      watch.lap(Stage::kTopk);
      continue;
    }
    (whole ? ops.topk : ops.topk_tail)
        ->run({.logits = scores,
               .lens = step.entry_lens.slice(0, begin, end),
               .indices = step.topk.slice(0, begin, end),
               .slots = slots(begin, end)},
              index_lane.scratch, index_lane.stream);
    watch.lap(Stage::kTopk);
  }
}

void Forward::index() const {
  if (!config.has_indexer()) return;
  if (config.runs_indexer()) {
    if (ops.short_context) {
      ops.short_topk->run({.positions = step.positions, .indices = step.topk}, index_lane.scratch, index_lane.stream);
    } else {
      score();
    }
  }
  if (observer != nullptr) observer->on_tensor("topk", step.topk, 0);
  watch.lap(Stage::kTopk);
}

void Forward::attend() const {
  const bool fused = observer == nullptr && ops.fused_attention != nullptr;
  const AttentionCalls& calls = fused ? *ops.fused_attention : *ops.attention;
  calls.run({.config = config,
             .step = step,
             .caches = caches,
             .sink = weights.attn_sink,
             .cos_sin = cos_sin,
             .q = b.q_attn,
             .o = b.o,
             .o_values = quantises() ? b.o_values : TensorView(),
             .o_scales = quantises() ? b.o_scales : TensorView(),
             .slots = b.slots,
             .slot_lens = b.slot_lens,
             .buffers = b.attention_buffers,
             .scratch = main.scratch,
             .stream = main.stream,
             .own_topk = b.own_topk,
             .context = context});
  watch.lap(Stage::kAttention);
  if (observer != nullptr) observer->on_tensor("attention", b.o, 0);
}

void Forward::output(const ConstTensorView& positions, const TensorView& out) const {
  if (ops.inverse_rope_quant) {
    if (!quantises()) {
      ops.inverse_rope_quant->run(
          {.x = b.o, .positions = positions, .cos_sin = cos_sin, .values = b.o_values, .scales = b.o_scales},
          main.scratch, main.stream);
    }
    watch.lap(Stage::kInverseRope);
    const Projection::Problem& p = ops.wo_a->problem();
    ConstTensorView x = b.o_values;  // [G, T, D] seen as [T, G, D]
    x.shape = {p.m, p.groups, p.k, 0};
    x.stride = {p.k, p.m * p.k, 1, 0};
    ops.wo_a->run({.x = x,
                   .w = grouped(weights.wo_a, p.groups),
                   .y = as_groups(b.z, p.groups),
                   .x_scale = b.o_scales,
                   .w_scale = grouped_scales(weights.wo_a, weights.wo_a_scale, p.groups),
                   .w_global_scale = weights.wo_a_global_scale,
                   .y_values = p.quantises_y ? b.z_values : TensorView(),
                   .y_scales = p.quantises_y ? b.z_scales : TensorView()},
                  main.scratch, main.stream);
  } else {
    const TensorView heads = b.o.slice(1, 0, config.num_heads);
    if (!has_output_epilogue())
      ops.inverse_rope->run({.x = heads, .positions = positions, .cos_sin = cos_sin, .y = b.o_heads}, main.scratch,
                            main.stream);
    watch.lap(Stage::kInverseRope);
    if (ops.output_projection) {
      ops.output_projection->run(output_projection(config, options, weights, ops, b, out).args, main.scratch,
                                 main.stream);
    } else if (ops.joint_wo_a) {
      run_joint(*ops.joint_wo_a, joint_wo_a(config, options, weights, ops, b));
    } else {
      project(main, *ops.wo_a, {.x = as_rows(b.o_heads)}, linear_wo_a(weights), b.z);
    }
  }
  if (ops.quantize_z)
    ops.quantize_z->run({.x = b.z, .values = b.z_values, .scales = b.z_scales}, main.scratch, main.stream);
  if (ops.output_projection) {
    // wo_a's launch has made it.
  } else if (ops.joint_wo_b) {
    run_joint(*ops.joint_wo_b, joint_wo_b(config, options, weights, ops, b, out));
  } else {
    project(main, *ops.wo_b, {.x = b.z, .values = b.z_values, .scales = b.z_scales}, linear_wo_b(weights), out);
  }
  watch.lap(Stage::kOutputProjection);
  if (tensor == nullptr) return;
  tensor->sum(out.data, out.numel(), out.dtype, main.stream);
  watch.lap(Stage::kRanks);
}

/// Compressors and indexer have the hidden states to begin with, or what joint products make of them; the indexer needs
/// the normed latent queries too, and attention all of it (spec 2).
void Forward::run(const ConstTensorView& hidden, const TensorView& out) const {
  if (side == nullptr || ops.joint_inputs) {
    latent_projections(hidden);
    compressor_projections(hidden);
    watch.lap(Stage::kInputProjections);
    if (ops.queries_norm) {
      if (compresses_apart()) compress_apart();
      queries();
      if (!compresses_apart()) compress(index_lane, /*beside_previous=*/!ops.joint_wq_b || side != nullptr);
      if (!ops.joint_wq_b) latent_norms(main, /*beside_previous=*/true);
      window();
    } else if (norms_beside_compressor()) {
      compress(index_lane);
      latent_norms(main, /*beside_previous=*/true);
      queries();
      window();
    } else {
      latent_norms(main);
      queries();
      window();
      compress(index_lane);
    }
    index();
  } else {
    side->begun.record(main.stream);
    side->begun.make_wait(index_lane.stream);
    latent_projections(hidden);
    compressor_projections(hidden);
    compress(index_lane);
    latent_norms(main);
    side->queries_ready.record(main.stream);
    if (config.has_indexer()) side->queries_ready.make_wait(index_lane.stream);
    index();
    side->done.record(index_lane.stream);
    queries();
    window();
  }
  if (side != nullptr) side->done.make_wait(main.stream);
  attend();
  output(step.positions, out);
}

}  // namespace smla
