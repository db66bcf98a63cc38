// Slots and index rows of a step, cache group by cache group and ratio by ratio (spec 5.5, 6.3 to 6.5, 7.3).
#include "layer/step_state.h"
#include "sparsemla/ops/index.h"

namespace smla {

void StepMetadata::State::build_slots() {
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const CacheGroup& group = layout.groups[g];
    if (!group.sliding()) continue;
    shape_as(groups[g].slots, DType::kI64, {shape.tokens});
    run<SlotMapping>({.requests = shape.requests, .tokens = shape.tokens, .block_size = group.block_tokens},
                     {.query_start_loc = query_start_loc.view(),
                      .positions = positions.view(),
                      .token_to_req = token_to_req.view(),
                      .block_table = groups[g].block_table,
                      .slots = groups[g].slots.view()});
  }
}

void StepMetadata::State::build_windows() {
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const CacheGroup& group = layout.groups[g];
    if (!has_role(g, CacheRole::kWindow)) continue;
    shape_as(groups[g].window_indices, DType::kI32, {shape.tokens, shape.window_width});
    shape_as(groups[g].window_lens, DType::kI32, {shape.tokens});
    run<WindowIndices>({.requests = shape.requests,
                        .tokens = shape.tokens,
                        .window = group.window,
                        .block_size = group.block_tokens,
                        .noncausal_tokens = causal ? 0 : shape.split.decode_tokens},
                       {.query_start_loc = query_start_loc.view(),
                        .seq_lens = seq_lens.view(),
                        .token_to_req = token_to_req.view(),
                        .slot_mapping = groups[g].slots.view(),
                        .block_table = groups[g].block_table,
                        .indices = groups[g].window_indices.view(),
                        .lens = groups[g].window_lens.view()});
  }
}

void StepMetadata::State::build_valid() {
  shape_as(valid, DType::kBool, {shape.tokens});
  const int group = layout.group_of(0, CacheRole::kWindow);
  run<VisibleEntries>({.tokens = shape.tokens, .ratio = 1},
                      {.positions = positions.view(),
                       .slot_mapping = groups[static_cast<std::size_t>(group)].slots.view(),
                       .valid = valid.view()});
}

void StepMetadata::State::build_prefills() {
  shape_as(gather_lens, DType::kI32, {shape.split.prefills});
  run<PrefillLens>(
      {.requests = shape.requests, .decodes = shape.split.decodes, .window = layers.front().window},
      {.query_start_loc = query_start_loc.view(), .seq_lens = seq_lens.view(), .gather_lens = gather_lens.view()});
}

void StepMetadata::State::build_ratio(int ratio, RatioStep& out) {
  const auto layer =
      std::ranges::find_if(layers, [&](const LayerConfig& c) { return c.compress_ratio == ratio; }) - layers.begin();
  const LayerCache& entries = *layout.find(layer, CacheRole::kCompressed);
  const EntryShare share = layout.share(ratio);
  const ConstTensorView& table =
      groups[static_cast<std::size_t>(layout.group_of(layer, CacheRole::kCompressed))].block_table;
  const TensorView slots = groups[static_cast<std::size_t>(layout.group_of(layer, CacheRole::kWindow))].slots.view();

  shape_as(out.entry_slots, DType::kI64, {shape.tokens});
  run<CompressedSlotMapping>({.requests = shape.requests,
                              .tokens = shape.tokens,
                              .ratio = ratio,
                              .storage_block = entries.block_size,
                              .share = share},
                             {.query_start_loc = query_start_loc.view(),
                              .seq_lens = seq_lens.view(),
                              .block_table = table,
                              .slots = out.entry_slots.view()});

  shape_as(out.entry_lens, DType::kI32, {shape.tokens});
  VisibleEntries::Args seen{.positions = positions.view(), .slot_mapping = slots, .lens = out.entry_lens.view()};
  const bool chooses = ratio == 4;  // C4A rows come from the indexer
  if (chooses) {
    shape_as(out.topk_lens, DType::kI32, {shape.tokens});
    seen.topk_lens = out.topk_lens.view();
  }
  run<VisibleEntries>({.tokens = shape.tokens,
                       .ratio = ratio,
                       .top_k = layers[static_cast<std::size_t>(layer)].index_topk,
                       .share = share},
                      seen);

  shape_as(out.entry_counts, DType::kI32, {shape.split.prefills});
  run<PrefillLens>(
      {.requests = shape.requests, .decodes = shape.split.decodes, .window = layers.front().window, .ratio = ratio},
      {.query_start_loc = query_start_loc.view(),
       .seq_lens = seq_lens.view(),
       .entry_counts = out.entry_counts.view()});
  if (chooses) return;

  const std::int64_t width = entry_columns(shape.max_seq_len, ratio, share);
  const auto dense = [&](std::int64_t begin, bool global, DeviceTensor& indices, DeviceTensor& row_lens) {
    const std::int64_t rows = shape.tokens - begin;
    shape_as(indices, DType::kI32, {rows, width});
    shape_as(row_lens, DType::kI32, {rows});
    run<DenseCompressedIndices>({.requests = shape.requests,
                                 .tokens = rows,
                                 .ratio = ratio,
                                 .storage_block = entries.block_size,
                                 .width = width,
                                 .global = global,
                                 .share = share},
                                {.positions = positions.view().slice(0, begin, shape.tokens),
                                 .token_to_req = token_to_req.view().slice(0, begin, shape.tokens),
                                 .slot_mapping = slots.slice(0, begin, shape.tokens),
                                 .block_table = table,
                                 .indices = indices.view(),
                                 .lens = row_lens.view()});
  };
  dense(0, true, out.dense_indices, out.dense_lens);
  dense(shape.split.decode_tokens, false, out.dense_local, out.dense_local_lens);
}

/// One matrix for window-only layers (ratio 1) or C128A layers (spec 7.3). Our attention takes the block stride, so no
/// slot is remapped.
void StepMetadata::State::build_mixed(std::size_t group, int ratio, DeviceTensor& out) {
  GroupStep& g = groups[group];
  const bool dense = ratio > 1;
  const std::int64_t width = dense ? c128.dense_indices.size(1) : 0;
  const std::int64_t columns = (width + 3) / 4 * 4;
  const auto layer =
      std::ranges::find_if(layers, [&](const LayerConfig& c) { return c.compress_ratio == 128; }) - layers.begin();
  shape_as(out, DType::kI32, {shape.tokens, shape.window_width + columns});
  shape_as(g.mixed_lens, DType::kI32, {shape.tokens});
  const std::int64_t decode_tokens = shape.split.decode_tokens;
  MixedSparseIndices::Problem problem{.requests = shape.requests,
                                      .tokens = shape.tokens,
                                      .decode_tokens = decode_tokens,
                                      .window = layout.groups[group].window,
                                      .window_width = shape.window_width,
                                      .ratio = dense ? ratio : 4,
                                      .top_k = width,
                                      .compressed_width = columns,
                                      .window_block = layout.groups[group].block_tokens,
                                      .local = false};
  MixedSparseIndices::Args args{.decode_window = g.window_indices.view().slice(0, 0, decode_tokens),
                                .query_start_loc = query_start_loc.view(),
                                .seq_lens = seq_lens.view(),
                                .token_to_req = token_to_req.view(),
                                .window_table = g.block_table,
                                .indices = out.view(),
                                .lens = g.mixed_lens.view()};
  if (dense) {
    problem.compressed_block = layout.find(layer, CacheRole::kCompressed)->block_size;
    args.decode_compressed = c128.dense_indices.view().slice(0, 0, decode_tokens);
    args.decode_lens = c128.dense_lens.view().slice(0, 0, decode_tokens);
    args.prefill_topk = c128.dense_local.view();
    args.compressed_table =
        groups[static_cast<std::size_t>(layout.group_of(layer, CacheRole::kCompressed))].block_table;
  }
  run<MixedSparseIndices>(problem, args);
}

}  // namespace smla
