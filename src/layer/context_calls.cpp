// Attention of context-parallel ranks: one call over the rank's own rows for all tokens, decodes and prefills alike.
#include "layer/attention_calls.h"
#include "sparsemla/context_parallel.h"

namespace smla {

namespace {

class ContextCalls : public AttentionCalls {
 public:
  explicit ContextCalls(const AttentionPlanning& planning)
      : attention_(planning.planner.make_piece<ContextAttention, SparseAttention>(
            planning.paged_problem(0, planning.shape.tokens, planning.entry_width()),
            entry_share(planning.options().caches, planning.config.compress_ratio))) {
    if (!planning.config.has_indexer()) return;
    slots_ = planning.planner.make<GlobalTopk>({.requests = planning.shape.requests,
                                                .tokens = planning.shape.tokens,
                                                .k = planning.config.index_topk,
                                                .storage_block = planning.caches[CacheRole::kCompressed].block_size,
                                                .compact = true});
  }

  bool follows_split() const override { return false; }
  std::size_t buffer_bytes() const override { return attention_ ? attention_->workspace_bytes() : 0; }

  void run(const AttentionRun& run) const override {
    if (!attention_) return;
    const LayerStep& step = run.step;
    SparseAttention::Args args = run.args(0, step.tokens);
    args.output_epilogue = {};
    args.scopes[0] = {
        .cache = run.caches[CacheRole::kWindow], .indices = step.window_indices, .lens = step.window_lens};
    if (slots_) {
      slots_->run({.topk = run.own_topk,
                   .token_to_req = step.token_to_req,
                   .block_table = step.entry_block_table,
                   .valid = step.valid,
                   .indices = run.slots,
                   .lens = run.slot_lens},
                  run.scratch, run.stream);
      args.scopes[1] = {.cache = run.caches[CacheRole::kCompressed], .indices = run.slots, .lens = run.slot_lens};
    } else {
      args.scopes[1] = {
          .cache = run.caches[CacheRole::kCompressed], .indices = step.dense_indices, .lens = step.dense_lens};
    }
    attention_->run(*run.context, args, {.data = run.buffers, .bytes = buffer_bytes()}, run.stream);
  }

 private:
  std::optional<ContextAttention> attention_;
  std::optional<Plan<GlobalTopk>> slots_;
};

}  // namespace

std::unique_ptr<const AttentionCalls> plan_context_calls(const AttentionPlanning& planning) {
  return std::make_unique<ContextCalls>(planning);
}

}  // namespace smla
