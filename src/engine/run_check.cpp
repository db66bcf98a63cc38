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
#include "layer/layer_plan.h"
#include "layer/reference_layer.h"
#include "sparsemla/weights.h"

namespace smla {

namespace {

bool is_fp8(const ConstTensorView& w) { return !w.absent() && w.dtype == DType::kE4M3; }

/// Whether some projection's input is rounded to FP8 because its weights are.
bool has_fp8_inputs(const LayerOptions& options, const LayerWeights& w) {
  if (!rounds_fp8_inputs(options)) return false;
  return is_fp8(w.wq_a) || is_fp8(w.wkv) || is_fp8(w.wq_b) || is_fp8(w.index_wq_b) || is_fp8(w.wo_b);
}

/// How far a choice may be from float64's.
struct TopkBound {
  double share = 0.10;   ///< of the chosen set that may differ
  double margin = 0.10;  ///< standard deviations around the k-th best score
};

TopkBound topk_bound(const LayerOptions& options, const LayerWeights& weights) {
  return has_fp8_inputs(options, weights) ? TopkBound{.share = 0.10, .margin = 0.25} : TopkBound{};
}

double value_at(const ConstTensorView& v, std::int64_t i) {
  return v.dtype == DType::kBF16 ? static_cast<double>(to_float(v.as<BF16>()[i]))
                                 : static_cast<double>(v.as<float>()[i]);
}

/// Judges the run's choice among the visible scores.
void judge_topk(std::span<const std::int32_t> chosen, const std::vector<double>& scores, std::int64_t k,
                const TopkBound& bound, CheckedSample& sample) {
  const std::size_t n = scores.size();
  const std::size_t wanted = std::min(n, static_cast<std::size_t>(k));
  std::vector<bool> in(n, false);
  std::size_t count = 0;
  for (const std::int32_t j : chosen) {
    if (j < 0) continue;
    if (static_cast<std::size_t>(j) >= n || in[static_cast<std::size_t>(j)]) {
      sample.topk_ok = false;
      sample.topk_text =
          "entry " + std::to_string(j) + (static_cast<std::size_t>(j) >= n ? " is not visible" : " was chosen twice");
      return;
    }
    in[static_cast<std::size_t>(j)] = true;
    ++count;
  }
  if (count != wanted) {
    sample.topk_ok = false;
    sample.topk_text = "got " + std::to_string(count) + " entries, expected " + std::to_string(wanted);
    return;
  }
  if (n <= wanted) return;

  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
  std::size_t different = 0;
  for (std::size_t i = 0; i < wanted; ++i) different += in[order[i]] ? 0 : 1;
  sample.topk_difference = static_cast<double>(different) / static_cast<double>(wanted);

  const double mean = std::accumulate(scores.begin(), scores.end(), 0.0) / static_cast<double>(n);
  double variance = 0;
  for (const double s : scores) variance += (s - mean) * (s - mean);
  const double margin = bound.margin * std::sqrt(variance / static_cast<double>(n));
  const double boundary = scores[order[wanted - 1]];
  for (std::size_t j = 0; j < n; ++j) {
    if (in[j] ? scores[j] >= boundary - margin : scores[j] <= boundary + margin) continue;
    sample.topk_ok = false;
    sample.topk_text = "entry " + std::to_string(j) +
                       (in[j] ? " was chosen with score " : " was left out with score ") + std::to_string(scores[j]) +
                       ", k-th best " + std::to_string(boundary) + ", margin " + std::to_string(margin);
    return;
  }
  if (sample.topk_difference > bound.share) {
    sample.topk_ok = false;
    sample.topk_text =
        std::to_string(different) + " of " + std::to_string(wanted) + " entries differ from float64's choice";
  }
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
  const bool output = options.fp8_output || (rounds_fp8_inputs(options) && is_fp8(weights.wo_a));
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
  std::vector<HostTensor> outputs;                                          ///< a row a sample
  std::vector<std::vector<std::int32_t>> topk;                              ///< a row a sample

  void find_sharers(std::span<const RequestSpec> requests);
};

RunCheck::RunCheck(std::span<const RequestSpec> requests, const EngineOptions& options, int samples)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.options = options;
  if (requests.empty()) return;
  const DType act = options.layer.precision == Precision::kF32 ? DType::kF32 : DType::kBF16;
  for (int i = 0; i < samples; ++i) {
    const std::uint64_t bits = mix(mix(options.seed, 0xC4ECU), static_cast<std::uint64_t>(i));
    const RequestSpec& request = requests[bits % requests.size()];
    const std::int64_t layer = i % static_cast<std::int64_t>(options.layers.size());
    // Every other sample among the output positions, where a request has some.
    const std::int64_t positions = request.positions();
    const std::int64_t first = i % 2 == 1 ? std::min(request.prompt_tokens, positions - 1) : 0;
    const std::int64_t position =
        first + static_cast<std::int64_t>(mix(bits) % static_cast<std::uint64_t>(positions - first));
    const std::int64_t model_layer = options.layers[static_cast<std::size_t>(layer)];
    s.samples.push_back({.request = request.id,
                         .position = position,
                         .layer = layer,
                         .model_layer = model_layer,
                         .compress_ratio = options.model.layer(model_layer).compress_ratio});
    s.outputs.emplace_back(act, std::vector<std::int64_t>{1, options.model.hidden_size});
    s.topk.emplace_back();
    s.longest = std::max(s.longest, position + 1);
    HostTensor& kept = s.inputs[{request.id, layer}];
    if (kept.absent() || kept.size(0) <= position) kept = HostTensor(act, {position + 1, options.model.hidden_size});
  }
  s.find_sharers(requests);
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
    const auto found = s.inputs.find({sharer.first, layer});
    return found != s.inputs.end() && row.position < std::min(sharer.second, found->second.size(0));
  });
}

void RunCheck::on_layer(std::int64_t layer, std::span<const StepRow> rows, const ConstTensorView& input,
                        const ConstTensorView& output, const ConstTensorView& topk) {
  State& s = *state_;
  const std::int64_t hidden = input.size(1);
  const std::int64_t bytes = hidden * size_of(input.dtype);
  for (std::size_t t = 0; t < rows.size(); ++t) {
    const StepRow& row = rows[t];
    if (row.rejected) continue;
    const auto copy = [&](const ConstTensorView& from, HostTensor& to, std::int64_t to_row) {
      const auto* source = static_cast<const std::uint8_t*>(from.data) +
                           static_cast<std::int64_t>(t) * from.stride[0] * size_of(from.dtype);
      std::copy_n(source, bytes, static_cast<std::uint8_t*>(to.data()) + to_row * bytes);
    };
    const auto sharing = s.sharers.find(row.request);
    if (sharing == s.sharers.end()) continue;
    for (const auto& [id, common] : sharing->second) {
      const auto found = s.inputs.find({id, layer});
      if (found == s.inputs.end() || row.position >= std::min(common, found->second.size(0))) continue;
      std::vector<char>& seen = s.seen[{id, layer}];
      seen.resize(static_cast<std::size_t>(found->second.size(0)), 0);
      char& there = seen[static_cast<std::size_t>(row.position)];
      if (there != 0 && id != row.request) continue;
      there = 1;
      copy(input, found->second, row.position);
    }
    for (std::size_t i = 0; i < s.samples.size(); ++i) {
      CheckedSample& sample = s.samples[i];
      if (sample.request != row.request || sample.layer != layer || sample.position != row.position) continue;
      copy(output, s.outputs[i], 0);
      if (!topk.absent()) {
        const auto* chosen = topk.as<std::int32_t>() + static_cast<std::int64_t>(t) * topk.stride[0];
        s.topk[i].assign(chosen, chosen + topk.size(1));
      }
      sample.computed = true;
    }
  }
}

namespace {

/// What the reference of one layer is made of: nothing of it is the engine's.
struct LayerTruth {
  /// `index`: place in the list of layers.
  LayerTruth(const EngineOptions& options, std::size_t index, std::int64_t positions)
      : config(layer_configs(options)[index]), cos_sin(DType::kF32, {positions, config.rope.dim}) {
    std::ranges::copy(rope_table(config.rope, positions), cos_sin.as<float>());
    const std::int64_t model_layer = options.layers[index];
    LayerOptions layer = effective_options(options.layer);
    float window_scale = layer.caches.kv_scale;
    float compressed_scale = window_scale;
    if (options.weights == nullptr) {
      random = random_weights(config, layer_seed(options.seed, model_layer));
      weights = random.views;
    } else {
      loaded = options.weights->load_layer(model_layer, config, 0, 1, {.keep_fp8 = options.fp8_weights});
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

}  // namespace

CheckReport RunCheck::finish(const std::function<void(int)>& progress) {
  State& s = *state_;
  CheckReport report{.samples = s.samples};
  int done = 0;
  for (std::size_t index = 0; index < s.options.layers.size(); ++index) {
    const auto layer = static_cast<std::int64_t>(index);
    std::optional<LayerTruth> truth;  // of one layer at a time
    std::map<std::int64_t, ReferenceLayer> references;
    for (std::size_t i = 0; i < s.samples.size(); ++i) {
      CheckedSample& sample = report.samples[i];
      if (sample.layer != layer) continue;
      if (sample.computed) {
        const HostTensor& inputs = s.inputs.at({sample.request, layer});
        if (!truth) truth.emplace(s.options, index, s.longest);
        ReferenceLayer& reference =
            references
                .try_emplace(sample.request, truth->config, truth->weights, std::as_const(truth->cos_sin).view(),
                             inputs.view(), truth->rounding)
                .first->second;
        if (truth->config.runs_indexer())
          judge_topk(s.topk[i], reference.index_scores(sample.position), truth->config.index_topk,
                     topk_bound(s.options.layer, truth->weights), sample);
        const std::vector<double> want = reference.output(
            sample.position,
            truth->config.has_indexer() ? std::optional<std::span<const std::int32_t>>(s.topk[i]) : std::nullopt);
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
