// A step through the stack: at once, or as a recorded graph.
#include <algorithm>
#include <chrono>

#include "engine/engine_state.h"
#include "engine/host_view.h"
#include "sparsemla/ops/norm_rope.h"

namespace smla {

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Adds up a layer's stages.
class StageSums : public LayerObserver {
 public:
  explicit StageSums(std::array<double, kNumStages>& sums) : sums_(sums) {}
  void on_stage(Stage stage, double seconds) override { sums_[static_cast<std::size_t>(stage)] += seconds; }
  void on_tensor(std::string_view, const ConstTensorView&, std::int64_t) override {}

 private:
  std::array<double, kNumStages>& sums_;
};

}  // namespace

/// Calls `show_run` with the first and the last row (and one) of each run of rows that the observer wants.
void Engine::State::each_wanted(std::int64_t layer, const StepTensors& batch,
                                const std::function<void(std::int64_t, std::int64_t)>& show_run) const {
  const std::span<const StepRow> rows = batch.rows;
  const auto wanted = [&](const StepRow& row) { return observer->wants(layer, row); };
  for (auto begin = std::ranges::find_if(rows, wanted); begin != rows.end();) {
    const auto end = std::find_if_not(begin, rows.end(), wanted);
    show_run(begin - rows.begin(), end - rows.begin());
    begin = std::find_if(end, rows.end(), wanted);
  }
}

/// Rows as an observer of a layer is shown them; `tokens`: of the step, with padding.
std::vector<StepRow> Engine::State::shown_rows(std::int64_t layer, std::span<const StepRow> rows,
                                               std::int64_t tokens) const {
  std::vector<StepRow> shown(rows.begin(), rows.end());
  const bool rounds = layers[static_cast<std::size_t>(layer)].layer().rounds_fp8_inputs(tokens);
  for (StepRow& row : shown) row.fp8_inputs = rounds;
  return shown;
}

void Engine::State::show(std::int64_t layer, const StepTensors& batch, const ConstTensorView& x,
                         const ConstTensorView& y, const ConstTensorView& topk) const {
  const std::vector<StepRow> rows = shown_rows(layer, batch.rows, x.size(0));
  each_wanted(layer, batch, [&](std::int64_t first, std::int64_t last) {
    const HostView input(device(), x.slice(0, first, last), stream.get());
    const HostView output(device(), y.slice(0, first, last), stream.get());
    const HostView chosen(device(), topk.absent() ? topk : topk.slice(0, first, last), stream.get());
    observer->on_layer(layer,
                       std::span(rows).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(last - first)),
                       input.get(), output.get(), chosen.get());
  });
}

/// x <- x + RMSNorm(y).
void Engine::State::add_residual(std::size_t layer, const TensorView& x, const TensorView& y) {
  const PlanOptions plan{
      .device = device(), .deterministic = options.layer.deterministic, .threads = options.layer.threads};
  Plan<AddRows>(
      {.rows = x.size(0), .dim = x.size(1), .dtype = x.dtype, .normed = true, .eps = configs[layer].rms_norm_eps}, plan)
      .run({.y = y, .x = x}, {}, stream.get());
}

/// At least `bytes` of workspace for steps that are not recorded.
Workspace Engine::State::workspace_of(std::size_t bytes) {
  if (workspace.bytes() < bytes) {
    synchronize(device(), stream.get());  // the old one may still be read
    workspace.reshape(device(), DType::kU8, {static_cast<std::int64_t>(bytes + bytes / 4)});
  }
  return {.data = workspace.data(), .bytes = workspace.bytes()};
}

/// A layer and the residual behind it; `row`: the layer's place in the metadata.
void Engine::State::forward_eager(std::size_t layer, StepMetadata& step_metadata, std::int64_t row, const TensorView& x,
                                  const TensorView& y) {
  StageSums sums(totals.stage_seconds);
  const LayerCaches caches = caches_of(*pool, static_cast<std::int64_t>(layer));
  const LayerPlan plan = layers[layer].layer().plan(step_metadata.shape(), caches);
  layers[layer].layer().forward(plan, step_metadata.layer(row), caches, x, y, workspace_of(plan.workspace_bytes()),
                                stream.get(), options.time_stages ? &sums : nullptr);
  implementations = plan.describe();
}

void Engine::State::run_eager(const StepTensors& batch, HostTensor& x) {
  draft_eager(batch);
  auto start = std::chrono::steady_clock::now();
  const StepSizes sizes = exact_sizes(batch);
  StepBatch step =
      eager.upload(device(), batch, x, sizes, tables->views(sizes.requests, sizes.max_seq_len), stream.get());
  step.decode_threshold = 1 + options.speculative;
  metadata->build(step, stream.get());
  totals.metadata_seconds += seconds_since(start);

  for (std::size_t i = 0; i < stack(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    forward_eager(i, *metadata, index, eager.x(), eager.y());
    if (observer != nullptr) show(index, batch, eager.x(), eager.y(), metadata->layer(index).topk);
    start = std::chrono::steady_clock::now();
    add_residual(i, eager.x(), eager.y());
    totals.residual_seconds += seconds_since(start);
  }
  if (drafts != nullptr) {
    start = std::chrono::steady_clock::now();
    insert_contexts(*metadata, eager.x(), workspace_of(context_bytes(sizes.tokens)));
    if (options.time_stages) synchronize(device(), stream.get());
    totals.stage_seconds[static_cast<std::size_t>(Stage::kInsert)] += seconds_since(start);
    show_context(batch, eager.x());
  }
  wait_for_ranks();
  copy_bytes(device(), x.data(), eager.x().data, x.bytes(), stream.get());
}

/// Pure decode batches on a GPU.
bool Engine::State::recordable(const StepTensors& batch) const {
  if (device() == DeviceKind::kCpu || !options.graphs || options.time_stages) return false;
  return std::ranges::all_of(batch.parts,
                             [&](const Scheduled& part) { return part.tokens <= 1 + options.speculative; });
}

/// One layer of a recorded step, the residual behind it, and what an observer is shown.
void Engine::State::queue_layer(DecodeGraph& g, std::size_t layer, StepMetadata& step_metadata, std::int64_t row,
                                const TensorView& x, const TensorView& y) {
  const LayerCaches caches = caches_of(*pool, static_cast<std::int64_t>(layer));
  if (!g.plans[layer]) g.plans[layer] = layers[layer].layer().plan(step_metadata.shape(), caches);
  const LayerStep layer_step = step_metadata.layer(row);
  layers[layer].layer().forward(*g.plans[layer], layer_step, caches, x, y,
                                {.data = graphs->workspace.data(), .bytes = graphs->workspace.bytes()}, stream.get());
  if (observer != nullptr) {
    const auto keep = [&](const ConstTensorView& from, DeviceTensor& to) {
      reserve_like(device(), from, to);
      if (!from.absent()) copy_bytes(device(), to.data(), from.data, to.bytes(), stream.get());
    };
    keep(x, g.seen[layer].input);
    keep(y, g.seen[layer].output);
    keep(layer_step.topk, g.seen[layer].topk);
  }
  add_residual(layer, x, y);
}

/// Everything between the uploaded batches and the residual stream's end: draft blocks, the stack, the context of later
/// blocks. `blocks`: null without drafts.
void Engine::State::queue_decode(DecodeGraph& g, const StepBatch& step, const StepBatch* blocks) {
  StepMetadata& shared = *graphs->metadata;
  g.plans.resize(layers.size());
  g.seen.resize(observer == nullptr ? 0 : layers.size());
  if (blocks != nullptr) {
    drafts->metadata().build(*blocks, stream.get());
    for (std::size_t i = stack(); i < layers.size(); ++i)
      queue_layer(g, i, drafts->metadata(), static_cast<std::int64_t>(i - stack()), drafts->x(), drafts->y());
  }
  shared.build(step, stream.get());
  for (std::size_t i = 0; i < stack(); ++i)
    queue_layer(g, i, shared, static_cast<std::int64_t>(i), graphs->step.x(), graphs->step.y());
  insert_contexts(shared, graphs->step.x(), {.data = graphs->workspace.data(), .bytes = graphs->workspace.bytes()});
}

/// Makes the memory that all recorded steps share, by a step of the largest size whose tokens are all padding.
void Engine::State::reserve_graphs() {
  if (graphs->metadata != nullptr) return;
  const StepSizes largest{.tokens = padded_count(options.max_seqs * (1 + options.speculative)),
                          .requests = padded_count(options.max_seqs),
                          .max_seq_len = options.max_model_len,
                          .draft_tokens = padded_count(options.max_seqs * options.speculative)};
  std::size_t most = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const LayerCaches caches = caches_of(*pool, static_cast<std::int64_t>(i));
    most = std::max(most, layers[i].layer().reserve_bytes(largest.tokens, largest.tokens, largest.max_seq_len, caches));
  }
  most = std::max(most, context_bytes(largest.tokens));
  graphs->workspace.reshape(device(), DType::kU8, {static_cast<std::int64_t>(most)});
  graphs->metadata = std::make_unique<StepMetadata>(pool->layout(), configs, options.layer.front_end, device());
  StepTensors nothing;
  nothing.query_start_loc = HostTensor(DType::kI32, {1});
  nothing.seq_lens = HostTensor(DType::kI32, {0});
  nothing.positions = HostTensor(DType::kI64, {0});
  const HostTensor no_rows(activations_of(options), {0, options.model.hidden_size});
  const std::vector<ConstTensorView> views = tables->views(largest.requests, largest.max_seq_len);
  StepBatch step = graphs->step.upload(device(), nothing, no_rows, largest, views, stream.get());
  step.decode_threshold = 1 + options.speculative;
  graphs->metadata->build(step, stream.get());
  if (drafts == nullptr) return;
  drafts->metadata().build(
      drafts->upload(device(), nothing, no_rows, block_sizes(largest), views, options.speculative, stream.get()),
      stream.get());
}

/// Records what a step of `step`'s size queues. Plans and the memory of what an observer is shown are made before, for
/// none can be made in a recording.
void Engine::State::record(DecodeGraph& g, const StepBatch& step, const StepBatch* blocks) {
  graphs->metadata->build(step, stream.get());
  if (blocks != nullptr) drafts->metadata().build(*blocks, stream.get());
  g.plans.assign(layers.size(), std::nullopt);
  g.seen.resize(observer == nullptr ? 0 : layers.size());
  for (std::size_t i = 0; i < (blocks == nullptr ? stack() : layers.size()); ++i) {
    const bool in_stack = i < stack();
    StepMetadata& of_layer = in_stack ? *graphs->metadata : drafts->metadata();
    const auto index = static_cast<std::int64_t>(i);
    g.plans[i] = layers[i].layer().plan(of_layer.shape(), caches_of(*pool, index));
    if (observer == nullptr) continue;
    reserve_like(device(), in_stack ? graphs->step.x() : drafts->x(), g.seen[i].input);
    reserve_like(device(), in_stack ? graphs->step.y() : drafts->y(), g.seen[i].output);
    if (in_stack) reserve_like(device(), of_layer.layer(index).topk, g.seen[i].topk);
  }
  g.graph = Graph(stream.get(), [&] { queue_decode(g, step, blocks); });
  std::int64_t bytes = g.graph.bytes();
  for (const SeenLayer& seen : g.seen)
    bytes += static_cast<std::int64_t>(seen.input.bytes() + seen.output.bytes() + seen.topk.bytes());
  graphs->recorded.charge(bytes);
}

/// The first steps of a size run as they are queued: one that never comes again is not worth a recording, and all
/// memory is there when the next one is recorded.
void Engine::State::run_graph(const StepTensors& batch, HostTensor& x) {
  const auto start = std::chrono::steady_clock::now();
  reserve_graphs();
  StepSizes sizes = padded_sizes(batch, options.max_model_len);
  const StepTensors blocks = drafts == nullptr ? StepTensors() : make_draft_blocks(batch);
  if (!blocks.rows.empty()) sizes.draft_tokens = padded_count(std::ssize(blocks.rows));
  const std::vector<ConstTensorView> views = tables->views(sizes.requests, sizes.max_seq_len);
  StepBatch step = graphs->step.upload(device(), batch, x, sizes, views, stream.get());
  step.decode_threshold = 1 + options.speculative;
  std::optional<StepBatch> block_step;
  if (!blocks.rows.empty()) block_step = upload_blocks(blocks, batch, block_sizes(sizes), views);
  const StepBatch* const drafted = block_step ? &*block_step : nullptr;
  totals.metadata_seconds += seconds_since(start);
  DecodeGraph once;
  DecodeGraph* g = graphs->recorded.find(sizes);
  if (g == nullptr && graphs->sights.due(sizes)) g = &graphs->recorded.insert(sizes, {});
  if (g != nullptr) {
    if (!g->graph) record(*g, step, drafted);
    g->graph.launch(stream.get());
    ++totals.graph_steps;
  } else {
    g = &once;
    queue_decode(once, step, drafted);
  }
  implementations = g->plans[stack() - 1]->describe();
  wait_for_ranks();
  copy_bytes(device(), x.data(), graphs->step.x().data, x.bytes(), stream.get());
  for (std::size_t i = 0; i < g->seen.size(); ++i) {
    const SeenLayer& seen = g->seen[i];
    if (i < stack()) {
      show(static_cast<std::int64_t>(i), batch, seen.input.view(), seen.output.view(), seen.topk.view());
    } else if (drafted != nullptr) {
      show_blocks(i, blocks, seen.input.view(), seen.output.view());
    }
  }
  show_context(batch, graphs->step.x());
  totals.graphs = graphs->recorded.size();
  totals.graph_bytes = graphs->recorded.bytes();
  totals.graphs_recorded = graphs->recorded.inserted();
  totals.graphs_evicted = graphs->recorded.evicted();
}

/// Moves what changed of the block tables. Recorded graphs name the tables' addresses.
void Engine::State::update_tables(const StepTensors& batch) {
  const auto start = std::chrono::steady_clock::now();
  const bool lost = options.planted_error == PlantedError::kBlock;
  if (tables->update(batch.parts, stream.get(), lost ? pool->layout().group_of(0, CacheRole::kWindow) : -1))
    graphs->recorded.clear();
  totals.table_bytes += tables->moved();
  totals.metadata_seconds += seconds_since(start);
}

void Engine::State::run_layers(const StepTensors& batch, HostTensor& x) {
  update_tables(batch);
  recordable(batch) ? run_graph(batch, x) : run_eager(batch, x);
}

}  // namespace smla
