// The front-end after upstream's FlashMLA backend (spec 8.5): two scopes in one call; or prefills gathered into bf16
// rows, a chunk of requests at a time.
#include <algorithm>

#include "core/arena.h"
#include "layer/attention_calls.h"
#include "layer/front_end_row.h"
#include "sparsemla/error.h"

namespace smla {

namespace {

constexpr std::array<std::string_view, 4> kNames{"flashmla", "FLASHMLA_SPARSE", "FLASHMLA_SPARSE_DSV4",
                                                 "V4_FLASHMLA_SPARSE"};
constexpr std::int64_t kRowStep = 128;  // index rows of gathered calls are this wide or a multiple (spec 7.2)

std::int64_t combined_width(std::int64_t entries, std::int64_t window) {
  return (entries + window + kRowStep - 1) / kRowStep * kRowStep;
}

/// Prefills [chunk.begin, chunk.end), tokens [begin, end) of the step: their rows are copied out of the caches, then
/// attended to.
struct GatheredCall {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  PrefillChunk chunk;
  std::optional<Plan<GatherRows>> gather_entries;
  std::optional<Plan<GatherRows>> gather_window;
  std::optional<Plan<CombineTopkWindow>> combine;
  std::optional<Plan<SparseAttention>> attention;
};

class FlashMlaCalls : public AttentionCalls {
 public:
  explicit FlashMlaCalls(const AttentionPlanning& planning)
      : direct_(planning), gathers_(planning.options().gather_prefill), dim_(planning.config.head_dim) {
    const std::int64_t direct_tokens = gathers_ ? planning.shape.split.decode_tokens : planning.shape.tokens;
    if (direct_tokens > 0 || !gathers_) direct_.add(planning, 0, direct_tokens);
    if (direct_tokens < planning.shape.tokens) plan_gathered(planning);
  }

  bool follows_split() const override { return gathers_; }

  std::size_t buffer_bytes() const override {
    Arena arena(nullptr);
    lay_out(arena);
    return arena.used();
  }

  void run(const AttentionRun& run) const override {
    direct_.run(run);
    Arena arena(run.buffers);
    const Buffers buffers = lay_out(arena);
    for (const GatheredCall& call : gathered_) run_gathered(call, run, buffers);
  }

 private:
  struct Buffers {
    TensorView rows;      ///< [rows of the largest chunk, d] BF16
    TensorView combined;  ///< [tokens of the largest chunk, width] I32
    TensorView lens;      ///< [tokens of the largest chunk] I32
  };
  Buffers lay_out(Arena& arena) const {
    if (gathered_.empty()) return {};
    return {.rows = arena.take(DType::kBF16, {most_rows_, dim_}),
            .combined = arena.take(DType::kI32, {most_tokens_, width_}),
            .lens = arena.take(DType::kI32, {most_tokens_})};
  }

  void plan_gathered(const AttentionPlanning& planning) {
    const LayerConfig& config = planning.config;
    const StepShape& shape = planning.shape;
    ChunkLimits limits = planning.options().chunks;
    limits.window = config.window;
    limits.max_model_len = std::max(limits.max_model_len, shape.max_seq_len);
    limits.max_batched_tokens = std::max(limits.max_batched_tokens, shape.tokens);
    width_ = combined_width(planning.entry_width(), config.window);
    for (const PrefillChunk& chunk :
         plan_prefill_chunks(shape.prefill_seq_lens, shape.prefill_query_lens, config.compress_ratio, limits)) {
      const std::int64_t requests = chunk.end - chunk.begin;
      GatheredCall call{
          .begin = planning.prefill_begin(chunk.begin), .end = planning.prefill_begin(chunk.end), .chunk = chunk};
      SparseAttention::Problem p = planning.problem(call.begin, call.end);
      p.scope[0] = {.format = &bf16_rows(), .block_size = chunk.m, .width = width_};
      call.attention = planning.attention(p);
      if (chunk.n > 0) {
        call.gather_entries =
            planning.planner.make<GatherRows>({.requests = requests,
                                               .rows = chunk.m,
                                               .offset = 0,
                                               .format = planning.caches[CacheRole::kCompressed].format});
      }
      call.gather_window = planning.planner.make<GatherRows>({.requests = requests,
                                                              .rows = chunk.m,
                                                              .offset = chunk.n,
                                                              .format = planning.caches[CacheRole::kWindow].format});
      call.combine = planning.planner.make<CombineTopkWindow>({.requests = requests,
                                                               .tokens = call.end - call.begin,
                                                               .window = config.window,
                                                               .ratio = std::max(config.compress_ratio, 1),
                                                               .top_k = planning.entry_width(),
                                                               .m = chunk.m,
                                                               .n = chunk.n,
                                                               .clear_rest = false});
      most_rows_ = std::max(most_rows_, requests * chunk.m);
      most_tokens_ = std::max(most_tokens_, call.end - call.begin);
      gathered_.push_back(call);
    }
  }

  static void run_gathered(const GatheredCall& call, const AttentionRun& run, const Buffers& b);

  TwoScopeCalls direct_;
  std::vector<GatheredCall> gathered_;
  bool gathers_;
  std::int64_t dim_;
  std::int64_t most_rows_ = 0;
  std::int64_t most_tokens_ = 0;
  std::int64_t width_ = 0;  ///< columns of a gathered call's index rows
};

void FlashMlaCalls::run_gathered(const GatheredCall& call, const AttentionRun& run, const Buffers& b) {
  const LayerStep& step = run.step;
  const PrefillChunk& chunk = call.chunk;
  const std::int64_t requests = chunk.end - chunk.begin;
  const std::int64_t first = step.split.decodes + chunk.begin;
  const auto batch_rows = [&](const ConstTensorView& v) { return v.slice(0, first, first + requests); };
  const auto prefill_rows = [&](const ConstTensorView& v) { return v.slice(0, chunk.begin, chunk.end); };
  const std::int64_t dim = run.config.head_dim;
  TensorView out = b.rows.slice(0, 0, requests * chunk.m);
  out.rank = 3;
  out.shape = {requests, chunk.m, dim, 0};
  out.stride = {chunk.m * dim, dim, 1, 0};
  if (call.gather_entries) {
    call.gather_entries->run({.cache = run.caches[CacheRole::kCompressed],
                              .seq_lens = prefill_rows(step.entry_counts),
                              .gather_lens = {},
                              .block_table = batch_rows(step.entry_block_table),
                              .out = out},
                             run.scratch, run.stream);
  }
  call.gather_window->run({.cache = run.caches[CacheRole::kWindow],
                           .seq_lens = batch_rows(step.seq_lens),
                           .gather_lens = prefill_rows(step.gather_lens),
                           .block_table = batch_rows(step.window_block_table),
                           .out = out},
                          run.scratch, run.stream);

  const std::int64_t tokens = call.end - call.begin;
  const TensorView indices = b.combined.slice(0, 0, tokens);
  const TensorView lens = b.lens.slice(0, 0, tokens);
  ConstTensorView local;
  if (run.config.has_indexer()) {
    local = ConstTensorView(step.topk).slice(0, call.begin, call.end);
  } else if (run.config.has_compressor()) {
    local = step.dense_local.slice(0, call.begin - step.split.decode_tokens, call.end - step.split.decode_tokens);
  }
  call.combine->run({.topk = local,
                     .query_start_loc = step.query_start_loc.slice(0, first, first + requests + 1),
                     .seq_lens = batch_rows(step.seq_lens),
                     .gather_lens = prefill_rows(step.gather_lens),
                     .indices = indices,
                     .lens = lens},
                    run.scratch, run.stream);
  SparseAttention::Args args = run.args(call.begin, call.end);
  args.scopes[0] = {.cache = {.format = &bf16_rows(),
                              .base = static_cast<std::uint8_t*>(out.data),
                              .num_blocks = requests,
                              .block_size = chunk.m,
                              .block_stride_bytes = block_bytes(bf16_rows(), chunk.m)},
                    .indices = indices,
                    .lens = lens};
  call.attention->run(args, run.scratch, run.stream);
}

/// Gathered prefills: as many rows as the chunk limits ever admit, which one request of the greatest length and the
/// others as short as they come cannot show; so the area itself is reserved (spec 6.8).
std::size_t most_buffer_bytes(const LayerConfig& config, const LayerOptions& options, std::int64_t tokens,
                              std::int64_t max_seq_len) {
  if (!options.gather_prefill || tokens == 0) return 0;
  const std::int64_t longest = std::max(options.chunks.max_model_len, max_seq_len);
  const std::int64_t batched = std::max(options.chunks.max_batched_tokens, tokens);
  const std::int64_t entries =
      config.has_compressor() ? (longest + config.compress_ratio - 1) / config.compress_ratio : 0;
  const std::int64_t picked = config.has_indexer() ? config.index_topk : entries;
  Arena arena(nullptr);
  arena.take(DType::kBF16, {options.chunks.requests * (entries + config.window + batched), config.head_dim});
  arena.take(DType::kI32, {tokens, combined_width(picked, config.window)});
  arena.take(DType::kI32, {tokens});
  return arena.used();
}

void check_call(const UpstreamCall& call) {
  const std::int64_t step = call.padded_heads > 64 ? 128 : 64;
  for (const std::int64_t width : {call.window_width, call.compressed_width}) {
    if (width % step == 0) continue;
    throw Unsupported("FlashMLA: top-k width: got " + std::to_string(width) + ", expected a multiple of " +
                      std::to_string(step) + " with " + std::to_string(call.padded_heads) + " heads");
  }
}

std::int64_t padded_heads(std::int64_t heads) {
  if (heads <= 64) return 64;
  if (heads <= 128) return 128;
  throw InvalidArgument("DeepseekV4 FlashMLA does not support " + std::to_string(heads) +
                        " heads (FP8 decode kernel requires h_q in {64, 128}).");
}

}  // namespace

const FrontEndRow& flashmla_row() {
  static const FrontEndRow row{.id = FrontEnd::kFlashMla,
                               .names = kNames,
                               .device_major = 0,
                               .auto_rows = fp8_ds_mla_rows,
                               .fp8_rows = fp8_ds_mla_rows,
                               .reads_slots = true,
                               .reads_mixed_rows = false,
                               .gathers_prefills = true,
                               .check_dtype = check_ds_mla_dtype,
                               .padded_heads = padded_heads,
                               .check_call = check_call,
                               .no_entries_text = missing_schedule_text,
                               .plan = [](const AttentionPlanning& planning) -> std::unique_ptr<const AttentionCalls> {
                                 return std::make_unique<FlashMlaCalls>(planning);
                               },
                               .most_buffer_bytes = most_buffer_bytes};
  return row;
}

}  // namespace smla
