// A step through the stack: at once, or as a recorded graph.
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

}  // namespace

void Engine::State::show(std::int64_t layer, const StepTensors& batch, const ConstTensorView& x,
                         const ConstTensorView& y, const ConstTensorView& topk) const {
  const HostView input(device(), x, stream.get());
  const HostView output(device(), y, stream.get());
  const HostView chosen(device(), topk, stream.get());
  observer->on_layer(layer, batch.rows, input.get(), output.get(), chosen.get());
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
  StepBatch step = eager.upload(device(), batch, x, exact_sizes(batch), stream.get());
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
  copy_bytes(device(), x.data(), eager.x().data, x.bytes(), stream.get());
}

/// Pure decode batches on a GPU.
bool Engine::State::recordable(const StepTensors& batch) const {
  if (device() == DeviceKind::kCpu || !options.graphs || options.time_stages) return false;
  return std::ranges::all_of(batch.parts,
                             [&](const Scheduled& part) { return part.tokens <= 1 + options.speculative; });
}

/// Everything between the uploaded batch and the residual stream's end.
void Engine::State::queue_graph(DecodeGraph& g, const StepBatch& step) {
  g.metadata.build(step, stream.get());
  g.seen.resize(observer == nullptr ? 0 : layers.size());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    const LayerCaches caches = caches_of(*pool, index);
    if (g.plans.size() == i) g.plans.push_back(layers[i].layer().plan(g.metadata.shape(), caches));
    const LayerStep layer_step = g.metadata.layer(index);
    layers[i].layer().forward(g.plans[i], layer_step, caches, g.step.x(), g.step.y(),
                              {.data = graph_workspace.data(), .bytes = graph_workspace.bytes()}, stream.get());
    if (observer != nullptr) {
      const auto keep = [&](const ConstTensorView& from, DeviceTensor& to) {
        if (from.absent()) return;
        to.reshape(device(), from.dtype, {from.size(0), from.size(1)});
        copy_bytes(device(), to.data(), from.data, to.bytes(), stream.get());
      };
      keep(g.step.x(), g.seen[i].input);
      keep(g.step.y(), g.seen[i].output);
      keep(layer_step.topk, g.seen[i].topk);
    }
    add_residual(i, g.step.x(), g.step.y());
  }
}

DecodeGraph& Engine::State::graph_of(const StepTensors& batch) {
  const StepSizes sizes = padded_sizes(batch, pool->layout(), options.max_model_len);
  for (const auto& g : graphs) {
    if (g->sizes == sizes) return *g;
  }
  if (graph_workspace.absent()) {
    std::size_t most = 0;
    const std::int64_t tokens = std::max(options.max_seqs * (1 + options.speculative), sizes.tokens) + 16;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const LayerCaches caches = caches_of(*pool, static_cast<std::int64_t>(i));
      most = std::max(most, layers[i].layer().reserve_bytes(tokens, tokens, options.max_model_len, caches));
    }
    graph_workspace.reshape(device(), DType::kU8, {static_cast<std::int64_t>(most)});
  }
  graphs.push_back(std::make_unique<DecodeGraph>(
      DecodeGraph{.sizes = sizes,
                  .step = {},
                  .metadata = StepMetadata(pool->layout(), configs, options.layer.front_end, device())}));
  return *graphs.back();
}

/// The first step of a size runs as it is queued, so that all memory is there, and is recorded for those that come
/// after it.
void Engine::State::run_graph(const StepTensors& batch, HostTensor& x) {
  const auto start = std::chrono::steady_clock::now();
  DecodeGraph& g = graph_of(batch);
  StepBatch step = g.step.upload(device(), batch, x, g.sizes, stream.get());
  step.decode_threshold = 1 + options.speculative;
  totals.metadata_seconds += seconds_since(start);
  if (g.graph) {
    g.graph.launch(stream.get());
    ++totals.graph_steps;
  } else {
    queue_graph(g, step);
    g.graph = Graph(stream.get(), [&] { queue_graph(g, step); });
    implementations = g.plans.back().describe();
  }
  copy_bytes(device(), x.data(), g.step.x().data, x.bytes(), stream.get());
  for (std::size_t i = 0; i < g.seen.size(); ++i) {
    const SeenLayer& seen = g.seen[i];
    show(static_cast<std::int64_t>(i), batch, seen.input.view(), seen.output.view(), seen.topk.view());
  }
}

void Engine::State::run_layers(const StepTensors& batch, HostTensor& x) {
  recordable(batch) ? run_graph(batch, x) : run_eager(batch, x);
}

}  // namespace smla
