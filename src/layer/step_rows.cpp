// Slots and index rows of a step, cache group by cache group and ratio by ratio (spec 5.5, 6.3 to 6.5, 7.3).
#include "layer/step_state.h"
#include "sparsemla/ops/index.h"

namespace smla {

void StepMetadata::State::build_slots() {
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const CacheGroup& group = layout.groups[g];
    if (!group.sliding()) continue;
    shape_as(groups[g].slots, DType::kI64, {shape.tokens});
    Plan<SlotMapping>({.requests = shape.requests, .tokens = shape.tokens, .block_size = group.block_tokens})
        .run({.query_start_loc = query_start_loc.view(),
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
    Plan<WindowIndices>({.requests = shape.requests,
                         .tokens = shape.tokens,
                         .window = group.window,
                         .block_size = group.block_tokens,
                         .noncausal_tokens = causal ? 0 : shape.split.decode_tokens})
        .run({.query_start_loc = query_start_loc.view(),
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
  const auto* slots = groups[static_cast<std::size_t>(group)].slots.as<std::int64_t>();
  for (std::int64_t t = 0; t < shape.tokens; ++t) valid.as<bool>()[t] = slots[t] >= 0;
}

void StepMetadata::State::build_ratio(int ratio, RatioStep& out) {
  const auto layer = std::ranges::find_if(layers, [&](const LayerConfig& c) { return c.compress_ratio == ratio; }) - layers.begin();
  const LayerCache& entries = *layout.find(layer, CacheRole::kCompressed);
  const ConstTensorView& table = groups[static_cast<std::size_t>(layout.group_of(layer, CacheRole::kCompressed))].block_table;
  const TensorView slots = groups[static_cast<std::size_t>(layout.group_of(layer, CacheRole::kWindow))].slots.view();

  shape_as(out.entry_slots, DType::kI64, {shape.tokens});
  Plan<CompressedSlotMapping>({.requests = shape.requests, .tokens = shape.tokens, .ratio = ratio, .storage_block = entries.block_size})
      .run({.query_start_loc = query_start_loc.view(), .seq_lens = seq_lens.view(), .block_table = table, .slots = out.entry_slots.view()});

  shape_as(out.entry_lens, DType::kI32, {shape.tokens});
  const auto* pos = positions.as<std::int64_t>();
  const auto* ok = valid.as<bool>();
  auto* lens = out.entry_lens.as<std::int32_t>();
  for (std::int64_t t = 0; t < shape.tokens; ++t) lens[t] = ok[t] ? static_cast<std::int32_t>((pos[t] + 1) / ratio) : 0;

  shape_as(out.entry_counts, DType::kI32, {shape.split.prefills});
  for (std::int64_t r = 0; r < shape.split.prefills; ++r) {
    out.entry_counts.as<std::int32_t>()[r] = std::max(seq_lens.as<std::int32_t>()[shape.split.decodes + r], 0) / ratio;
  }

  if (ratio == 4) {  // C4A rows come from the indexer
    shape_as(out.topk_lens, DType::kI32, {shape.tokens});
    const auto most = static_cast<std::int32_t>(layers[static_cast<std::size_t>(layer)].index_topk);
    for (std::int64_t t = 0; t < shape.tokens; ++t) out.topk_lens.as<std::int32_t>()[t] = std::min(lens[t], most);
    return;
  }
  const std::int64_t width = std::max<std::int64_t>(shape.max_seq_len / ratio, 1);
  const auto dense = [&](std::int64_t begin, bool global, HostTensor& indices, HostTensor& row_lens) {
    const std::int64_t rows = shape.tokens - begin;
    shape_as(indices, DType::kI32, {rows, width});
    shape_as(row_lens, DType::kI32, {rows});
    Plan<DenseCompressedIndices>(
        {.requests = shape.requests, .tokens = rows, .ratio = ratio, .storage_block = entries.block_size, .width = width, .global = global})
        .run({.positions = positions.view().slice(0, begin, shape.tokens),
              .token_to_req = token_to_req.view().slice(0, begin, shape.tokens),
              .slot_mapping = slots.slice(0, begin, shape.tokens),
              .block_table = table,
              .indices = indices.view(),
              .lens = row_lens.view()});
  };
  dense(0, true, out.dense_indices, out.dense_lens);
  dense(shape.split.decode_tokens, false, out.dense_local, out.dense_local_lens);
}

/// One matrix for window-only layers (ratio 1) or C128A layers (spec 7.3). Our attention takes the block stride, so no slot is remapped.
void StepMetadata::State::build_mixed(std::size_t group, int ratio, HostTensor& out) {
  GroupStep& g = groups[group];
  const bool dense = ratio > 1;
  const std::int64_t width = dense ? c128.dense_indices.size(1) : 0;
  const std::int64_t columns = (width + 3) / 4 * 4;
  const auto layer = std::ranges::find_if(layers, [&](const LayerConfig& c) { return c.compress_ratio == 128; }) - layers.begin();
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
    args.compressed_table = groups[static_cast<std::size_t>(layout.group_of(layer, CacheRole::kCompressed))].block_table;
  }
  Plan<MixedSparseIndices>(problem).run(args);
}

}  // namespace smla
