// DSpark drafts: their blocks before the stack verifies, their context behind it (spec 6.3, 10).
#include <algorithm>
#include <chrono>

#include "engine/engine_state.h"
#include "engine/host_view.h"

namespace smla {

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

StepBatch Engine::State::upload_blocks(const StepTensors& blocks, const StepTensors& batch, const StepSizes& sizes,
                                       std::span<const ConstTensorView> views) {
  totals.draft_blocks += std::ranges::count_if(batch.parts, [](const Scheduled& part) { return part.drafts > 0; });
  return drafts->upload(device(), blocks, draft_inputs(blocks, batch, options), sizes, views, options.speculative,
                        stream.get());
}

/// The blocks of a step that is not recorded, through the layers that draft.
void Engine::State::draft_eager(const StepTensors& batch) {
  if (drafts == nullptr) return;
  const StepTensors blocks = make_draft_blocks(batch);
  if (blocks.rows.empty()) return;
  auto start = std::chrono::steady_clock::now();
  const StepSizes sizes = exact_sizes(blocks);
  const StepBatch step = upload_blocks(blocks, batch, sizes, tables->views(sizes.requests, sizes.max_seq_len));
  drafts->metadata().build(step, stream.get());
  totals.metadata_seconds += seconds_since(start);
  for (std::size_t i = stack(); i < layers.size(); ++i) {
    forward_eager(i, drafts->metadata(), static_cast<std::int64_t>(i - stack()), drafts->x(), drafts->y());
    show_blocks(i, blocks, drafts->x(), drafts->y());
    start = std::chrono::steady_clock::now();
    add_residual(i, drafts->x(), drafts->y());
    totals.residual_seconds += seconds_since(start);
  }
}

/// What the stack made of a step's tokens becomes the context of the blocks to come. That of a rejected draft is
/// written anew before a block sees it, for its position comes again.
void Engine::State::insert_contexts(const StepMetadata& step_metadata, const ConstTensorView& x, Workspace lent) {
  for (std::size_t i = stack(); i < layers.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    const LayerStep step = step_metadata.layer(index);
    layers[i].layer().insert_context(x, step.positions, step.window_slots, pool->cache(index, CacheRole::kWindow), lent,
                                     stream.get());
  }
}

/// Workspace of insert_contexts.
std::size_t Engine::State::context_bytes(std::int64_t tokens) const {
  std::size_t most = 0;
  for (std::size_t i = stack(); i < layers.size(); ++i) most = std::max(most, layers[i].layer().context_bytes(tokens));
  return most;
}

void Engine::State::show_blocks(std::size_t layer, const StepTensors& blocks, const ConstTensorView& x,
                                const ConstTensorView& y) const {
  if (observer == nullptr) return;
  const auto* start = blocks.query_start_loc.as<std::int32_t>();
  for (std::int64_t r = 0; r < blocks.seq_lens.size(0); ++r) {
    if (start[r] == start[r + 1]) continue;
    const auto index = static_cast<std::int64_t>(layer);
    const std::vector<StepRow> rows =
        shown_rows(index, {blocks.rows.data() + start[r], blocks.rows.data() + start[r + 1]}, x.size(0));
    if (!observer->wants(index, rows.front())) continue;
    const HostView input(device(), x.slice(0, start[r], start[r + 1]), stream.get());
    const HostView output(device(), y.slice(0, start[r], start[r + 1]), stream.get());
    observer->on_draft_block(index, rows, input.get(), output.get());
  }
}

void Engine::State::show_context(const StepTensors& batch, const ConstTensorView& x) const {
  if (observer == nullptr || drafts == nullptr) return;
  const auto first_draft = static_cast<std::int64_t>(stack());
  const std::vector<StepRow> rows = shown_rows(first_draft, batch.rows, x.size(0));
  each_wanted(first_draft, batch, [&](std::int64_t first, std::int64_t last) {
    const HostView hidden(device(), x.slice(0, first, last), stream.get());
    observer->on_context(
        std::span(rows).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(last - first)), hidden.get());
  });
}

}  // namespace smla
