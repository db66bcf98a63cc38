// A stack of layers under test, a layer at a time: its caches are filled with the context, then the measured tokens run
// through it once with float64's choice of entries and once with its own.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <utility>

#include "bench/accuracy_stack.h"
#include "checkpoint/writer.h"
#include "device/device_tensor.h"
#include "model/weight_table.h"
#include "sparsemla/checkpoint.h"
#include "sparsemla/error.h"
#include "sparsemla/step_metadata.h"

namespace smla::bench {

namespace {

constexpr std::int64_t kFillTokens = 512;  // of a step that fills caches
constexpr std::int64_t kStepTokens = 64;   // of a measured step

/// |got - want| / |want|.
double relative_l2(const std::vector<Numbers>& got, const std::vector<Numbers>& want) {
  double error = 0;
  double norm = 0;
  for (std::size_t t = 0; t < want.size(); ++t) {
    for (std::size_t i = 0; i < want[t].size(); ++i) {
      error += (got[t][i] - want[t][i]) * (got[t][i] - want[t][i]);
      norm += want[t][i] * want[t][i];
    }
  }
  return std::sqrt(error / norm);
}

/// A folder that goes with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "smla_accuracy_XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw IoError("bench accuracy: " + pattern + " could not be made");
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Layer `index` as a checkpoint with that encoding gives it: compressors and weights_proj stay BF16, as in the public
/// ones.
LayerSource stored_layer(const AccuracyModel& model, std::int64_t index, const AccuracyCase& c) {
  const LayerConfig config = model.config().layer(index);
  if (c.weights == LinearEncoding::kPlain) return {.config = config, .weights = model.weights(index)};
  const TemporaryFolder folder;
  CheckpointWriter writer;
  const auto each = [&](bool plan) {
    LayerWeights weights = model.weights(index);
    const std::string prefix = "layers." + std::to_string(index) + ".attn.";
    visit_weights(config, weights, [&](std::string_view name, ConstTensorView& t) {
      const std::string full = prefix + std::string(name);
      if (t.rank == 2 && name.ends_with(".weight")) {
        const std::string stem = full.substr(0, full.rfind('.'));
        const bool apart = stem.find("compressor.") != std::string::npos || stem.ends_with("weights_proj");
        const LinearEncoding encoding = apart ? LinearEncoding::kPlain : c.weights;
        return plan ? writer.plan_linear(stem, t.size(0), t.size(1), encoding) : writer.add_linear(stem, t, encoding);
      }
      plan ? writer.plan(full, t.dtype, {t.shape.begin(), t.shape.begin() + t.rank}) : writer.add(full, t);
    });
  };
  each(true);
  writer.begin(folder.path(), 1);
  each(false);
  writer.finish(model.config());
  return LayerSource::of(Checkpoint(folder.path()).load_layer(index, config, 0, 1, {.keep_fp8 = c.keep_fp8}));
}

/// A layer with one head of each kind that writes the same rows: for tokens whose output nobody reads.
class NarrowLayer {
 public:
  NarrowLayer(const LayerSource& whole, LayerOptions options, const std::shared_ptr<const RopeTable>& rope) {
    LayerConfig c = whole.config;
    c.num_heads = c.o_groups = c.index_n_heads = 1;
    c.o_lora_rank = 16;
    c.index_topk = std::min<std::int64_t>(c.index_topk, 16);
    LayerWeights w = whole.weights;
    w.wq_b = w.wq_b.slice(0, 0, c.head_dim);
    w.attn_sink = w.attn_sink.slice(0, 0, 1);
    wo_a_ = HostTensor(DType::kBF16, {c.o_lora_rank, c.head_dim});
    wo_b_ = HostTensor(DType::kBF16, {c.hidden_size, c.o_lora_rank});
    w.wo_a = std::as_const(wo_a_).view();
    w.wo_b = std::as_const(wo_b_).view();
    w.wo_a_scale = w.wo_b_scale = {};
    if (c.has_indexer()) {
      w.index_wq_b = w.index_wq_b.slice(0, 0, c.index_head_dim);
      w.index_weights_proj = w.index_weights_proj.slice(0, 0, 1);
    }
    if (w.wq_b.dtype == DType::kE4M3) {
      const auto blocks = [](std::int64_t rows) { return (rows + kFp8Block - 1) / kFp8Block; };
      w.wq_b_scale = w.wq_b_scale.slice(0, 0, blocks(c.head_dim));
      if (c.has_indexer()) w.index_wq_b_scale = w.index_wq_b_scale.slice(0, 0, blocks(c.index_head_dim));
    }
    options.fp8_output.reset();
    layer_.emplace(LayerSource{.config = c,
                               .weights = w,
                               .q_scale = whole.q_scale,
                               .kv_scale = whole.kv_scale,
                               .compressed_kv_scale = whole.compressed_kv_scale},
                   options, rope);
  }
  const PlacedLayer& get() const { return *layer_; }

 private:
  HostTensor wo_a_;
  HostTensor wo_b_;
  std::optional<PlacedLayer> layer_;
};

/// The caches of one request in one layer.
class RequestCaches {
 public:
  RequestCaches(const PlacedLayer& layer, std::int64_t tokens, std::int64_t kept, DeviceKind device)
      : pool_(layer.layout(), blocks_of(layer.layout(), tokens, kept), device), blocks_(layer.layout()) {
    for (const CacheRole role : {CacheRole::kWindow, CacheRole::kCompressed}) {
      if (layer.layout().find(0, role) != nullptr) pool_.set_scale(0, role, layer.scale_of(role));
    }
  }
  void reserve(std::int64_t begin, std::int64_t end) {
    if (!blocks_.reserve(pool_, begin, end)) throw Error("bench accuracy: the pool is too small");
  }
  void slide(std::int64_t next) { blocks_.slide(pool_, next); }
  LayerCaches caches() const { return caches_of(pool_, 0); }
  const KvLayout& layout() const { return pool_.layout(); }
  std::vector<HostTensor> tables() const {
    std::vector<HostTensor> out;
    for (int g = 0; g < blocks_.num_groups(); ++g) {
      const auto table = blocks_.table(g);
      out.emplace_back(DType::kI32, std::vector<std::int64_t>{1, std::ssize(table)});
      std::ranges::copy(table, out.back().as<std::int32_t>());
    }
    return out;
  }

 private:
  static std::int64_t blocks_of(const KvLayout& layout, std::int64_t tokens, std::int64_t kept) {
    std::int64_t count = 0;
    for (const CacheGroup& group : layout.groups) count += max_blocks(group, tokens, kept);
    return count;
  }
  KvPool pool_;
  RequestBlocks blocks_;
};

/// One layer at work on one request.
class LayerRun {
 public:
  LayerRun(const PlacedLayer& layer, RequestCaches& caches)
      : layer_(layer),
        caches_(caches),
        metadata_(caches.layout(), {&layer.config(), 1}, layer.options().front_end, layer.options().device) {}

  DType activations() const { return layer_.options().precision == Precision::kF32 ? DType::kF32 : DType::kBF16; }

  /// Positions [begin, begin + rows of h) in one step. `topk`: the entries to take, for layers that reuse a choice; for
  /// others written. Absent: not wanted.
  HostTensor step(std::int64_t begin, const HostTensor& h, HostTensor* topk) {
    const DeviceKind device = layer_.options().device;
    const std::int64_t tokens = h.size(0);
    caches_.reserve(begin, begin + tokens);
    HostTensor starts(DType::kI32, {2});
    HostTensor lens(DType::kI32, {1});
    HostTensor positions(DType::kI64, {tokens});
    starts.as<std::int32_t>()[1] = static_cast<std::int32_t>(tokens);
    lens.as<std::int32_t>()[0] = static_cast<std::int32_t>(begin + tokens);
    for (std::int64_t t = 0; t < tokens; ++t) positions.as<std::int64_t>()[t] = begin + t;
    const std::vector<HostTensor> tables = caches_.tables();
    std::vector<DeviceTensor> placed;
    const auto place = [&](const HostTensor& t) {
      placed.push_back(DeviceTensor::copy_of(device, t.view()));
      return std::as_const(placed.back()).view();
    };
    placed.reserve(tables.size() + 4);
    StepBatch batch;
    batch.query_start_loc = place(starts);
    batch.seq_lens = place(lens);
    batch.positions = place(positions);
    for (const HostTensor& table : tables) batch.block_tables.push_back(place(table));
    batch.max_seq_len = begin + tokens;
    batch.decode_threshold = kStepTokens;
    batch.host_query_start_loc = {starts.as<std::int32_t>(), 2};
    batch.host_seq_lens = {lens.as<std::int32_t>(), 1};
    metadata_.build(batch);
    const LayerStep step = metadata_.layer(0);
    const bool reuses = layer_.config().reuses_topk;
    if (topk != nullptr && reuses) copy_bytes(device, step.topk.data, topk->data(), topk->bytes());
    const LayerPlan plan = layer_.layer().plan(metadata_.shape(), caches_.caches());
    describe_ = plan.describe();
    if (workspace_.bytes() < plan.workspace_bytes())
      workspace_.reshape(device, DType::kU8, {static_cast<std::int64_t>(plan.workspace_bytes())});
    DeviceTensor output(device, h.dtype(), {tokens, layer_.config().hidden_size});
    layer_.layer().forward(plan, step, caches_.caches(), place(h), output.view(),
                           {.data = workspace_.data(), .bytes = workspace_.bytes()});
    HostTensor y(h.dtype(), h.shape());
    copy_bytes(device, y.data(), output.data(), y.bytes());
    if (topk != nullptr && !reuses) copy_bytes(device, topk->data(), step.topk.data, topk->bytes());
    synchronize(device);
    return y;
  }
  const std::string& describe() const { return describe_; }

 private:
  const PlacedLayer& layer_;
  RequestCaches& caches_;
  StepMetadata metadata_;
  DeviceTensor workspace_;
  std::string describe_;
};

HostTensor rows_as(DType dtype, std::span<const Numbers> rows) {
  const auto width = static_cast<std::int64_t>(rows[0].size());
  HostTensor out(dtype, {std::ssize(rows), width});
  std::int64_t i = 0;
  for (const Numbers& row : rows) {
    for (const double v : row) {
      if (dtype == DType::kBF16) {
        out.as<BF16>()[i++] = bf16_of(v);
      } else {
        out.as<float>()[i++] = static_cast<float>(v);
      }
    }
  }
  return out;
}

/// The measured tokens through one layer: attention(RMSNorm(x)).
std::vector<Numbers> run_measured(LayerRun& run, const AccuracyModel& model, std::span<const Numbers> x,
                                  HostTensor& topk) {
  std::vector<Numbers> out;
  const std::int64_t k = topk.size(1);
  for (std::int64_t t = 0; t < model.measured(); t += kStepTokens) {
    const std::int64_t tokens = std::min(kStepTokens, model.measured() - t);
    std::vector<Numbers> h;
    for (std::int64_t i = t; i < t + tokens; ++i) h.push_back(normed(x[static_cast<std::size_t>(i)]));
    HostTensor chosen(DType::kI32, {tokens, k});
    std::int32_t* rows = topk.as<std::int32_t>() + t * k;
    std::copy_n(rows, tokens * k, chosen.as<std::int32_t>());
    const HostTensor y = run.step(model.first() + t, rows_as(run.activations(), h), k > 0 ? &chosen : nullptr);
    std::copy_n(chosen.as<std::int32_t>(), tokens * k, rows);
    for (std::int64_t i = 0; i < tokens; ++i) {
      Numbers& row = out.emplace_back();
      for (std::int64_t j = i * y.size(1); j < (i + 1) * y.size(1); ++j)
        row.push_back(y.dtype() == DType::kBF16 ? static_cast<double>(to_float(y.as<BF16>()[j]))
                                                : static_cast<double>(y.as<float>()[j]));
    }
  }
  return out;
}

void add_normed(std::vector<Numbers>& x, const std::vector<Numbers>& outputs) {
  for (std::size_t t = 0; t < x.size(); ++t) {
    const Numbers y = normed(outputs[t]);
    for (std::size_t i = 0; i < y.size(); ++i) x[t][i] += y[i];
  }
}

/// Fills the caches with positions [begin, end) of the context.
void fill_caches(const AccuracyModel& model, std::int64_t layer, const PlacedLayer& narrow, RequestCaches& caches,
                 std::int64_t begin, std::int64_t end) {
  LayerRun run(narrow, caches);
  for (std::int64_t p = begin; p < end; p += kFillTokens) {
    const std::int64_t tokens = std::min(kFillTokens, end - p);
    HostTensor h(run.activations(), {tokens, model.config().hidden_size});
    for (std::int64_t t = 0; t < tokens; ++t) model.drawn(layer, p + t, h.view().slice(0, t, t + 1));
    run.step(p, h, nullptr);
    caches.slide(p + tokens);
  }
}

/// Entries that `got` has beside those of `want`, and queries with one.
struct Differences {
  std::int64_t chosen = 0;
  std::int64_t entries = 0;
  std::int64_t rows = 0;
  std::int64_t queries = 0;

  void add(const HostTensor& got, const HostTensor& want) {
    const std::int64_t k = want.size(1);
    for (std::int64_t t = 0; t < want.size(0); ++t) {
      const std::int32_t* row = want.as<std::int32_t>() + t * k;
      const std::set<std::int32_t> expected(row, row + k);
      std::int64_t others = 0;
      for (std::int64_t i = t * k; i < (t + 1) * k; ++i) {
        const std::int32_t entry = got.as<std::int32_t>()[i];
        if (entry < 0) continue;
        ++chosen;
        others += expected.contains(entry) ? 0 : 1;
      }
      entries += others;
      ++rows;
      queries += others > 0 ? 1 : 0;
    }
  }
};

double share(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

std::size_t kind_of(const LayerConfig& config) { return config.has_indexer() ? 1 : (config.has_compressor() ? 2 : 0); }

}  // namespace

AccuracyRow measure_case(const AccuracyModel& model, const AccuracyTruth& truth, const AccuracyCase& c) {
  AccuracyRow row{.group = c.group, .name = c.name, .context = model.context()};
  std::vector<Numbers> given = model.embeddings();
  std::vector<Numbers> own = given;
  std::array<int, 3> layers{};
  Differences differences;
  for (std::int64_t i = 0; i < model.layers(); ++i) {
    LayerSource source = stored_layer(model, i, c);
    source.config.hadamard = c.hadamard;
    const auto rope = std::make_shared<const RopeTable>(source.config.rope, model.context(), c.options.device);
    const PlacedLayer layer(source, c.options, rope);
    LayerSource told = source;
    told.config.reuses_topk = source.config.has_indexer();
    const PlacedLayer follower(told, c.options, rope);
    RequestCaches caches(layer, model.context(), std::max(model.measured(), kFillTokens), c.options.device);
    // Entries come from the compressors' weights, which are never FP8: only the window needs the weights as they are
    // stored, whose products are slow on a CPU.
    const std::int64_t window = std::max<std::int64_t>(model.first() - source.config.window, 0);
    AccuracyCase dequantised = c;
    dequantised.keep_fp8 = false;
    fill_caches(model, i, NarrowLayer(c.keep_fp8 ? stored_layer(model, i, dequantised) : source, c.options, rope).get(),
                caches, 0, window);
    fill_caches(model, i, NarrowLayer(source, c.options, rope).get(), caches, window, model.first());

    const auto l = static_cast<std::size_t>(i);
    HostTensor topk = truth.topk[l].clone();
    LayerRun first(follower, caches);
    const std::vector<Numbers> with_given = run_measured(first, model, given, topk);
    row.kinds[kind_of(source.config)] += relative_l2(with_given, truth.outputs[l]);
    ++layers[kind_of(source.config)];
    add_normed(given, with_given);
    LayerRun second(layer, caches);
    add_normed(own, run_measured(second, model, own, topk));
    if (source.config.has_indexer()) differences.add(topk, truth.topk[l]);
    if (i + 1 >= 3 && source.config.has_indexer()) row.implementations = second.describe();
  }
  for (std::size_t k = 0; k < layers.size(); ++k) row.kinds[k] /= std::max(layers[k], 1);
  row.stack = relative_l2(given, truth.end);
  row.own_stack = relative_l2(own, truth.end);
  row.entries = share(differences.entries, differences.chosen);
  row.queries = share(differences.queries, differences.rows);
  const std::vector<std::int64_t> greedy = model.greedy(own);
  std::int64_t agreed = 0;
  for (std::size_t t = 0; t < own.size(); ++t) agreed += greedy[t] == truth.greedy[t] ? 1 : 0;
  row.agreement = share(agreed, std::ssize(own));
  return row;
}

}  // namespace smla::bench
