#include "sparsemla/run_check.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "core/host_tensor.h"
#include "engine/prompt.h"
#include "engine/synthetic.h"
#include "engine/topk_judge.h"
#include "layer/layer_plan.h"
#include "layer/reference_layer.h"
#include "sparsemla/weights.h"

namespace smla {

namespace {

bool is_fp8(const ConstTensorView& w) { return !w.absent() && w.dtype == DType::kE4M3; }

/// Whether some projection's input is rounded to FP8 because its weights are.
bool has_fp8_inputs(const LayerOptions& options, const LayerWeights& w) {
  if (!may_round_fp8_inputs(options)) return false;
  return is_fp8(w.wq_a) || is_fp8(w.wkv) || is_fp8(w.wq_b) || is_fp8(w.index_wq_b) || is_fp8(w.wo_b);
}

double value_at(const ConstTensorView& v, std::int64_t i) {
  return v.dtype == DType::kBF16 ? static_cast<double>(to_float(v.as<BF16>()[i]))
                                 : static_cast<double>(v.as<float>()[i]);
}

/// Sums up the samples.
void judge(CheckReport& report) {
  // A NaN is the worst of all.
  const auto badness = [](double e) { return std::isnan(e) ? std::numeric_limits<double>::infinity() : e; };
  bool passed = true;
  for (std::size_t i = 0; i < report.samples.size(); ++i) {
    const CheckedSample& sample = report.samples[i];
    if (!sample.computed) continue;
    ++report.computed;
    report.bound = std::max(report.bound, sample.bound);
    passed = passed && sample.relative_l2 <= sample.bound && sample.topk_ok;
    if (report.worst < 0 ||
        badness(sample.relative_l2) > badness(report.samples[static_cast<std::size_t>(report.worst)].relative_l2))
      report.worst = static_cast<int>(i);
  }
  report.passed = passed && report.computed > 0;
}

}  // namespace

// A sum that differs in its last place turns over the code of a number that lies between two codes. A step of bf16 is
// small; one of FP8 is 1/16 to 1/8 of the number, and the product that comes next spreads it over all its results. So
// each place that rounds results of an earlier sum to FP8 doubles the bound.
double check_bound(const LayerOptions& options, const LayerWeights& weights) {
  const bool inputs = has_fp8_inputs(options, weights);
  const bool output = options.fp8_output || (may_round_fp8_inputs(options) && is_fp8(weights.wo_a));
  if (options.precision == Precision::kF32 && !inputs && !output) return 1e-4;
  double bound = 0.01;
  if (options.q == DType::kE4M3) bound *= 2;
  if (output) bound *= 2;
  if (inputs) bound *= options.device == DeviceKind::kCuda ? 4 : 2;  // tensor cores keep 13 bits of FP8 sums
  return bound;
}

struct RunCheck::State {
  EngineOptions options;
  std::vector<CheckedSample> samples;
  std::int64_t longest = 0;  ///< positions that the samples need
  std::map<std::pair<std::int64_t, std::int64_t>, HostTensor>
      inputs;  ///< (request, layer) -> [positions up to the last sample, hidden]
  /// By request: the sampled ones that begin with the same tokens, and with how many. Where the prefix cache lends
  /// rows, only their first owner's inputs are ever seen.
  std::map<std::int64_t, std::vector<std::pair<std::int64_t, std::int64_t>>> sharers;
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<char>> seen;  ///< the rows of `inputs` that are there
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<char>> fp8_inputs;  ///< by row, StepRow::fp8_inputs
  std::vector<HostTensor> outputs;                                                ///< a row a sample
  std::vector<HostTensor> blocks;          ///< for samples of layers that draft: the block's inputs, absent for others
  std::vector<std::int64_t> block_begins;  ///< likewise: the block's first position
  std::vector<char> block_fp8_inputs;      ///< likewise: StepRow::fp8_inputs of its rows
  std::vector<std::vector<std::int32_t>> topk;  ///< a row a sample

  /// Layers that do not draft.
  std::int64_t stack() const { return std::ssize(options.layers); }
  /// Where a layer's inputs are kept: layers that draft have one context.
  std::int64_t kept_as(std::int64_t layer) const { return std::min(layer, stack()); }
  void add_sample(std::uint64_t bits, std::int64_t layer, std::span<const RequestSpec> requests);
  void find_sharers(std::span<const RequestSpec> requests);
  void keep_inputs(std::int64_t layer, std::span<const StepRow> rows, const ConstTensorView& input);
};

namespace {

/// Copies rows of a matrix to rows of another of the same width and type.
void copy_rows(const ConstTensorView& from, std::int64_t first, std::int64_t rows, HostTensor& to,
               std::int64_t to_first) {
  const std::int64_t bytes = from.size(1) * size_of(from.dtype);
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto* source =
        static_cast<const std::uint8_t*>(from.data) + (first + r) * from.stride[0] * size_of(from.dtype);
    std::copy_n(source, bytes, static_cast<std::uint8_t*>(to.data()) + (to_first + r) * bytes);
  }
}

/// The model's number of a run's layer.
std::int64_t model_layer_of(const EngineOptions& options, std::int64_t layer) {
  const std::int64_t stack = std::ssize(options.layers);
  return layer < stack ? options.layers[static_cast<std::size_t>(layer)]
                       : options.dspark_layers[static_cast<std::size_t>(layer - stack)];
}

/// Whether a request ever has a draft token: its last output token is not fed back, and one token is its own.
bool drafts(const RequestSpec& request) { return request.output_tokens >= 3; }

}  // namespace

RunCheck::RunCheck(std::span<const RequestSpec> requests, const EngineOptions& options, int samples)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.options = options;
  if (requests.empty()) return;
  const bool any_drafts = std::ranges::any_of(requests, drafts);
  const std::int64_t layers = s.stack() + (any_drafts ? std::ssize(options.dspark_layers) : 0);
  for (int i = 0; i < samples; ++i) {
    const std::uint64_t bits = mix(mix(options.seed, 0xC4ECU), static_cast<std::uint64_t>(i));
    s.add_sample(bits, i % layers, requests);
  }
  s.find_sharers(requests);
}

/// A place drawn by `bits`. In a layer that drafts: the position, or the next one that is a token of a block.
void RunCheck::State::add_sample(std::uint64_t bits, std::int64_t layer, std::span<const RequestSpec> requests) {
  const DType act = options.layer.precision == Precision::kF32 ? DType::kF32 : DType::kBF16;
  const bool of_block = layer >= stack();
  std::size_t chosen = bits % requests.size();
  while (of_block && !drafts(requests[chosen])) chosen = (chosen + 1) % requests.size();
  const RequestSpec& request = requests[chosen];
  // Every other sample among the output positions, where a request has some; a block is nowhere else.
  std::int64_t end = request.positions();
  if (of_block) end = std::max(request.prompt_tokens + 1, end - 1 - options.speculative);
  const std::int64_t first = of_block || samples.size() % 2 == 1 ? std::min(request.prompt_tokens, end - 1) : 0;
  const std::int64_t position = first + static_cast<std::int64_t>(mix(bits) % static_cast<std::uint64_t>(end - first));
  const std::int64_t model_layer = model_layer_of(options, layer);
  samples.push_back({.request = request.id,
                     .position = position,
                     .layer = layer,
                     .model_layer = model_layer,
                     .compress_ratio = options.model.layer(model_layer).compress_ratio});
  outputs.emplace_back(act, std::vector<std::int64_t>{1, options.model.hidden_size});
  topk.emplace_back();
  blocks.emplace_back();
  block_begins.push_back(0);
  block_fp8_inputs.push_back(0);
  const std::int64_t needed = position + (of_block ? 2 : 1);
  longest = std::max(longest, needed + (of_block ? options.speculative : 0));
  HostTensor& kept = inputs[{request.id, kept_as(layer)}];
  if (kept.absent() || kept.size(0) < needed) kept = HostTensor(act, {needed, options.model.hidden_size});
}

void RunCheck::State::find_sharers(std::span<const RequestSpec> requests) {
  std::map<std::int64_t, const RequestSpec*> sampled;
  for (const RequestSpec& request : requests) {
    const auto is_its = [&](const CheckedSample& sample) { return sample.request == request.id; };
    if (std::ranges::any_of(samples, is_its)) sampled[request.id] = &request;
  }
  for (const RequestSpec& request : requests) {
    for (const auto& [id, spec] : sampled) {
      const bool lends = id == request.id || options.prefix_cache.has_value();
      const std::int64_t common = lends ? common_prefix(request, *spec) : 0;
      if (common > 0) sharers[request.id].emplace_back(id, common);
    }
  }
}

RunCheck::~RunCheck() = default;

bool RunCheck::wants(std::int64_t layer, const StepRow& row) const {
  const State& s = *state_;
  const auto sharing = s.sharers.find(row.request);
  if (row.rejected || sharing == s.sharers.end()) return false;
  return std::ranges::any_of(sharing->second, [&](const auto& sharer) {
    const auto found = s.inputs.find({sharer.first, s.kept_as(layer)});
    return found != s.inputs.end() && row.position < std::min(sharer.second, found->second.size(0));
  });
}

/// Keeps the inputs that samples need.
void RunCheck::State::keep_inputs(std::int64_t layer, std::span<const StepRow> rows, const ConstTensorView& input) {
  for (std::size_t t = 0; t < rows.size(); ++t) {
    const StepRow& row = rows[t];
    const auto sharing = sharers.find(row.request);
    if (row.rejected || sharing == sharers.end()) continue;
    for (const auto& [id, common] : sharing->second) {
      const auto found = inputs.find({id, layer});
      if (found == inputs.end() || row.position >= std::min(common, found->second.size(0))) continue;
      std::vector<char>& there = seen[{id, layer}];
      there.resize(static_cast<std::size_t>(found->second.size(0)), 0);
      char& one = there[static_cast<std::size_t>(row.position)];
      if (one != 0 && id != row.request) continue;
      one = 1;
      std::vector<char>& fp8 = fp8_inputs[{id, layer}];
      fp8.resize(there.size(), 0);
      fp8[static_cast<std::size_t>(row.position)] = row.fp8_inputs ? 1 : 0;
      copy_rows(input, static_cast<std::int64_t>(t), 1, found->second, row.position);
    }
  }
}

void RunCheck::on_layer(std::int64_t layer, std::span<const StepRow> rows, const ConstTensorView& input,
                        const ConstTensorView& output, const ConstTensorView& topk) {
  State& s = *state_;
  s.keep_inputs(layer, rows, input);
  for (std::size_t t = 0; t < rows.size(); ++t) {
    const StepRow& row = rows[t];
    if (row.rejected) continue;
    for (std::size_t i = 0; i < s.samples.size(); ++i) {
      CheckedSample& sample = s.samples[i];
      if (sample.request != row.request || sample.layer != layer || sample.position != row.position) continue;
      copy_rows(output, static_cast<std::int64_t>(t), 1, s.outputs[i], 0);
      if (!topk.absent()) {
        const auto* chosen = topk.as<std::int32_t>() + static_cast<std::int64_t>(t) * topk.stride[0];
        s.topk[i].assign(chosen, chosen + topk.size(1));
      }
      sample.computed = true;
    }
  }
}

void RunCheck::on_context(std::span<const StepRow> rows, const ConstTensorView& hidden) {
  state_->keep_inputs(state_->stack(), rows, hidden);
}

/// The first block that reaches a sample's position; the next one may begin behind it.
void RunCheck::on_draft_block(std::int64_t layer, std::span<const StepRow> rows, const ConstTensorView& input,
                              const ConstTensorView& output) {
  State& s = *state_;
  const StepRow& first = rows.front();
  for (std::size_t i = 0; i < s.samples.size(); ++i) {
    CheckedSample& sample = s.samples[i];
    if (sample.computed || sample.request != first.request || sample.layer != layer) continue;
    if (rows.back().position < sample.position) continue;
    sample.position = std::max(sample.position, first.position);
    s.block_begins[i] = first.position;
    s.block_fp8_inputs[i] = first.fp8_inputs ? 1 : 0;
    s.blocks[i] = HostTensor(input.dtype, {input.size(0), input.size(1)});
    copy_rows(input, 0, input.size(0), s.blocks[i], 0);
    copy_rows(output, sample.position - first.position, 1, s.outputs[i], 0);
    sample.computed = true;
  }
}

namespace {

/// What the reference of one layer is made of: nothing of it is the engine's.
struct LayerTruth {
  /// `index`: place in the list of layers.
  LayerTruth(const EngineOptions& options, std::size_t index, std::int64_t positions)
      : config(layer_configs(options)[index]), cos_sin(DType::kF32, {positions, config.rope.dim}) {
    std::ranges::copy(rope_table(config.rope, positions), cos_sin.as<float>());
    const std::int64_t model_layer = model_layer_of(options, static_cast<std::int64_t>(index));
    LayerOptions layer = effective_options(options.layer);
    float window_scale = layer.caches.kv_scale;
    float compressed_scale = window_scale;
    if (options.weights == nullptr) {
      random = random_weights(config, layer_seed(options.seed, model_layer));
      weights = random.views;
    } else {
      loaded = options.weights->load_layer(model_layer, config, 0, 1,
                                           {.keep_fp8 = options.fp8_weights, .keep_nvfp4 = options.nvfp4_weights});
      weights = layer_weights(loaded);
      layer.q_scale = loaded.q_scale.value_or(layer.q_scale);
      window_scale = loaded.kv_scale.value_or(window_scale);
      compressed_scale = loaded.compressed_kv_scale.value_or(window_scale);
    }
    rounding = ReferenceRounding::of(layer, window_scale, compressed_scale);
    bound = check_bound(layer, weights);
  }

  LayerConfig config;
  HostTensor cos_sin;
  OwnedLayerWeights random;
  LayerTensors loaded;
  LayerWeights weights;
  ReferenceRounding rounding;
  double bound = 0;
};

/// |got - want| / |want|.
double relative_l2(const ConstTensorView& got, const std::vector<double>& want) {
  double error = 0;
  double norm = 0;
  for (std::size_t c = 0; c < want.size(); ++c) {
    const double difference = value_at(got, static_cast<std::int64_t>(c)) - want[c];
    error += difference * difference;
    norm += want[c] * want[c];
  }
  if (norm == 0) return error == 0 ? 0 : std::numeric_limits<double>::infinity();
  return std::sqrt(error / norm);
}

/// A token of a draft block: its reference sees `window` rows of context and the whole block. `fp8_inputs`: of the
/// context's positions, and `block_fp8_inputs` of the block's.
std::vector<double> block_output(const LayerTruth& truth, const HostTensor& context, std::vector<char> fp8_inputs,
                                 const HostTensor& block, char block_fp8_inputs, std::int64_t begin,
                                 std::int64_t position) {
  const std::int64_t first = std::max<std::int64_t>(begin - truth.config.window, 0);
  HostTensor hidden(block.dtype(), {begin + block.size(0), block.size(1)});
  copy_rows(std::as_const(context).view(), first, begin - first, hidden, first);
  copy_rows(std::as_const(block).view(), 0, block.size(0), hidden, begin);
  fp8_inputs.resize(static_cast<std::size_t>(begin), 0);
  fp8_inputs.resize(static_cast<std::size_t>(begin + block.size(0)), block_fp8_inputs);
  ReferenceRounding rounding = truth.rounding;
  rounding.fp8_positions = &fp8_inputs;
  ReferenceLayer reference(truth.config, truth.weights, truth.cos_sin.view(), std::as_const(hidden).view(), rounding);
  return reference.output(position, std::nullopt, std::pair{first, begin + block.size(0) - 1});
}

}  // namespace

CheckReport RunCheck::finish(const std::function<void(int)>& progress) {
  State& s = *state_;
  CheckReport report{.samples = s.samples};
  int done = 0;
  for (std::size_t index = 0; index < s.options.layers.size() + s.options.dspark_layers.size(); ++index) {
    const auto layer = static_cast<std::int64_t>(index);
    std::optional<LayerTruth> truth;  // of one layer at a time
    std::map<std::int64_t, ReferenceLayer> references;
    for (std::size_t i = 0; i < s.samples.size(); ++i) {
      CheckedSample& sample = report.samples[i];
      if (sample.layer != layer) continue;
      if (sample.computed) {
        const std::pair kept{sample.request, s.kept_as(layer)};
        const HostTensor& inputs = s.inputs.at(kept);
        std::vector<char>& fp8_inputs = s.fp8_inputs[kept];
        fp8_inputs.resize(static_cast<std::size_t>(inputs.size(0)), 0);
        if (!truth) truth.emplace(s.options, index, s.longest);
        std::vector<double> want;
        if (layer >= s.stack()) {
          want = block_output(*truth, inputs, fp8_inputs, s.blocks[i], s.block_fp8_inputs[i], s.block_begins[i],
                              sample.position);
        } else {
          ReferenceRounding rounding = truth->rounding;
          rounding.fp8_positions = &fp8_inputs;
          ReferenceLayer& reference = references
                                          .try_emplace(sample.request, truth->config, truth->weights,
                                                       std::as_const(truth->cos_sin).view(), inputs.view(), rounding)
                                          .first->second;
          if (truth->config.runs_indexer())
            judge_topk(s.topk[i], reference.index_scores(sample.position), truth->config.index_topk,
                       has_fp8_inputs(s.options.layer, truth->weights), sample);
          want = reference.output(sample.position, truth->config.has_indexer()
                                                       ? std::optional<std::span<const std::int32_t>>(s.topk[i])
                                                       : std::nullopt);
        }
        sample.bound = truth->bound;
        sample.relative_l2 = relative_l2(std::as_const(s.outputs[i]).view(), want);
      }
      if (progress) progress(++done);
    }
  }
  judge(report);
  return report;
}

}  // namespace smla
