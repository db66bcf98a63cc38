#include "layer/attention_calls.h"

#include <algorithm>

#include "layer/front_end_row.h"
#include "layer/step_state.h"

namespace smla {

std::int64_t AttentionPlanning::entry_width() const {
  if (config.has_indexer()) return config.index_topk;
  if (!config.has_compressor()) return 0;
  return entry_columns(shape.max_seq_len, config.compress_ratio, entry_share(options().caches, config.compress_ratio));
}

std::int64_t AttentionPlanning::prefill_begin(std::int64_t r) const {
  if (r == shape.split.prefills) return shape.tokens;
  std::int64_t t = shape.split.decode_tokens;
  for (std::int64_t i = 0; i < r; ++i) t += shape.prefill_query_lens[static_cast<std::size_t>(i)];
  return t;
}

SparseAttention::Problem AttentionPlanning::problem(std::int64_t begin, std::int64_t end) const {
  const LayerOptions& o = options();
  if (o.strict) {
    // Upstream's C128A width is the model length's, whatever this step needs (spec 6.5).
    const std::int64_t dense =
        dense_width(std::max<std::int64_t>(o.chunks.max_model_len, shape.max_seq_len), config.compress_ratio);
    check_upstream_call(
        o.front_end,
        {.tokens = end - begin,
         .padded_heads = o.padded_heads,
         .window_width = shape.window_width,
         .compressed_width = config.has_indexer() ? config.index_topk : (config.has_compressor() ? dense : 0)});
  }
  const DType act = o.precision == Precision::kF32 ? DType::kF32 : DType::kBF16;
  return {.tokens = end - begin,
          .heads = config.num_heads,
          .out_heads = o.padded_heads,
          .dim = config.head_dim,
          .q = o.q == DType::kE4M3 ? DType::kE4M3 : act,
          .o = output_epilogue && output_epilogue->groups > 0 ? DType::kE4M3 : act,
          .scopes = 1,
          .scope = {},
          .scale = 0.0F,
          .q_scale = o.q_scale,
          .partial = false,
          .query_prologue = query_prologue,
          .output_epilogue = output_epilogue};
}

SparseAttention::Problem AttentionPlanning::paged_problem(std::int64_t begin, std::int64_t end,
                                                          std::int64_t entry_columns) const {
  SparseAttention::Problem p = problem(begin, end);
  p.scope[0] = {.format = caches[CacheRole::kWindow].format,
                .block_size = caches[CacheRole::kWindow].block_size,
                .width = shape.window_width};
  if (!config.has_compressor()) return p;
  p.scopes = 2;
  p.scope[1] = {.format = caches[CacheRole::kCompressed].format,
                .block_size = caches[CacheRole::kCompressed].block_size,
                .width = entry_columns};
  return p;
}

std::optional<Plan<SparseAttention>> AttentionPlanning::attention(const SparseAttention::Problem& problem) const {
  if (quantises == nullptr && !others_prologue && !others_epilogue) return planner.make<SparseAttention>(problem);
  SparseAttention::Problem others = problem;
  others.query_prologue = others_prologue;
  others.output_epilogue = others_epilogue;
  if (quantises == nullptr) return planner.make<SparseAttention>(problem, others);
  // Quantised is what the others write in BF16, so the same implementation has to do it.
  others.o = DType::kBF16;
  std::optional<Plan<SparseAttention>> plain = planner.make<SparseAttention>(others);
  const auto& writes = SparseAttention::kWritesE4M3;
  if (std::ranges::find(writes, plain->implementation()) != writes.end()) {
    if (auto made = planner.make_named<SparseAttention>(problem, plain->implementation())) return made;
  }
  *quantises = false;
  return plain;
}

SparseAttention::Args AttentionRun::args(std::int64_t begin, std::int64_t end) const {
  const auto rows = [&](const auto& v) { return v.slice(0, begin, end); };
  SparseAttention::Args args{.q = rows(q),
                             .scopes = {},
                             .sink = sink,
                             .o = {},
                             .lse = {},
                             .query_prologue = {.positions = rows(step.positions), .cos_sin = cos_sin},
                             .output_epilogue = {.positions = rows(step.positions), .cos_sin = cos_sin}};
  if (o_scales.absent()) {
    args.o = rows(o);
  } else {
    args.o = o_values.slice(1, begin, end);
    // The last call clears what is behind the tokens.
    args.output_epilogue.scales = o_scales.slice(2, begin, end == step.tokens ? o_scales.size(2) : end);
  }
  return args;
}

TwoScopeCalls::TwoScopeCalls(const AttentionPlanning& planning) {
  if (!planning.config.has_indexer() || planning.topk_writes_slots) return;
  global_topk_ = planning.planner.make<GlobalTopk>({.requests = planning.shape.requests,
                                                    .tokens = planning.shape.tokens,
                                                    .k = planning.config.index_topk,
                                                    .storage_block = planning.caches[CacheRole::kCompressed].block_size,
                                                    .compact = true});
}

void TwoScopeCalls::add(const AttentionPlanning& planning, std::int64_t begin, std::int64_t end) {
  const SparseAttention::Problem p = planning.paged_problem(begin, end, planning.entry_width());
  calls_.push_back({.begin = begin, .end = end, .attention = planning.attention(p)});
}

void TwoScopeCalls::run(const AttentionRun& run) const {
  const LayerStep& step = run.step;
  if (global_topk_) {
    global_topk_->run({.topk = step.topk,
                       .token_to_req = step.token_to_req,
                       .block_table = step.entry_block_table,
                       .valid = step.valid,
                       .indices = run.slots,
                       .lens = run.slot_lens},
                      run.scratch, run.stream);
  }
  for (const Call& call : calls_) {
    const auto rows = [&](const auto& v) { return v.slice(0, call.begin, call.end); };
    SparseAttention::Args args = run.args(call.begin, call.end);
    args.scopes[0] = {
        .cache = run.caches[CacheRole::kWindow], .indices = rows(step.window_indices), .lens = rows(step.window_lens)};
    if (run.config.has_indexer()) {
      args.scopes[1] = {
          .cache = run.caches[CacheRole::kCompressed], .indices = rows(run.slots), .lens = rows(run.slot_lens)};
    } else if (run.config.has_compressor()) {
      args.scopes[1] = {.cache = run.caches[CacheRole::kCompressed],
                        .indices = rows(step.dense_indices),
                        .lens = rows(step.dense_lens)};
    }
    call.attention->run(args, run.scratch, run.stream);
  }
}

}  // namespace smla
