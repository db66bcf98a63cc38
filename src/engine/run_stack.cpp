// A step through the stack: at once, or as a recorded graph.
#include <algorithm>
#include <chrono>

#include "engine/engine_state.h"
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

/// What lies on a device, on the host; what lies there already, itself.
class HostView {
 public:
  HostView(DeviceKind device, const ConstTensorView& v, Stream stream) : view_(v) {
    if (device == DeviceKind::kCpu || v.absent()) return;
    copy_ = HostTensor(v.dtype, std::vector<std::int64_t>(v.shape.begin(), v.shape.begin() + v.rank));
    copy_bytes(device, copy_.data(), v.data, copy_.bytes(), stream);
    view_ = std::as_const(copy_).view();
  }
  const ConstTensorView& get() const { return view_; }

 private:
  ConstTensorView view_;
  HostTensor copy_;
};

/// Memory of `like`'s type and shape, where it is there.
void reserve_like(DeviceKind device, const ConstTensorView& like, DeviceTensor& to) {
  if (!like.absent()) to.reshape(device, like.dtype, {like.size(0), like.size(1)});
}

}  // namespace

void Engine::State::show(std::int64_t layer, const StepTensors& batch, const ConstTensorView& x,
                         const ConstTensorView& y, const ConstTensorView& topk) const {
  const std::span<const StepRow> rows = batch.rows;
  const auto wanted = [&](const StepRow& row) { return observer->wants(layer, row); };
  for (auto begin = std::ranges::find_if(rows, wanted); begin != rows.end();) {
    const auto end = std::find_if_not(begin, rows.end(), wanted);
    const std::int64_t first = begin - rows.begin();
    const std::int64_t last = end - rows.begin();
    const HostView input(device(), x.slice(0, first, last), stream.get());
    const HostView output(device(), y.slice(0, first, last), stream.get());
    const HostView chosen(device(), topk.absent() ? topk : topk.slice(0, first, last), stream.get());
    observer->on_layer(layer, {begin, end}, input.get(), output.get(), chosen.get());
    begin = std::find_if(end, rows.end(), wanted);
  }
}

/// x <- x + RMSNorm(y).
void Engine::State::add_residual(std::size_t layer, const TensorView& x, const TensorView& y) {
  const PlanOptions plan{
      .device = device(), .deterministic = options.layer.deterministic, .threads = options.layer.threads};
  Plan<RmsNorm>({.rows = x.size(0),
                 .dim = x.size(1),
                 .in = x.dtype,
                 .out = x.dtype,
                 .has_weight = false,
                 .eps = configs[layer].rms_norm_eps},
                plan)
      .run({.x = y, .weight = {}, .y = y}, {}, stream.get());
  Plan<AddRows>({.rows = x.size(0), .dim = x.size(1), .dtype = x.dtype}, plan).run({.y = y, .x = x}, {}, stream.get());
}

void Engine::State::run_eager(const StepTensors& batch, HostTensor& x) {
  auto start = std::chrono::steady_clock::now();
  const StepSizes sizes = exact_sizes(batch);
  StepBatch step =
      eager.upload(device(), batch, x, sizes, tables->views(sizes.requests, sizes.max_seq_len), stream.get());
  step.decode_threshold = 1 + options.speculative;
  metadata->build(step, stream.get());
  totals.metadata_seconds += seconds_since(start);

  implementations.clear();
  StageSums sums(totals.stage_seconds);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    const LayerCaches caches = caches_of(*pool, index);
    const LayerPlan plan = layers[i].layer().plan(metadata->shape(), caches);
    if (workspace.bytes() < plan.workspace_bytes()) {
      synchronize(device(), stream.get());  // the old one may still be read
      workspace.reshape(device(), DType::kU8,
                        {static_cast<std::int64_t>(plan.workspace_bytes() + plan.workspace_bytes() / 4)});
    }
    const LayerStep layer_step = metadata->layer(index);
    layers[i].layer().forward(plan, layer_step, caches, eager.x(), eager.y(),
                              {.data = workspace.data(), .bytes = workspace.bytes()}, stream.get(),
                              options.time_stages ? &sums : nullptr);
    if (observer != nullptr) show(index, batch, eager.x(), eager.y(), layer_step.topk);
    implementations = plan.describe();

    start = std::chrono::steady_clock::now();
    add_residual(i, eager.x(), eager.y());
    totals.residual_seconds += seconds_since(start);
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

/// Everything between the uploaded batch and the residual stream's end.
void Engine::State::queue_decode(DecodeGraph& g, const StepBatch& step) {
  StepMetadata& shared = *graphs->metadata;
  DeviceStep& at = graphs->step;
  shared.build(step, stream.get());
  g.seen.resize(observer == nullptr ? 0 : layers.size());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    const LayerCaches caches = caches_of(*pool, index);
    if (g.plans.size() == i) g.plans.push_back(layers[i].layer().plan(shared.shape(), caches));
    const LayerStep layer_step = shared.layer(index);
    layers[i].layer().forward(g.plans[i], layer_step, caches, at.x(), at.y(),
                              {.data = graphs->workspace.data(), .bytes = graphs->workspace.bytes()}, stream.get());
    if (observer != nullptr) {
      const auto keep = [&](const ConstTensorView& from, DeviceTensor& to) {
        reserve_like(device(), from, to);
        if (!from.absent()) copy_bytes(device(), to.data(), from.data, to.bytes(), stream.get());
      };
      keep(at.x(), g.seen[i].input);
      keep(at.y(), g.seen[i].output);
      keep(layer_step.topk, g.seen[i].topk);
    }
    add_residual(i, at.x(), at.y());
  }
}

/// Makes the memory that all recorded steps share, by a step of the largest size whose tokens are all padding.
void Engine::State::reserve_graphs() {
  if (graphs->metadata != nullptr) return;
  const StepSizes largest{.tokens = padded_count(options.max_seqs * (1 + options.speculative)),
                          .requests = padded_count(options.max_seqs),
                          .max_seq_len = options.max_model_len};
  std::size_t most = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const LayerCaches caches = caches_of(*pool, static_cast<std::int64_t>(i));
    most = std::max(most, layers[i].layer().reserve_bytes(largest.tokens, largest.tokens, largest.max_seq_len, caches));
  }
  graphs->workspace.reshape(device(), DType::kU8, {static_cast<std::int64_t>(most)});
  graphs->metadata = std::make_unique<StepMetadata>(pool->layout(), configs, options.layer.front_end, device());
  StepTensors nothing;
  nothing.query_start_loc = HostTensor(DType::kI32, {1});
  nothing.seq_lens = HostTensor(DType::kI32, {0});
  nothing.positions = HostTensor(DType::kI64, {0});
  StepBatch step =
      graphs->step.upload(device(), nothing, HostTensor(activations_of(options), {0, options.model.hidden_size}),
                          largest, tables->views(largest.requests, largest.max_seq_len), stream.get());
  step.decode_threshold = 1 + options.speculative;
  graphs->metadata->build(step, stream.get());
}

/// Records what a step of `step`'s size queues. Plans and the memory of what an observer is shown are made before, for
/// none can be made in a recording.
void Engine::State::record(DecodeGraph& g, const StepBatch& step) {
  StepMetadata& shared = *graphs->metadata;
  shared.build(step, stream.get());
  g.plans.clear();
  g.seen.resize(observer == nullptr ? 0 : layers.size());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    g.plans.push_back(layers[i].layer().plan(shared.shape(), caches_of(*pool, index)));
    if (observer == nullptr) continue;
    reserve_like(device(), graphs->step.x(), g.seen[i].input);
    reserve_like(device(), graphs->step.y(), g.seen[i].output);
    reserve_like(device(), shared.layer(index).topk, g.seen[i].topk);
  }
  g.graph = Graph(stream.get(), [&] { queue_decode(g, step); });
  implementations = g.plans.back().describe();
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
  const StepSizes sizes = padded_sizes(batch, options.max_model_len);
  StepBatch step =
      graphs->step.upload(device(), batch, x, sizes, tables->views(sizes.requests, sizes.max_seq_len), stream.get());
  step.decode_threshold = 1 + options.speculative;
  totals.metadata_seconds += seconds_since(start);
  DecodeGraph once;
  DecodeGraph* g = graphs->recorded.find(sizes);
  if (g == nullptr && graphs->sights.due(sizes)) g = &graphs->recorded.insert(sizes, {});
  if (g != nullptr) {
    if (!g->graph) record(*g, step);
    g->graph.launch(stream.get());
    ++totals.graph_steps;
  } else {
    g = &once;
    queue_decode(once, step);
    implementations = once.plans.back().describe();
  }
  wait_for_ranks();
  copy_bytes(device(), x.data(), graphs->step.x().data, x.bytes(), stream.get());
  for (std::size_t i = 0; i < g->seen.size(); ++i) {
    const SeenLayer& seen = g->seen[i];
    show(static_cast<std::int64_t>(i), batch, seen.input.view(), seen.output.view(), seen.topk.view());
  }
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
