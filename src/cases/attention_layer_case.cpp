#include <algorithm>
#include <numeric>

#include "cases/replay.h"
#include "core/check.h"
#include "device/capability.h"
#include "device/device_tensor.h"
#include "layer/placed_layer.h"
#include "model/weight_table.h"
#include "sparsemla/layer.h"
#include "sparsemla/ops/compressor.h"

namespace smla {

namespace {

LayerConfig read_config(const CaseParams& p) {
  constexpr std::int64_t kMaxSize = std::int64_t{1} << 24;
  LayerConfig c;
  c.hidden_size = p.integer("hidden_size", 1, kMaxSize);
  c.num_heads = p.integer("num_heads", 1, 128);
  c.head_dim = static_cast<int>(p.integer("head_dim", 512, 512, 512));
  c.rope_head_dim = static_cast<int>(p.integer("rope_head_dim", 64, 64, 64));
  c.q_lora_rank = p.integer("q_lora_rank", 1, kMaxSize);
  c.o_lora_rank = p.integer("o_lora_rank", 1, kMaxSize);
  c.o_groups = p.integer("o_groups", 1, 128);
  c.window = p.integer("window", 128, 128, 128);
  c.compress_ratio = std::max(1, static_cast<int>(p.integer("compress_ratio", 0, 1 << 20)));
  c.index_n_heads = p.integer("index_n_heads", 1, 128, 64);
  c.index_head_dim = static_cast<int>(p.integer("index_head_dim", 128, 128, 128));
  c.index_topk = p.integer("index_topk", 1, kMaxSize, 512);
  c.rms_norm_eps = static_cast<float>(p.number("rms_norm_eps", 0, 1, 1e-6));
  c.rope.theta = p.number("rope_theta", 1, 1e12);
  c.rope.dim = c.rope_head_dim;
  if (const auto yarn = p.object("yarn")) {
    c.rope.yarn = YarnConfig{.factor = yarn->number("factor", 1, 1e6),
                             .original_max_position = yarn->integer("original_max_position", 1, std::int64_t{1} << 32),
                             .beta_fast = yarn->number("beta_fast", 0, 1e6),
                             .beta_slow = yarn->number("beta_slow", 0, 1e6)};
  }
  c.hadamard = p.flag("hadamard", false);
  return c;
}

/// One way of running the case's layer.
enum class Way : std::uint8_t {
  kObserved,    ///< as the case says, its intermediates shown to an observer
  kUnobserved,  ///< as the case says; parts that an observer must see apart may be folded into one launch
  kServing      ///< unobserved in bf16 with fp8_ds_mla rows, as layers are served: on a GPU by tensor cores
};

/// On the l2 error of a float32 layer's output run as kServing: the rounding of bf16 activations and of fp8_ds_mla
/// rows, and where an indexer chooses, near ties that it decides otherwise.
constexpr double kServingBound = 0.05;
constexpr double kServingBoundChoosing = 0.10;

/// One request run chunk by chunk through one layer, every block kept.
class LayerReplay {
 public:
  LayerReplay(const CaseFile& file, const ReplayOptions& options, Way way)
      : file_(file), params_(file.reader()), config_(read_config(params_)), way_(way) {
    const std::string precision = params_.text("precision");
    check_that(precision == "f32" || precision == "bf16", params_.where(), "precision", "\"" + precision + "\"",
               "\"f32\" or \"bf16\"");
    options_.precision = precision == "f32" && way != Way::kServing ? Precision::kF32 : Precision::kBF16;
    options_.device = options.plan.device;
    options_.front_end = front_end(params_.text("front_end", "flashmla"), device_major(options_.device));
    options_.strict = params_.flag("strict", false);
    options_.gather_prefill = params_.flag("gather_prefill", false);
    read_formats();
    options_.short_context = false;  // the case may ask for the scores
    options_.deterministic = options.plan.deterministic;
    options_.threads = options.plan.threads;
    if (!options.plan.implementation.empty()) options_.implementations["*"] = options.plan.implementation;
    check_layer_config(config_);

    const HostTensor& hidden = file.tensor("in.hidden");
    check_tensor(file.path, "in.hidden", hidden.view(), {kAny, config_.hidden_size}, {DType::kBF16, DType::kF32});
    tokens_ = hidden.size(0);
    hidden_ = converted(hidden, options_.precision == Precision::kF32 ? DType::kF32 : DType::kBF16);
    steps_ = params_.integers("steps", 1, std::int64_t{1} << 24, std::size_t{1} << 20);
    const std::int64_t total = std::accumulate(steps_.begin(), steps_.end(), std::int64_t{0});
    check_that(total == tokens_, params_.where(), "sum of steps", total,
               std::to_string(tokens_) + ", the rows of in.hidden");
    read_weights();
  }

  ReplayResult run();

 private:
  static HostTensor converted(const HostTensor& from, DType to);
  void read_formats();
  void read_weights();
  HostTensor entries(const KvPool& pool, const RequestBlocks& blocks, CacheRole role, const CompressorWeights& weights,
                     int dim, const ConstTensorView& cos_sin) const;

  const CaseFile& file_;
  CaseParams params_;
  LayerConfig config_;
  Way way_;
  LayerOptions options_;
  LayerWeights weights_;
  HostTensor sink_;
  HostTensor hidden_;
  std::int64_t tokens_ = 0;
  std::vector<std::int64_t> steps_;
};

HostTensor LayerReplay::converted(const HostTensor& from, DType to) {
  if (from.dtype() == to) return from.clone();
  HostTensor out(to, from.shape());
  for (std::int64_t i = 0; i < from.numel(); ++i) {
    if (to == DType::kF32) {
      out.as<float>()[i] = to_float(from.as<BF16>()[i]);
    } else {
      out.as<BF16>()[i] = to_bf16(from.as<float>()[i]);
    }
  }
  return out;
}

void LayerReplay::read_formats() {
  if (options_.precision == Precision::kF32) return;
  options_.caches.rows = &cache_rows(options_.front_end,
                                     params_.text("cache_dtype", std::string(fp8_ds_mla_rows().name)), options_.strict);
  options_.caches.index = &index_rows(params_.text("index_dtype", "fp8"));
}

void LayerReplay::read_weights() {
  const HostTensor& sink = file_.tensor("weights.attn_sink");
  check_tensor(file_.path, "weights.attn_sink", sink.view(), {config_.num_heads}, {DType::kF32, DType::kBF16});
  sink_ = converted(sink, DType::kF32);
  for (const WeightSpec& spec : weight_table(config_)) {
    spec.view(weights_) =
        spec.kind == WeightKind::kSink ? std::as_const(sink_).view() : file_.view("weights." + spec.name);
  }
}

/// Keeps what the case compares beside the output.
class Recorder : public LayerObserver {
 public:
  Recorder(std::int64_t tokens, const LayerConfig& c, DeviceKind device)
      : topk(DType::kI32, {tokens, c.index_topk}), scores(DType::kF32, {tokens, tokens / 4}), device_(device) {}
  void on_stage(Stage, double) override {}
  void on_tensor(std::string_view name, const ConstTensorView& made, std::int64_t first_row) override {
    if (name != "topk" && name != "index_scores") return;
    ConstTensorView value = made;
    HostTensor copy(made.dtype, {made.size(0), made.stride[0]});
    if (device_ != DeviceKind::kCpu) {  // whole rows; a matrix of one row may be shorter than its stride
      const std::int64_t elements = made.size(0) == 0 ? 0 : (made.size(0) - 1) * made.stride[0] + made.size(1);
      copy_bytes(device_, copy.data(), made.data, static_cast<std::size_t>(elements * size_of(made.dtype)));
      value.data = copy.data();
    }
    for (std::int64_t r = 0; r < value.size(0); ++r) {
      const std::int64_t row = first + first_row + r;
      if (name == "topk") {
        std::copy_n(value.as<std::int32_t>() + r * value.stride[0], value.size(1),
                    topk.as<std::int32_t>() + row * topk.size(1));
      } else if (name == "index_scores") {
        std::copy_n(value.as<float>() + r * value.stride[0], std::min((row + 1) / 4, value.size(1)),
                    scores.as<float>() + row * scores.size(1));
      }
    }
  }
  std::int64_t first = 0;  ///< token of the step's first row
  HostTensor topk;
  HostTensor scores;

 private:
  DeviceKind device_;
};

/// Every entry before quantisation: pooled once more from the state rows, which are all still there, into float32 rows.
HostTensor LayerReplay::entries(const KvPool& pool, const RequestBlocks& blocks, CacheRole role,
                                const CompressorWeights& weights, int dim, const ConstTensorView& cos_sin) const {
  const int ratio = config_.compress_ratio;
  const std::int64_t count = tokens_ / ratio;
  HostTensor out(DType::kF32, {count, dim});
  if (count == 0) return out;
  HostTensor positions(DType::kI64, {count});
  HostTensor requests(DType::kI32, {count});
  HostTensor slots(DType::kI64, {count});
  for (std::int64_t g = 0; g < count; ++g) {
    positions.as<std::int64_t>()[g] = (g + 1) * ratio - 1;
    slots.as<std::int64_t>()[g] = g;
  }
  const auto table = blocks.table(pool.layout().group_of(0, role));
  PagedCache state = pool.cache(0, role);
  HostTensor rows(DType::kU8,
                  {(state.num_blocks - 1) * state.block_stride_bytes + block_bytes(*state.format, state.block_size)});
  copy_bytes(pool.device(), rows.data(), state.base, rows.bytes());
  state.base = rows.as<std::uint8_t>();
  const RowFormat& format = dim == index_f32_rows().dim ? index_f32_rows() : f32_rows();
  Plan<CompressStore>({.tokens = count,
                       .ratio = ratio,
                       .rope_dim = config_.rope_head_dim,
                       .eps = config_.rms_norm_eps,
                       .compressor = {{{.dim = dim,
                                        .format = &format,
                                        .hadamard = role == CacheRole::kIndexState && config_.hadamard}}}})
      .run({.positions = positions.view(),
            .token_to_req = requests.view(),
            .entry_slots = slots.view(),
            .cos_sin = cos_sin,
            .compressors = {{{.state_slots = slots.view(),
                              .block_table = view_of(table.data(), {1, static_cast<std::int64_t>(table.size())}),
                              .norm_weight = weights.norm,
                              .state = state,
                              .entries = {.format = &format,
                                          .base = static_cast<std::uint8_t*>(out.data()),
                                          .num_blocks = 1,
                                          .block_size = count,
                                          .block_stride_bytes = block_bytes(format, count)}}}}});
  return out;
}

ReplayResult LayerReplay::run() {
  const DeviceKind device = options_.device;
  const auto rope = std::make_shared<const RopeTable>(config_.rope, std::max<std::int64_t>(tokens_, 1), device, true);
  const PlacedLayer placed({.config = config_, .weights = weights_}, options_, rope);
  const DeviceTensor hidden = DeviceTensor::copy_of(device, hidden_.view());
  DeviceTensor made(device, hidden_.dtype(), hidden_.shape());

  const AttentionLayer& layer = placed.layer();
  const KvLayout& layout = placed.layout();
  std::int64_t need = 0;
  for (const CacheGroup& group : layout.groups) need += (tokens_ + group.block_tokens - 1) / group.block_tokens;
  KvPool pool(layout, need, device);
  RequestBlocks blocks(layout);
  StepMetadata metadata(layout, {&config_, 1}, options_.front_end, device);
  const LayerCaches caches = caches_of(pool, 0);
  DeviceTensor workspace;
  Recorder recorder(tokens_, config_, device);
  ReplayResult result;

  std::int64_t begin = 0;
  for (const std::int64_t n : steps_) {
    const std::int64_t end = begin + n;
    check_that(blocks.reserve(pool, begin, end), file_.path, "blocks of the pool", need, "enough for every token");
    const std::vector<std::int32_t> loc{0, static_cast<std::int32_t>(n)};
    const std::vector<std::int32_t> seq{static_cast<std::int32_t>(end)};
    std::vector<std::int64_t> positions(static_cast<std::size_t>(n));
    std::iota(positions.begin(), positions.end(), begin);
    std::vector<DeviceTensor> copies;
    const auto place = [&](const ConstTensorView& view) {
      copies.push_back(DeviceTensor::copy_of(device, view));
      return std::as_const(copies.back()).view();
    };
    StepBatch batch{.query_start_loc = place(view_of(loc.data(), {2})),
                    .seq_lens = place(view_of(seq.data(), {1})),
                    .positions = place(view_of(positions.data(), {n})),
                    .block_tables = {},
                    .max_seq_len = end,
                    .host_query_start_loc = loc,
                    .host_seq_lens = seq};
    for (std::size_t g = 0; g < layout.groups.size(); ++g) {
      const auto table = blocks.table(static_cast<int>(g));
      batch.block_tables.push_back(place(view_of(table.data(), {1, static_cast<std::int64_t>(table.size())})));
    }
    metadata.build(batch);
    const LayerPlan plan = layer.plan(metadata.shape(), caches);
    workspace.reshape(device, DType::kU8, {static_cast<std::int64_t>(plan.workspace_bytes())});
    fill_bytes(device, workspace.data(), 0xFF, workspace.bytes());
    recorder.first = begin;
    layer.forward(plan, metadata.layer(0), caches, hidden.view().slice(0, begin, end), made.view().slice(0, begin, end),
                  {.data = workspace.data(), .bytes = workspace.bytes()}, {},
                  way_ == Way::kObserved ? &recorder : nullptr);
    synchronize(device);
    result.implementation = plan.describe();
    begin = end;
  }
  HostTensor output(hidden_.dtype(), hidden_.shape());
  copy_bytes(device, output.data(), made.data(), output.bytes());

  const HostTensor* want = file_.find("out.output");
  result.results.emplace(
      "output", want != nullptr && want->dtype() == DType::kF32 ? converted(output, DType::kF32) : std::move(output));
  if (way_ != Way::kObserved) return result;
  if (config_.has_compressor()) {
    result.results.emplace(
        "compressed_kv", entries(pool, blocks, CacheRole::kState, weights_.compressor, config_.head_dim, rope->host()));
  }
  if (config_.has_indexer()) {
    result.results.emplace("indexer_kv", entries(pool, blocks, CacheRole::kIndexState, weights_.index_compressor,
                                                 config_.index_head_dim, rope->host()));
    result.results.emplace("topk", std::move(recorder.topk));
    result.results.emplace("index_scores", std::move(recorder.scores));
  }
  return result;
}

}  // namespace

ReplayResult replay_attention_layer(const CaseFile& file, const ReplayOptions& options) {
  file.expect_inputs({"hidden"});
  ReplayResult result = LayerReplay(file, options, Way::kObserved).run();
  const auto run_again = [&](const std::string& name, Way way, std::optional<Tolerance> bound) {
    ReplayResult again = LayerReplay(file, options, way).run();
    result.more.push_back({.name = name,
                           .expected = "output",
                           .implementation = again.implementation,
                           .made = std::move(again.results.at("output")),
                           .bound = std::move(bound)});
  };
  run_again("output, not observed", Way::kUnobserved, std::nullopt);
  if (file.reader().text("precision") == "f32") {
    const bool chooses = file.reader().integer("compress_ratio", 0, 1 << 20) == 4;
    run_again("output, bf16 with fp8_ds_mla rows, not observed", Way::kServing,
              Tolerance{.abs = {},
                        .rel = {},
                        .abs_of_largest = {},
                        .l2 = chooses ? kServingBoundChoosing : kServingBound,
                        .cos = {},
                        .ulp = {},
                        .rows = {}});
  }
  return result;
}

}  // namespace smla
