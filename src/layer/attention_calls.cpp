#include "layer/attention_calls.h"

#include <algorithm>

namespace smla {

namespace {

constexpr std::int64_t kSm120ChunkRequests = 4;
constexpr std::int64_t kCombinedStep = 128;  // index rows of gathered calls are this wide or a multiple (spec 7.2)
constexpr std::int64_t kMixedStep = 4;       // a mixed row starts on 16 bytes (spec 7.3)

std::int64_t round_up(std::int64_t value, std::int64_t step) { return (value + step - 1) / step * step; }

/// What the planning of one step's calls shares.
class CallPlanner {
 public:
  CallPlanner(const Chooser& choose, const LayerConfig& config, const StepShape& shape, const LayerCaches& caches,
              bool chosen_slots, const AttentionFolds& folds)
      : choose_(choose), config_(config), shape_(shape), caches_(caches), chosen_slots_(chosen_slots), folds_(folds) {
    calls_.front_end = choose.options().front_end;
    if (config.has_indexer()) {
      entry_width_ = config.index_topk;
    } else if (config.has_compressor()) {
      entry_width_ = std::max<std::int64_t>(shape.max_seq_len / config.compress_ratio, 1);
    }
  }

  AttentionCalls plan() {
    const LayerOptions& options = choose_.options();
    const bool gather = calls_.front_end == FrontEnd::kFlashMla && options.gather_prefill &&
                        caches_[CacheRole::kWindow].format->scale == ScaleKind::kUe8m0;
    if (calls_.front_end == FrontEnd::kFlashInfer) {
      plan_mixed();
    } else if (config_.has_indexer()) {
      calls_.has_slots = true;
      if (!chosen_slots_)
        calls_.global_topk = choose_.make<GlobalTopk>({.requests = shape_.requests,
                                                       .tokens = shape_.tokens,
                                                       .k = config_.index_topk,
                                                       .storage_block = caches_[CacheRole::kCompressed].block_size,
                                                       .compact = true});
    }
    if (calls_.front_end == FrontEnd::kFlashMla && !gather) {
      calls_.by_split = false;
      add_direct(0, shape_.tokens);
      return std::move(calls_);
    }
    if (shape_.split.decode_tokens > 0) add_direct(0, shape_.split.decode_tokens);
    if (shape_.split.decode_tokens == shape_.tokens) return std::move(calls_);
    if (calls_.front_end == FrontEnd::kFlashInfer) {
      add_direct(shape_.split.decode_tokens, shape_.tokens);
    } else if (gather) {
      plan_gathered();
    } else {
      for (std::int64_t r = 0; r < shape_.split.prefills; r += kSm120ChunkRequests) {
        const std::int64_t last = std::min(r + kSm120ChunkRequests, shape_.split.prefills);
        add_direct(token_of(r), token_of(last));
      }
    }
    return std::move(calls_);
  }

 private:
  /// First token of prefill r; the end of the step, padding included, behind the last.
  std::int64_t token_of(std::int64_t r) const {
    if (r == shape_.split.prefills) return shape_.tokens;
    std::int64_t t = shape_.split.decode_tokens;
    for (std::int64_t i = 0; i < r; ++i) t += shape_.prefill_query_lens[static_cast<std::size_t>(i)];
    return t;
  }

  SparseAttention::Problem problem(std::int64_t tokens) const {
    const LayerOptions& options = choose_.options();
    const DType act = options.precision == Precision::kF32 ? DType::kF32 : DType::kBF16;
    return {.tokens = tokens,
            .heads = config_.num_heads,
            .out_heads = options.padded_heads,
            .dim = config_.head_dim,
            .q = options.q == DType::kE4M3 ? DType::kE4M3 : act,
            .o = act,
            .scopes = 1,
            .scope = {},
            .scale = 0.0F,
            .q_scale = options.q_scale,
            .partial = false,
            .rope_dim = folds_.rope_dim,
            .q_rope_dim = folds_.q_rope_dim,
            .q_eps = folds_.q_eps};
  }

  void check_upstream(std::int64_t tokens) const {
    const LayerOptions& options = choose_.options();
    if (!options.strict) return;
    // Upstream's C128A width is the model length's, whatever this step needs (spec 6.5).
    const std::int64_t dense =
        dense_width(std::max<std::int64_t>(options.chunks.max_model_len, shape_.max_seq_len), config_.compress_ratio);
    check_upstream_call(
        calls_.front_end,
        {.tokens = tokens,
         .padded_heads = options.padded_heads,
         .window_width = shape_.window_width,
         .compressed_width = config_.has_indexer() ? config_.index_topk : (config_.has_compressor() ? dense : 0)});
  }

  /// A call that reads the caches: scopes as the step's index rows name them.
  void add_direct(std::int64_t begin, std::int64_t end) {
    check_upstream(end - begin);
    SparseAttention::Problem p = problem(end - begin);
    p.scopes = config_.has_compressor() ? 2 : 1;
    p.scope[0] = {.format = caches_[CacheRole::kWindow].format,
                  .block_size = caches_[CacheRole::kWindow].block_size,
                  .width = shape_.window_width};
    if (config_.has_compressor()) {
      const std::int64_t width =
          calls_.front_end == FrontEnd::kFlashInfer ? round_up(entry_width_, kMixedStep) : entry_width_;
      p.scope[1] = {.format = caches_[CacheRole::kCompressed].format,
                    .block_size = caches_[CacheRole::kCompressed].block_size,
                    .width = width};
    }
    calls_.calls.push_back({.begin = begin, .end = end, .attention = choose_.make<SparseAttention>(p)});
  }

  void plan_mixed() {
    if (!config_.has_compressor()) return;
    calls_.mixed_width = shape_.window_width + round_up(entry_width_, kMixedStep);
    if (!config_.has_indexer()) return;  // C128A rows are made once a step
    calls_.mixed = choose_.make<MixedSparseIndices>({.requests = shape_.requests,
                                                     .tokens = shape_.tokens,
                                                     .decode_tokens = shape_.split.decode_tokens,
                                                     .window = config_.window,
                                                     .window_width = shape_.window_width,
                                                     .ratio = config_.compress_ratio,
                                                     .top_k = config_.index_topk,
                                                     .compressed_width = round_up(entry_width_, kMixedStep),
                                                     .window_block = caches_[CacheRole::kWindow].block_size,
                                                     .compressed_block = caches_[CacheRole::kCompressed].block_size,
                                                     .local = true});
  }

  void plan_gathered() {
    ChunkLimits limits = choose_.options().chunks;
    limits.window = config_.window;
    limits.max_model_len = std::max(limits.max_model_len, shape_.max_seq_len);
    limits.max_batched_tokens = std::max(limits.max_batched_tokens, shape_.tokens);
    calls_.combined_width = round_up(entry_width_ + config_.window, kCombinedStep);
    for (const PrefillChunk& chunk :
         plan_prefill_chunks(shape_.prefill_seq_lens, shape_.prefill_query_lens, config_.compress_ratio, limits)) {
      const std::int64_t requests = chunk.end - chunk.begin;
      AttentionCall call{.begin = token_of(chunk.begin), .end = token_of(chunk.end), .chunk = chunk};
      const std::int64_t tokens = call.end - call.begin;
      check_upstream(tokens);
      SparseAttention::Problem p = problem(tokens);
      p.scope[0] = {.format = &bf16_rows(), .block_size = chunk.m, .width = calls_.combined_width};
      call.attention = choose_.make<SparseAttention>(p);
      if (chunk.n > 0) {
        call.gather_entries = choose_.make<GatherRows>(
            {.requests = requests, .rows = chunk.m, .offset = 0, .format = caches_[CacheRole::kCompressed].format});
      }
      call.gather_window = choose_.make<GatherRows>(
          {.requests = requests, .rows = chunk.m, .offset = chunk.n, .format = caches_[CacheRole::kWindow].format});
      call.combine = choose_.make<CombineTopkWindow>({.requests = requests,
                                                      .tokens = tokens,
                                                      .window = config_.window,
                                                      .ratio = std::max(config_.compress_ratio, 1),
                                                      .top_k = entry_width_,
                                                      .m = chunk.m,
                                                      .n = chunk.n,
                                                      .clear_rest = false});
      calls_.gathered_rows = std::max(calls_.gathered_rows, requests * chunk.m);
      calls_.combined_rows = std::max(calls_.combined_rows, tokens);
      calls_.calls.push_back(call);
    }
  }

  const Chooser& choose_;
  const LayerConfig& config_;
  const StepShape& shape_;
  const LayerCaches& caches_;
  bool chosen_slots_;
  AttentionFolds folds_;
  std::int64_t entry_width_ = 0;  ///< columns of the compressed part
  AttentionCalls calls_;
};

/// One step's calls at work.
struct CallRunner {
  const AttentionCalls& calls;
  const LayerConfig& config;
  const LayerStep& step;
  const LayerCaches& caches;
  const ConstTensorView& sink;
  const AttentionBuffers& b;
  Workspace scratch;
  Stream stream;

  void make_indices() const;
  void direct(const AttentionCall& call) const;
  void gathered(const AttentionCall& call) const;
};

void CallRunner::make_indices() const {
  if (calls.global_topk) {
    calls.global_topk->run({.topk = step.topk,
                            .token_to_req = step.token_to_req,
                            .block_table = step.entry_block_table,
                            .valid = step.valid,
                            .indices = b.slots,
                            .lens = b.slot_lens},
                           scratch, stream);
  }
  if (calls.mixed) {
    const std::int64_t decode_tokens = step.split.decode_tokens;
    calls.mixed->run({.decode_window = step.window_indices.slice(0, 0, decode_tokens),
                      .decode_compressed = step.topk.slice(0, 0, decode_tokens),
                      .decode_valid = step.valid.slice(0, 0, decode_tokens),
                      .prefill_topk = step.topk.slice(0, decode_tokens, step.tokens),
                      .query_start_loc = step.query_start_loc,
                      .seq_lens = step.seq_lens,
                      .token_to_req = step.token_to_req,
                      .window_table = step.window_block_table,
                      .compressed_table = step.entry_block_table,
                      .indices = b.mixed,
                      .lens = b.mixed_lens},
                     scratch, stream);
  }
}

void CallRunner::direct(const AttentionCall& call) const {
  const auto rows = [&](const auto& v) { return v.slice(0, call.begin, call.end); };
  SparseAttention::Args args{.q = rows(b.q),
                             .scopes = {},
                             .sink = sink,
                             .o = rows(b.o),
                             .lse = {},
                             .positions = rows(step.positions),
                             .cos_sin = b.cos_sin};
  args.scopes[0] = {
      .cache = caches[CacheRole::kWindow], .indices = rows(step.window_indices), .lens = rows(step.window_lens)};
  if (calls.front_end == FrontEnd::kFlashInfer) {
    const ConstTensorView mixed = config.has_indexer() ? ConstTensorView(b.mixed) : step.mixed_indices;
    const std::int64_t window = step.window_indices.size(1);
    args.scopes[0].indices = rows(mixed).slice(1, 0, window);
    if (config.has_compressor()) {
      args.scopes[1] = {.cache = caches[CacheRole::kCompressed],
                        .indices = rows(mixed).slice(1, window, mixed.size(1)),
                        .lens = rows(config.has_indexer() ? step.topk_lens : step.entry_lens)};
    }
  } else if (config.has_indexer()) {
    args.scopes[1] = {.cache = caches[CacheRole::kCompressed], .indices = rows(b.slots), .lens = rows(b.slot_lens)};
  } else if (config.has_compressor()) {
    args.scopes[1] = {
        .cache = caches[CacheRole::kCompressed], .indices = rows(step.dense_indices), .lens = rows(step.dense_lens)};
  }
  call.attention->run(args, scratch, stream);
}

void CallRunner::gathered(const AttentionCall& call) const {
  const PrefillChunk& chunk = *call.chunk;
  const std::int64_t requests = chunk.end - chunk.begin;
  const std::int64_t first = step.split.decodes + chunk.begin;
  const auto batch_rows = [&](const ConstTensorView& v) { return v.slice(0, first, first + requests); };
  const auto prefill_rows = [&](const ConstTensorView& v) { return v.slice(0, chunk.begin, chunk.end); };
  TensorView out = b.gathered.slice(0, 0, requests * chunk.m);
  out.rank = 3;
  out.shape = {requests, chunk.m, config.head_dim, 0};
  out.stride = {chunk.m * config.head_dim, config.head_dim, 1, 0};
  if (call.gather_entries) {
    call.gather_entries->run({.cache = caches[CacheRole::kCompressed],
                              .seq_lens = prefill_rows(step.entry_counts),
                              .gather_lens = {},
                              .block_table = batch_rows(step.entry_block_table),
                              .out = out},
                             scratch, stream);
  }
  call.gather_window->run({.cache = caches[CacheRole::kWindow],
                           .seq_lens = batch_rows(step.seq_lens),
                           .gather_lens = prefill_rows(step.gather_lens),
                           .block_table = batch_rows(step.window_block_table),
                           .out = out},
                          scratch, stream);

  const std::int64_t tokens = call.end - call.begin;
  const TensorView indices = b.combined.slice(0, 0, tokens);
  const TensorView lens = b.combined_lens.slice(0, 0, tokens);
  ConstTensorView local;
  if (config.has_indexer()) {
    local = ConstTensorView(step.topk).slice(0, call.begin, call.end);
  } else if (config.has_compressor()) {
    local = step.dense_local.slice(0, call.begin - step.split.decode_tokens, call.end - step.split.decode_tokens);
  }
  call.combine->run({.topk = local,
                     .query_start_loc = step.query_start_loc.slice(0, first, first + requests + 1),
                     .seq_lens = batch_rows(step.seq_lens),
                     .gather_lens = prefill_rows(step.gather_lens),
                     .indices = indices,
                     .lens = lens},
                    scratch, stream);
  const auto rows = [&](const auto& v) { return v.slice(0, call.begin, call.end); };
  SparseAttention::Args args{.q = rows(b.q),
                             .scopes = {},
                             .sink = sink,
                             .o = rows(b.o),
                             .lse = {},
                             .positions = rows(step.positions),
                             .cos_sin = b.cos_sin};
  args.scopes[0] = {.cache = {.format = &bf16_rows(),
                              .base = static_cast<std::uint8_t*>(out.data),
                              .num_blocks = requests,
                              .block_size = chunk.m,
                              .block_stride_bytes = block_bytes(bf16_rows(), chunk.m)},
                    .indices = indices,
                    .lens = lens};
  call.attention->run(args, scratch, stream);
}

}  // namespace

AttentionCalls plan_attention_calls(const Chooser& choose, const LayerConfig& config, const StepShape& shape,
                                    const LayerCaches& caches, bool chosen_slots, const AttentionFolds& folds) {
  return CallPlanner(choose, config, shape, caches, chosen_slots, folds).plan();
}

void run_attention_calls(const AttentionCalls& calls, const LayerConfig& config, const LayerStep& step,
                         const LayerCaches& caches, const ConstTensorView& sink, const AttentionBuffers& buffers,
                         Workspace scratch, Stream stream) {
  const CallRunner runner{.calls = calls,
                          .config = config,
                          .step = step,
                          .caches = caches,
                          .sink = sink,
                          .b = buffers,
                          .scratch = scratch,
                          .stream = stream};
  runner.make_indices();
  for (const AttentionCall& call : calls.calls) {
    call.chunk ? runner.gathered(call) : runner.direct(call);
  }
}

}  // namespace smla
