#include "bench/device_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <numeric>

#include "bench/inputs.h"
#include "bench/quantised_weights.h"
#include "model/weight_table.h"

// One attention layer with random weights on a GPU, hidden states in, hidden states out. Plans and step metadata are
// made once a step for all layers, so they are not part of a layer's time. Caches lie one after the other, each group
// of them with blocks of its own in random order, and only the blocks that a step can touch exist.

namespace smla::bench {

namespace {

constexpr std::array<std::int64_t, 9> kBatches{1, 2, 4, 8, 16, 32, 64, 128, 256};
constexpr std::array<std::int64_t, 4> kContexts{8192, 32768, 131072, 1048576};
constexpr std::array<std::int64_t, 5> kPrompts{512, 1024, 2048, 4096, 8192};

/// Table columns of a group that a request of `length` positions needs when its last `tokens` are computed now.
std::pair<std::int64_t, std::int64_t> live_columns(const CacheGroup& group, std::int64_t length, std::int64_t tokens) {
  const std::int64_t end = (length + group.block_tokens - 1) / group.block_tokens;
  return {group.first_kept(length - tokens) / group.block_tokens, end};
}

/// Positions before the end of a request of LayerShape::length from which on something is computed.
std::int64_t computed_positions(const LayerShape& shape) {
  return shape.tokens + LayerRun::kSteps + (shape.staggered ? LayerRun::kSteps : 0);
}

template <class T>
DeviceTensor device_copy(const std::vector<T>& values) {
  return DeviceTensor::copy_of(DeviceKind::kCuda,
                               ConstTensorView(values.data(), dtype_of<T>, {static_cast<std::int64_t>(values.size())}));
}

}  // namespace

LayerOptions layer_options(const Options& options) {
  LayerOptions out;
  out.device = DeviceKind::kCuda;
  out.caches = {.rows = options.rows, .index = options.index_rows};
  if (options.rows->scale == ScaleKind::kPerTensor) {  // and so E4M3 queries
    out.caches.kv_scale = 1.0F / 256;
    out.q_scale = 1.0F / 64;
  }
  out.implementations = options.implementations;
  return out;
}

LayerConfig slice_of_layer(const Options& options, int ratio, std::int64_t heads) {
  Options whole = options;
  whole.heads = 0;
  LayerConfig config = layer_of_ratio(whole, ratio);
  if (heads > 0 && heads != config.num_heads) {
    // A rank of a tensor-parallel model has its share of the groups of the output projection too.
    if (config.num_heads % heads == 0)
      config.o_groups = std::max<std::int64_t>(1, config.o_groups * heads / config.num_heads);
    config.num_heads = heads;
  }
  return config;
}

LayerOnGpu::LayerOnGpu(const Options& options, const LayerConfig& config_in, std::int64_t positions)
    : config(config_in) {
  OwnedLayerWeights numbers = random_weights(config, 1);
  quantise(options, config, numbers);
  host_weights_ = std::make_shared<const OwnedLayerWeights>(std::move(numbers));
  rope_ = std::make_shared<const RopeTable>(config.rope, positions, DeviceKind::kCuda, true);
  place(options);
  LayerOptions host = layer_options(options);
  host.device = DeviceKind::kCpu;
  host.implementations.clear();
  host.front_end = FrontEnd::kFlashInfer;  // slots are made of the chosen entries by an op of its own, after an
                                           // observer has seen them
  on_host.emplace(config, host_weights_->views, host, rope_->host());
  host.fp8_output = OutputScale::kF32;
  if (options.fp8_weights) on_host_rounding.emplace(config, host_weights_->views, host, rope_->host());
}

LayerOnGpu::LayerOnGpu(const Options& options, const LayerOnGpu& like)
    : config(like.config), host_weights_(like.host_weights_), rope_(like.rope_) {
  place(options);
}

void LayerOnGpu::place(const Options& options) {
  placed_.emplace(LayerSource{.config = config, .weights = host_weights_->views}, layer_options(options), rope_);
  views = placed_->weights();
  layer = placed_->layer();
}

namespace {

/// Operations of a token's products with FP8 weights.
double fp8_flops(const LayerConfig& config, LayerWeights weights) {
  double numbers = 0;
  for (const WeightSpec& spec : weight_table(config)) {
    const ConstTensorView& w = spec.view(weights);
    if (!w.absent() && w.dtype == DType::kE4M3) numbers += static_cast<double>(w.numel());
  }
  return 2 * numbers;
}

}  // namespace

double LayerRun::bytes_of(const Options& options, const LayerConfig& config, const LayerShape& shape) {
  const KvLayout layout = make_kv_layout(std::span(&config, 1), layer_options(options).caches);
  double bytes = 0;
  for (const CacheGroup& group : layout.groups) {
    const auto [begin, end] = live_columns(group, shape.length, computed_positions(shape));
    for (const LayerCache& cache : group.caches) {
      bytes +=
          static_cast<double>(DeviceCache::bytes_of(*cache.format, shape.requests * (end - begin), cache.block_size));
    }
  }
  // Tables, window and index rows of the steps; activations are a few times the hidden states.
  const std::int64_t tokens = shape.requests * shape.tokens;
  const std::int64_t columns = shape.length / 4 + 1024;
  bytes += static_cast<double>(kSteps * shape.requests * columns * 4);
  return bytes + static_cast<double>(kSteps * tokens) * (2.0 * static_cast<double>(config.hidden_size) + 4096) +
         8.0 * static_cast<double>(tokens * config.num_heads * config.head_dim);
}

LayerRun::~LayerRun() = default;

LayerRun::LayerRun(const Options& options, const LayerOnGpu& layer, const LayerShape& shape, const DeviceTimer& timer)
    : layer_(layer),
      shape_(shape),
      stream_(timer.stream()),
      layout_(make_kv_layout(std::span(&layer.config, 1), layer_options(options).caches)) {
  if (const std::int64_t least = least_length(shape.tokens, shape.staggered); !shape.prefill && shape.length < least) {
    throw InvalidArgument("bench: context of a decode: got " + std::to_string(shape.length) + " tokens, expected " +
                          std::to_string(least) + " or more: it is measured at positions one behind the other");
  }
  std::uint64_t seed = 20;
  for (const CacheGroup& group : layout_.groups) {
    GroupCaches& made = groups_.emplace_back();
    const auto [begin, end] = live_columns(group, shape.length, computed_positions(shape));
    made.first_column = begin;
    made.columns = end - begin;
    for (const LayerCache& c : group.caches) {
      PagedCache cache =
          made.caches.emplace_back(*c.format, shape.requests * made.columns, c.block_size, ++seed, stream_).cache();
      if (c.format->scale == ScaleKind::kPerTensor) cache.scale = layout_.kv_scale;
      made.roles.push_back(c.role);
      caches_[c.role] = cache;
    }
  }
  std::size_t workspace = 0;
  for (std::int64_t i = 0; i < (shape.prefill ? 2 : kSteps); ++i) {
    make_step(i);
    workspace = std::max(workspace, steps_.back()->plan->workspace_bytes());
  }
  workspace_ = DeviceMemory(DeviceKind::kCuda, workspace, false);
  output_ = DeviceTensor(DeviceKind::kCuda, DType::kBF16, {shape.requests * shape.tokens, layer.config.hidden_size});
  synchronize(DeviceKind::kCuda, stream_);
}

void LayerRun::make_step(std::int64_t index) {
  const LayerConfig& config = layer_.config;
  const std::int64_t requests = shape_.requests;
  const std::int64_t tokens = shape_.tokens;
  // Decodes: the last of the steps ends at the context's end.
  const std::int64_t length = shape_.prefill ? shape_.length : shape_.length - (kSteps - 1) + index;
  Step& step = *steps_.emplace_back(std::make_unique<Step>());
  std::vector<std::int64_t> positions;
  for (std::int64_t r = 0; r <= requests; ++r) step.host_starts.push_back(static_cast<std::int32_t>(r * tokens));
  for (std::int64_t r = 0; r < requests; ++r) {
    const std::int64_t own = shape_.staggered ? length - r % kSteps : length;
    step.host_lens.push_back(static_cast<std::int32_t>(own));
    for (std::int64_t t = 0; t < tokens; ++t) positions.push_back(own - tokens + t);
  }
  step.starts = device_copy(step.host_starts);
  step.lens = device_copy(step.host_lens);
  step.positions = device_copy(positions);
  StepBatch batch{.query_start_loc = step.starts.view(),
                  .seq_lens = step.lens.view(),
                  .positions = step.positions.view(),
                  .block_tables = {},
                  .max_seq_len = shape_.length,
                  .decode_threshold = shape_.prefill ? 1 : tokens,
                  .host_query_start_loc = step.host_starts,
                  .host_seq_lens = step.host_lens};
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const GroupCaches& group = groups_[g];
    const std::int64_t blocks = requests * group.columns;
    const HostTensor order = random_choices(1, blocks, blocks, 40 + static_cast<std::uint64_t>(index));
    HostTensor table(DType::kI32, {requests, group.first_column + group.columns});
    std::fill_n(table.as<std::int32_t>(), table.numel(), -1);
    for (std::int64_t r = 0; r < requests; ++r) {
      std::copy_n(order.as<std::int32_t>() + r * group.columns, group.columns,
                  table.as<std::int32_t>() + r * table.size(1) + group.first_column);
    }
    step.tables.push_back(DeviceTensor::copy_of(DeviceKind::kCuda, std::as_const(table).view()));
    step.host_tables.push_back(std::move(table));
  }
  for (const DeviceTensor& table : step.tables) batch.block_tables.push_back(table.view());
  step.metadata =
      std::make_unique<StepMetadata>(layout_, std::span(&config, 1), FrontEnd::kFlashMla, DeviceKind::kCuda);
  step.metadata->build(batch, stream_);
  step.plan = layer_.layer->plan(step.metadata->shape(), caches_);
  // Variance 1, as a normed hidden state has.
  step.hidden = device_numbers(DType::kBF16, {requests * tokens, config.hidden_size},
                               60 + static_cast<std::uint64_t>(index), 1.732F, stream_);
}

std::string LayerRun::implementation() const { return steps_[0]->plan->describe(); }

bool LayerRun::rounds_inputs() const {
  return layer_.on_host_rounding && layer_.layer->rounds_fp8_inputs(shape_.requests * shape_.tokens);
}

std::vector<std::function<void()>> LayerRun::calls() {
  std::vector<std::function<void()>> out;
  for (const std::unique_ptr<Step>& made : steps_) {
    out.emplace_back([this, step = made.get()] { forward(*step, nullptr); });
  }
  return out;
}

void LayerRun::forward(const Step& step, LayerObserver* observer) {
  layer_.layer->forward(*step.plan, step.metadata->layer(0), caches_, std::as_const(step.hidden).view(), output_.view(),
                        {.data = workspace_.data(), .bytes = workspace_.bytes()}, stream_, observer);
}

Row measure_layer(const Options& options, const LayerOnGpu& layer, const LayerShape& shape, const DeviceTimer& timer) {
  Row row;
  row.group = "layer";
  row.name = fmt::format("{} {}", kind_name(layer.config.compress_ratio), shape.prefill ? "prefill" : "decode");
  row.shape = shape.prefill ? fmt::format("tokens {}, ", shape.tokens)
                            : fmt::format("requests {}, context {}, ", shape.requests, shape.length);
  if (!shape.prefill && shape.tokens > 1) row.shape += fmt::format("next_n {}, ", shape.tokens);
  row.shape += fmt::format("{} heads {} groups {}, {}, {}{}", options.model.name, layer.config.num_heads,
                           layer.config.o_groups, options.rows->name, options.index_rows->name, weights_text(options));
  row.bf16 = true;
  add_layer_floor(layer.config, options, layer.views, shape.requests, shape.length - shape.tokens, shape.tokens, row);
  // Products with FP8 weights have twice the rate of bf16 ones.
  const double fp8 = static_cast<double>(shape.requests * shape.tokens) * fp8_flops(layer.config, layer.views);
  row.product_rate = row.flops / (row.flops - fp8 / 2);
  if (fitting_sets(
          1, [&](std::int64_t) { return LayerRun::bytes_of(options, layer.config, shape); }, row) == 0)
    return row;
  LayerRun run(options, layer, shape, timer);
  row.implementation = run.implementation();
  const std::vector<std::function<void()>> calls = run.calls();
  const std::vector<GpuRecording> recordings = timer.record(calls);
  row.time = timer.time(options.measure, recordings);
  const GpuNodes nodes = gpu_count_nodes(timer.stream(), calls[0]);
  const DeviceTimer::Replay replay = timer.measure_replay(calls[0]);
  row.stages = {{"kernels", nodes.kernels}, {"library_kernels", nodes.library}, {"memsets", nodes.memsets},
                {"copies", nodes.copies},   {"launch_us", replay.launch * 1e6}, {"warm_us", replay.warm * 1e6}};
  row.check = run.check([&] { timer.replay(recordings.back()); });
  return row;
}

void bench_device_layer(const Options& options, const Emit& emit) {
  const auto or_grid = [](const std::vector<std::int64_t>& given, std::span<const std::int64_t> grid) {
    return given.empty() ? std::vector<std::int64_t>(grid.begin(), grid.end()) : given;
  };
  const std::vector<std::int64_t> contexts = or_grid(options.contexts, kContexts);
  const std::vector<std::int64_t> prompts = or_grid(options.prefills, kPrompts);
  const bool decode = options.decode && wanted(options.grids, std::string("decode"));
  const bool prefill = options.prefill && wanted(options.grids, std::string("prefill"));
  const DeviceTimer timer;
  for (const std::int64_t heads : or_grid(options.head_counts, std::array<std::int64_t, 1>{0})) {
    for (const int ratio : options.ratios) {
      const std::int64_t longest = std::max(*std::ranges::max_element(contexts), *std::ranges::max_element(prompts));
      const LayerOnGpu layer(options, slice_of_layer(options, ratio, heads), longest);
      for (std::size_t c = 0; decode && c < contexts.size(); ++c) {
        if (ratio == 1 && c > 0) continue;  // a window is a window
        for (const std::int64_t next_n : options.next_n) {
          for (const std::int64_t batch : or_grid(options.batches, kBatches)) {
            emit(measure_layer(options, layer, {.requests = batch, .tokens = next_n, .length = contexts[c]}, timer));
          }
        }
      }
      for (const std::int64_t length : prefill ? prompts : std::vector<std::int64_t>{}) {
        emit(
            measure_layer(options, layer, {.requests = 1, .tokens = length, .length = length, .prefill = true}, timer));
      }
    }
  }
}

}  // namespace smla::bench
