// The front-end after upstream's FlashInfer backend (spec 8.6): one index matrix over window and entries, decodes and
// prefills in calls of their own.
#include "core/arena.h"
#include "layer/attention_calls.h"
#include "layer/front_end_row.h"
#include "sparsemla/error.h"

namespace smla {

namespace {

constexpr std::array<std::string_view, 4> kNames{"flashinfer", kFlashInferDsv4, "V4_FLASHINFER_MLA_SPARSE",
                                                 "FLASHINFER_MLA_SPARSE_V4"};
constexpr std::int64_t kRowStep = 4;  // columns: the entries' part of a row starts on 16 bytes (spec 7.3)

class FlashInferCalls : public AttentionCalls {
 public:
  explicit FlashInferCalls(const AttentionPlanning& planning)
      : tokens_(planning.shape.tokens), decode_tokens_(planning.shape.split.decode_tokens) {
    const std::int64_t columns = (planning.entry_width() + kRowStep - 1) / kRowStep * kRowStep;
    if (planning.config.has_indexer()) plan_rows(planning, columns);
    const auto call = [&](std::int64_t begin, std::int64_t end) {
      return planning.attention(planning.paged_problem(begin, end, columns));
    };
    if (decode_tokens_ > 0) decodes_ = call(0, decode_tokens_);
    if (decode_tokens_ < tokens_) prefills_ = call(decode_tokens_, tokens_);
  }

  std::size_t buffer_bytes() const override {
    Arena arena(nullptr);
    lay_out(arena);
    return arena.used();
  }

  void run(const AttentionRun& run) const override {
    Arena arena(run.buffers);
    const Rows made = lay_out(arena);
    if (rows_) make_rows(run, made);
    const ConstTensorView rows = rows_ ? ConstTensorView(made.indices) : run.step.mixed_indices;
    if (decodes_) attend(*decodes_, run, rows, 0, decode_tokens_);
    if (prefills_) attend(*prefills_, run, rows, decode_tokens_, tokens_);
  }

 private:
  /// C4A layers' own matrix; C128A layers share one of the step.
  struct Rows {
    TensorView indices;  ///< [T, window width + P] I32
    TensorView lens;     ///< [T] I32
  };
  Rows lay_out(Arena& arena) const {
    if (!rows_) return {};
    const MixedSparseIndices::Problem& p = rows_->problem();
    return {.indices = arena.take(DType::kI32, {p.tokens, p.window_width + p.compressed_width}),
            .lens = arena.take(DType::kI32, {p.tokens})};
  }

  void plan_rows(const AttentionPlanning& planning, std::int64_t columns) {
    rows_ = planning.planner.make<MixedSparseIndices>(
        {.requests = planning.shape.requests,
         .tokens = tokens_,
         .decode_tokens = decode_tokens_,
         .window = planning.config.window,
         .window_width = planning.shape.window_width,
         .ratio = planning.config.compress_ratio,
         .top_k = planning.config.index_topk,
         .compressed_width = columns,
         .window_block = planning.caches[CacheRole::kWindow].block_size,
         .compressed_block = planning.caches[CacheRole::kCompressed].block_size,
         .local = true});
  }

  void make_rows(const AttentionRun& run, const Rows& out) const {
    const LayerStep& step = run.step;
    rows_->run({.decode_window = step.window_indices.slice(0, 0, decode_tokens_),
                .decode_compressed = step.topk.slice(0, 0, decode_tokens_),
                .decode_valid = step.valid.slice(0, 0, decode_tokens_),
                .prefill_topk = step.topk.slice(0, decode_tokens_, tokens_),
                .query_start_loc = step.query_start_loc,
                .seq_lens = step.seq_lens,
                .token_to_req = step.token_to_req,
                .window_table = step.window_block_table,
                .compressed_table = step.entry_block_table,
                .indices = out.indices,
                .lens = out.lens},
               run.scratch, run.stream);
  }

  static void attend(const Plan<SparseAttention>& attention, const AttentionRun& run, const ConstTensorView& mixed,
                     std::int64_t begin, std::int64_t end) {
    const auto rows = [&](const auto& v) { return v.slice(0, begin, end); };
    const std::int64_t window = run.step.window_indices.size(1);
    SparseAttention::Args args = run.args(begin, end);
    args.scopes[0] = {.cache = run.caches[CacheRole::kWindow],
                      .indices = rows(mixed).slice(1, 0, window),
                      .lens = rows(run.step.window_lens)};
    if (run.config.has_compressor()) {
      args.scopes[1] = {.cache = run.caches[CacheRole::kCompressed],
                        .indices = rows(mixed).slice(1, window, mixed.size(1)),
                        .lens = rows(run.config.has_indexer() ? run.step.topk_lens : run.step.entry_lens)};
    }
    attention.run(args, run.scratch, run.stream);
  }

  std::int64_t tokens_;
  std::int64_t decode_tokens_;
  std::optional<Plan<MixedSparseIndices>> rows_;  ///< C4A
  std::optional<Plan<SparseAttention>> decodes_, prefills_;
};

void check_dtype(std::string_view cache_dtype) {
  if (cache_dtype == "fp8_ds_mla")
    throw InvalidArgument("FLASHINFER_MLA_SPARSE_DSV4 SM10x uses the plain per-tensor FP8 KV layout, not fp8_ds_mla");
  if (cache_dtype != "auto" && cache_dtype != "bfloat16" && cache_dtype != "fp8" && cache_dtype != "fp8_e4m3")
    throw InvalidArgument("kv_cache_dtype not supported");
}

void check_call(const UpstreamCall& call) {
  if ((call.window_width + call.compressed_width) % kRowStep == 0) return;
  throw Unsupported("FlashInfer sparse MLA: index row: got " +
                    std::to_string(call.window_width + call.compressed_width) + " columns, expected a multiple of 4");
}

}  // namespace

const FrontEndRow& flashinfer_row() {
  static const FrontEndRow row{.id = FrontEnd::kFlashInfer,
                               .names = kNames,
                               .device_major = 0,
                               .auto_rows = bf16_rows,
                               .fp8_rows = fp8_per_tensor_rows,
                               .reads_slots = false,
                               .reads_mixed_rows = true,
                               .gathers_prefills = false,
                               .check_dtype = check_dtype,
                               .padded_heads = flashinfer_heads,
                               .check_call = check_call,
                               .no_entries_text = missing_schedule_text,
                               .plan = [](const AttentionPlanning& planning) -> std::unique_ptr<const AttentionCalls> {
                                 return std::make_unique<FlashInferCalls>(planning);
                               },
                               .most_buffer_bytes = nullptr};
  return row;
}

}  // namespace smla
