#include "sparsemla/layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "bench/inputs.h"
#include "bench/quantised_weights.h"
#include "engine/synthetic.h"
#include "layer/grouped_views.h"
#include "sparsemla/plan.h"
#include "sparsemla/step_metadata.h"

// One attention layer with random weights, hidden states in, hidden states out, as an engine drives it: plan and step
// metadata are made once a step for all layers, so they are not part of a layer's time.

namespace smla::bench {

namespace {

constexpr std::int64_t kInputs = 4;  // hidden states, taken in turn

/// Adds up the stages of the measured calls.
class StageTimes final : public LayerObserver {
 public:
  void on_stage(Stage stage, double seconds) override { seconds_[static_cast<std::size_t>(stage)] += seconds; }
  void on_tensor(std::string_view, const ConstTensorView&, std::int64_t) override {}
  void clear() { seconds_.fill(0); }
  std::vector<std::pair<std::string, double>> shares() const {
    double all = 0;
    for (const double s : seconds_) all += s;
    std::vector<std::pair<std::string, double>> out;
    for (int i = 0; i < kNumStages; ++i) {
      if (seconds_[static_cast<std::size_t>(i)] > 0)
        out.emplace_back(name_of(static_cast<Stage>(i)), seconds_[static_cast<std::size_t>(i)] / all);
    }
    return out;
  }

 private:
  std::array<double, kNumStages> seconds_{};
};

/// One layer, its caches, and requests of up to `length` tokens in them; every row of the caches is valid and random.
struct LayerFixture {
  LayerFixture(const Options& options, int ratio, std::int64_t requests, std::int64_t length);

  /// Requests that each have `before` tokens behind them and bring `tokens` more.
  StepMetadata step(std::int64_t before, std::int64_t tokens, std::int64_t max_seq_len) const;

  LayerConfig config;
  OwnedLayerWeights weights;
  std::vector<float> rope;
  std::unique_ptr<KvPool> pool;
  std::vector<RequestBlocks> blocks;
  std::vector<HostTensor> tables;  ///< [requests, columns] I32, one a cache group
  std::unique_ptr<AttentionLayer> layer;
  LayerCaches caches;
};

LayerOptions layer_options(const Options& options) {
  LayerOptions out;
  out.caches = {.rows = options.rows, .index = options.index_rows};
  if (options.rows->scale == ScaleKind::kPerTensor) {  // and so E4M3 queries
    out.caches.kv_scale = 1.0F / 256;
    out.q_scale = 1.0F / 64;
  }
  out.threads = options.threads;
  out.implementations = options.implementations;
  return out;
}

LayerFixture::LayerFixture(const Options& options, int ratio, std::int64_t requests, std::int64_t length)
    : config(layer_of_ratio(options, ratio)) {
  weights = random_weights(config, 1);
  quantise(options, config, weights);
  rope = rope_table(config.rope, length);
  const KvLayout layout = make_kv_layout(std::span(&config, 1), layer_options(options).caches);
  std::int64_t wanted = 0;
  for (const CacheGroup& group : layout.groups) wanted += (length + group.block_tokens - 1) / group.block_tokens;
  pool = std::make_unique<KvPool>(layout, requests * wanted);
  for (std::int64_t r = 0; r < requests; ++r) {
    blocks.emplace_back(layout);
    blocks.back().reserve(*pool, 0, length);
  }
  for (std::size_t g = 0; g < layout.groups.size(); ++g) {
    const std::size_t columns = blocks[0].table(static_cast<int>(g)).size();
    tables.emplace_back(DType::kI32, std::vector<std::int64_t>{requests, static_cast<std::int64_t>(columns)});
    for (std::size_t r = 0; r < blocks.size(); ++r)
      std::ranges::copy(blocks[r].table(static_cast<int>(g)), tables[g].as<std::int32_t>() + r * columns);
  }
  caches = caches_of(*pool, 0);
  // Caches of different groups share the slab's blocks: each fills those that its group holds.
  std::uint64_t seed = 10;
  for (std::size_t g = 0; g < layout.groups.size(); ++g) {
    for (const LayerCache& c : layout.groups[g].caches) {
      PagedCache cache = pool->cache(0, c.role);
      std::uint8_t* const base = cache.base;
      for (const RequestBlocks& owned : blocks) {
        for (const std::int32_t block : owned.table(static_cast<int>(g))) {
          cache.base = base + block * cache.block_stride_bytes;
          cache.num_blocks = 1;
          fill_cache(cache, ++seed);
        }
      }
    }
  }
  layer = std::make_unique<AttentionLayer>(config, weights.views, layer_options(options),
                                           ConstTensorView(rope.data(), DType::kF32, {length, config.rope_head_dim}));
}

StepMetadata LayerFixture::step(std::int64_t before, std::int64_t tokens, std::int64_t max_seq_len) const {
  const auto requests = static_cast<std::int64_t>(blocks.size());
  HostTensor starts(DType::kI32, {requests + 1});
  HostTensor seq_lens(DType::kI32, {requests});
  HostTensor positions(DType::kI64, {requests * tokens});
  StepBatch batch;
  batch.max_seq_len = max_seq_len;
  for (std::int64_t r = 0; r < requests; ++r) {
    starts.as<std::int32_t>()[r + 1] = static_cast<std::int32_t>((r + 1) * tokens);
    seq_lens.as<std::int32_t>()[r] = static_cast<std::int32_t>(before + tokens);
    for (std::int64_t t = 0; t < tokens; ++t) positions.as<std::int64_t>()[r * tokens + t] = before + t;
  }
  for (const HostTensor& table : tables) batch.block_tables.push_back(table.view());
  batch.query_start_loc = starts.view();
  batch.seq_lens = seq_lens.view();
  batch.positions = positions.view();
  StepMetadata metadata(pool->layout(), std::span(&config, 1));
  metadata.build(batch);
  return metadata;
}

HostTensor hidden_states(const LayerConfig& config, std::int64_t tokens, std::uint64_t stream) {
  HostTensor x(DType::kBF16, {tokens, config.hidden_size});
  for (std::int64_t t = 0; t < tokens; ++t) synthetic_hidden(3, stream, 0, t, x.view().slice(0, t, t + 1));
  return x;
}

/// Multiply-adds of a token's linear maps = numbers in the weights, or their bytes, scales included; with the indexer's
/// own only where it scores.
double linear_weights(const LayerWeights& w, bool scores, bool bytes = false) {
  double n = 0;
  const auto bytes_of = [](const ConstTensorView& t) {
    return t.absent() ? 0.0 : static_cast<double>(t.numel() * size_of(t.dtype));
  };
  const auto add = [&](const LinearWeight& weight) {
    if (weight.w.absent()) return;
    const std::int64_t numbers = weight.w.numel() * (weight.w.dtype == Projection::kNvfp4 ? 2 : 1);
    n += bytes ? bytes_of(weight.w) + bytes_of(weight.scale) : static_cast<double>(numbers);
  };
  add(linear_wq_a(w)), add(linear_wq_b(w)), add(linear_wkv(w)), add(linear_wo_a(w)), add(linear_wo_b(w));
  for (const CompressorWeights* compressor : {&w.compressor, &w.index_compressor})
    add(linear_wkv(*compressor)), add(linear_wgate(*compressor));
  if (scores) add(linear_index_wq_b(w)), add(linear_index_weights_proj(w));
  return n;
}

}  // namespace

void add_layer_floor(const LayerConfig& c, const Options& options, const LayerWeights& weights, std::int64_t requests,
                     std::int64_t before, std::int64_t tokens, Row& row) {
  const bool scores = c.has_indexer() && visible_entries(before + tokens - 1, c.compress_ratio) > c.index_topk;
  const double linear = linear_weights(weights, scores);
  row.bytes += linear_weights(weights, scores, true);
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::int64_t position = before + t;
    const std::int64_t entries = c.has_compressor() ? visible_entries(position, c.compress_ratio) : 0;
    const std::int64_t keys =
        std::min(c.window, position + 1) + (c.has_indexer() ? std::min(entries, c.index_topk) : entries);
    const double scored = scores ? static_cast<double>(entries * c.index_n_heads * c.index_head_dim) : 0.0;
    row.flops += static_cast<double>(requests) *
                 (2 * linear + 4.0 * static_cast<double>(keys * c.num_heads * c.head_dim) + 2 * scored);
    // Tokens of one prompt share what they read, about; a decode reads its own.
    if (t + 1 == tokens) {
      row.bytes += static_cast<double>(requests) * static_cast<double>(keys * options.rows->row_bytes());
      if (scores)
        row.bytes += static_cast<double>(requests) * static_cast<double>(entries * options.index_rows->row_bytes());
    }
  }
  row.bytes += static_cast<double>(requests * tokens * c.hidden_size) * 4;
}

namespace {

/// A planned step and what it runs on.
struct PlannedStep {
  StepMetadata metadata;
  LayerPlan plan;
  std::int64_t tokens = 0;
};

PlannedStep planned_step(const LayerFixture& fixture, std::int64_t before, std::int64_t tokens,
                         std::int64_t max_seq_len) {
  StepMetadata metadata = fixture.step(before, tokens, max_seq_len);
  LayerPlan plan = fixture.layer->plan(metadata.shape(), fixture.caches);
  const std::int64_t rows = metadata.shape().tokens;
  return {.metadata = std::move(metadata), .plan = std::move(plan), .tokens = rows};
}

/// Runs `steps` one after the other as one measured call. With `beside`, one of them a call, in turn, and memory is
/// read between them.
Timing measure_steps(const Options& options, const LayerFixture& fixture, const std::vector<PlannedStep>& steps,
                     MemoryReader* beside, StageTimes& stages) {
  std::int64_t most = 0;
  std::size_t scratch_bytes = 0;
  for (const PlannedStep& s : steps) {
    most = std::max(most, s.tokens);
    scratch_bytes = std::max(scratch_bytes, s.plan.workspace_bytes());
  }
  Scratch scratch(scratch_bytes);
  std::vector<HostTensor> inputs;
  for (std::int64_t i = 0; i < kInputs; ++i)
    inputs.push_back(hidden_states(fixture.config, most, static_cast<std::uint64_t>(i)));
  HostTensor output(DType::kBF16, {most, fixture.config.hidden_size});
  const auto run = [&](const PlannedStep& s, std::int64_t input) {
    fixture.layer->forward(s.plan, s.metadata.layer(0), fixture.caches,
                           inputs[static_cast<std::size_t>(input % kInputs)].view().slice(0, 0, s.tokens),
                           output.view().slice(0, 0, s.tokens), scratch.get(), {}, &stages);
  };
  const auto count = static_cast<std::int64_t>(steps.size());
  bool first = true;
  const auto call_of = [&](std::int64_t call) {
    if (!std::exchange(first, false) && call == 1) stages.clear();  // the first call touches pages and makes primitives
    if (beside != nullptr) return run(steps[static_cast<std::size_t>(call % count)], call);
    for (std::int64_t i = 0; i < count; ++i) run(steps[static_cast<std::size_t>(i)], call + i);
  };
  return measure(options.measure, call_of, beside);
}

Row measure_decode(const Options& options, int ratio, std::int64_t requests, std::int64_t context,
                   MemoryReader& reader) {
  // Four positions in turn: a C4A layer closes a group every fourth token.
  constexpr std::int64_t kPositions = 4;
  const LayerFixture fixture(options, ratio, requests, context + kPositions);
  Row row{.group = "layer",
          .name = fmt::format("{} decode", kind_name(ratio)),
          .shape = fmt::format("requests {}, context {}, heads {}, {}{}", requests, context, fixture.config.num_heads,
                               options.rows->name, weights_text(options)),
          .implementation = "",
          .time = {},
          .flops = 0,
          .bytes = 0,
          .bf16 = true,
          .stages = {}};
  std::vector<PlannedStep> steps;
  for (std::int64_t i = 0; i < kPositions; ++i) {
    steps.push_back(planned_step(fixture, context + i, 1, context + kPositions));
  }
  add_layer_floor(fixture.config, options, fixture.weights.views, requests, context, 1, row);
  StageTimes stages;
  row.time = measure_steps(options, fixture, steps, &reader, stages);
  row.stages = stages.shares();
  row.implementation = steps[0].plan.describe();
  return row;
}

Row measure_prefill(const Options& options, int ratio, std::int64_t length) {
  const LayerFixture fixture(options, ratio, 1, length);
  Row row{.group = "layer",
          .name = fmt::format("{} prefill", kind_name(ratio)),
          .shape = fmt::format("tokens {} in steps of {}, heads {}, {}{}", length, std::min(length, options.chunk),
                               fixture.config.num_heads, options.rows->name, weights_text(options)),
          .implementation = "",
          .time = {},
          .flops = 0,
          .bytes = 0,
          .bf16 = true,
          .stages = {}};
  std::vector<PlannedStep> steps;
  for (std::int64_t before = 0; before < length; before += options.chunk) {
    const std::int64_t tokens = std::min(options.chunk, length - before);
    steps.push_back(planned_step(fixture, before, tokens, before + tokens));
    add_layer_floor(fixture.config, options, fixture.weights.views, 1, before, tokens, row);
  }
  StageTimes stages;
  row.time = measure_steps(options, fixture, steps, nullptr, stages);
  row.stages = stages.shares();
  row.implementation = steps[0].plan.describe();
  return row;
}

}  // namespace

void bench_layer(const Options& options, const Emit& emit) {
  MemoryReader reader(options.threads);
  for (const int ratio : options.ratios) {
    for (const std::int64_t context : options.decode ? options.contexts : std::vector<std::int64_t>{}) {
      for (const std::int64_t requests : options.batches)
        emit(measure_decode(options, ratio, requests, context, reader));
    }
    for (const std::int64_t length : options.prefill ? options.prefills : std::vector<std::int64_t>{})
      emit(measure_prefill(options, ratio, length));
  }
}

}  // namespace smla::bench
