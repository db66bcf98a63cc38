#include "run_arguments.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "arguments.h"
#include "bundled_trace.h"
#include "device/capability.h"
#include "sparsemla/trace.h"

namespace smla {

namespace {

// What runs when nothing is asked for: a part of the bundled trace that two cores finish in well under a minute.
constexpr std::int64_t kBundledRequests = 16;
constexpr double kBundledScale = 0.15;
constexpr std::int64_t kDefaultKvBytes = std::int64_t{4} << 30;

/// "3": the first three; "0,2,3" and "3,": a list.
std::vector<std::int64_t> parse_layers(const std::string& text, const ModelConfig& model) {
  const std::int64_t all = model.num_layers + model.num_mtp_layers;
  std::vector<std::int64_t> layers;
  const auto number = [&](const std::string& s) {
    if (s.empty() || s.size() > 9 || !std::ranges::all_of(s, [](char c) { return c >= '0' && c <= '9'; })) {
      throw InvalidArgument("--layers: got \"" + text + "\", expected a count such as 3 or a list such as 0,2,3");
    }
    return static_cast<std::int64_t>(std::stoll(s));
  };
  if (text.empty()) {
    layers.resize(static_cast<std::size_t>(model.num_layers));
    std::iota(layers.begin(), layers.end(), 0);
  } else if (text.find(',') == std::string::npos) {
    const std::int64_t n = number(text);
    if (n < 1 || n > all)
      throw InvalidArgument("--layers: got " + text + " layers, expected 1 to " + std::to_string(all));
    layers.resize(static_cast<std::size_t>(n));
    std::iota(layers.begin(), layers.end(), 0);
  } else {
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t comma = std::min(text.find(',', begin), text.size());
      layers.push_back(number(text.substr(begin, comma - begin)));
      if (layers.back() >= all) {
        throw InvalidArgument("--layers: got layer " + std::to_string(layers.back()) + ", expected 0 to " +
                              std::to_string(all - 1));
      }
      begin = comma + 1;
    }
  }
  return layers;
}

/// The layers that draft: all of the model's MTP layers.
std::vector<std::int64_t> mtp_layers(const ModelConfig& model) {
  if (model.num_mtp_layers == 0) {
    throw InvalidArgument("--dspark: got " + model.name +
                          " without MTP layers, expected a model that has some (num_nextn_predict_layers)");
  }
  std::vector<std::int64_t> layers(static_cast<std::size_t>(model.num_mtp_layers));
  std::iota(layers.begin(), layers.end(), model.num_layers);
  return layers;
}

/// Enough blocks for the longest `max_seqs` requests at once, within the byte limit; with a prefix cache all of it.
std::int64_t choose_blocks(const RunArguments& a, const EngineOptions& options, const std::vector<RequestSpec>& specs) {
  if (a.kv_blocks > 0) return a.kv_blocks;
  const KvLayout layout = engine_layout(options);
  std::vector<std::int64_t> needs;
  for (const RequestSpec& s : specs) {
    // A longer one is refused; it must not size the pool.
    if (s.positions() <= options.max_model_len) needs.push_back(blocks_needed(layout, s, options.max_batched_tokens));
  }
  std::ranges::sort(needs, std::greater<>());
  const std::size_t at_once = std::min<std::size_t>(needs.size(), static_cast<std::size_t>(options.max_seqs));
  const std::int64_t wanted =
      std::accumulate(needs.begin(), needs.begin() + static_cast<std::ptrdiff_t>(at_once), std::int64_t{0});
  const std::int64_t bytes = a.kv_bytes.empty() ? kDefaultKvBytes : parse_bytes("--kv-bytes", a.kv_bytes);
  const std::int64_t limit = bytes / layout.block_stride_bytes;
  // What is left over keeps prefixes.
  return std::max<std::int64_t>(1, a.kv_bytes.empty() && !a.prefix_cache ? std::min(wanted, limit) : limit);
}

/// auto: where steps take less time with them (docs/checkpoints.md), that is on CPUs, and on GPUs of compute capability
/// 9.0 for decode steps of up to 128 tokens, drafts counted; of slices up to 16. Other GPUs read them again for every
/// 16 rows of a prompt.
bool keeps_fp8_weights(const RunArguments& a, const EngineOptions& o) {
  if (a.fp8_weights != "auto") return a.fp8_weights == "on";
  if (o.weights == nullptr || o.layer.device == DeviceKind::kCpu) return o.weights != nullptr;
  const std::int64_t most = a.tensor_parallel > 1 ? 16 : 128;
  const std::vector<GpuInfo> cards = gpus();
  return a.max_seqs * (1 + a.speculative) <= most &&
         std::ranges::all_of(cards, [](const GpuInfo& card) { return card.major == 9 && card.minor == 0; });
}

/// auto: on CPUs, where steps of few tokens take less time with them. On GPUs steps of 16 requests and short prompts
/// take longer (docs/checkpoints.md).
bool keeps_nvfp4_weights(const RunArguments& a, const EngineOptions& o) {
  if (a.nvfp4_weights != "auto") return a.nvfp4_weights == "on";
  return o.weights != nullptr && o.layer.device == DeviceKind::kCpu;
}

}  // namespace

std::vector<RequestSpec> read_requests(const RunArguments& a, RunReport& report) {
  const bool bundled = a.trace.empty();
  const std::int64_t limit = a.max_requests > 0 ? a.max_requests : (bundled ? kBundledRequests : 0);
  report.scale_lengths = a.scale_lengths.value_or(bundled ? kBundledScale : 1.0);
  report.arrival_speed = a.arrival_speed;
  report.trace = bundled ? "the bundled slice of the Mooncake conversation trace" : a.trace;
  const std::vector<TraceRequest> trace =
      bundled ? parse_trace("bundled trace", kBundledTrace, limit) : read_trace(a.trace, limit);
  // Only distances count: a trace may begin at any time, an epoch's for example.
  const double first = std::ranges::min(trace, {}, &TraceRequest::arrival_ms).arrival_ms;
  std::vector<RequestSpec> specs;
  for (const TraceRequest& t : trace) {
    const auto scaled = [&](std::int64_t n) {
      return std::max<std::int64_t>(1, std::llround(static_cast<double>(n) * report.scale_lengths));
    };
    specs.push_back({.id = static_cast<std::int64_t>(specs.size()),
                     .arrival_seconds = a.arrival_speed > 0 ? (t.arrival_ms - first) / 1e3 / a.arrival_speed : 0,
                     .prompt_tokens = scaled(t.input_length),
                     .output_tokens = scaled(t.output_length),
                     .prompt_ids = t.hash_ids,
                     .prompt_id_tokens = scaled(kTraceBlockTokens)});
  }
  std::ranges::stable_sort(specs, {}, &RequestSpec::arrival_seconds);
  return specs;
}

std::string model_label(const RunArguments& a, const EngineOptions& o) {
  const std::vector<std::string> presets = model_preset_names();
  const bool from_weights = a.model.empty() && o.weights != nullptr;
  if (!from_weights && (a.model.empty() || std::ranges::find(presets, a.model) != presets.end())) return o.model.name;
  const std::string path = from_weights ? o.weights->path() + "/config.json" : a.model;
  return o.model.name.empty() || o.model.name == "config.json" ? path : path + " (" + o.model.name + ")";
}

EngineOptions engine_options(const RunArguments& a, const std::vector<RequestSpec>& specs) {
  EngineOptions o;
  if (!a.weights.empty()) o.weights = std::make_shared<const Checkpoint>(a.weights);
  if (a.model.empty() && o.weights != nullptr) {
    if (!o.weights->model())
      throw InvalidArgument("--weights: got " + a.weights + " without a config.json, expected one, or --model");
    o.model = *o.weights->model();
  } else {
    o.model = load_model_config(a.model.empty() ? "tiny" : a.model);
  }
  o.model.hadamard = o.model.hadamard || a.hadamard;
  if (a.index_topk_freq > 0) {
    o.model.index_topk_freq = a.index_topk_freq;
    o.model.index_topk_pattern.clear();
  }
  o.layers = parse_layers(a.layers, o.model);
  o.index_topk_pattern = a.index_topk_pattern;
  o.layer.device = device_from_name(a.device);
  if (std::string reason; o.layer.device == DeviceKind::kCuda && gpus(&reason).empty())
    throw Unsupported("--device: got cuda, but there is no GPU: " + reason);
  const int major = device_major(o.layer.device);
  o.layer.front_end = front_end(a.front_end, major);
  o.layer.strict = a.strict;
  o.layer.gather_prefill = a.gather_prefill;
  if (a.output_projection == "fp8") o.layer.fp8_output = OutputScale::kF32;
  if (a.output_projection == "fp8-ue8m0") o.layer.fp8_output = OutputScale::kUe8m0x4;
  o.layer.precision = a.precision == "f32" ? Precision::kF32 : Precision::kBF16;
  o.layer.caches.rows = a.cache_dtype.empty() ? &cache_rows(o.layer.front_end, "auto")
                                              : &cache_rows(o.layer.front_end, a.cache_dtype, a.strict);
  o.layer.caches.index = &index_rows(a.index_dtype, a.strict, major);
  o.layer.caches.kv_scale = static_cast<float>(a.kv_scale);
  o.layer.q_scale = static_cast<float>(a.q_scale);
  o.layer = effective_options(o.layer);
  o.time_stages = o.layer.device == DeviceKind::kCpu || a.stage_times;
  o.graphs = !a.no_graphs && a.dump.empty();  // a recorded graph's calls cannot be written to files
  o.max_graphs = a.max_graphs;
  o.max_graph_bytes = a.graph_memory << 20;
  o.graph_after = a.graph_after;
  o.layer.deterministic = a.deterministic;
  o.layer.threads = a.threads;
  o.layer.implementations = implementations_of(a.implementations, o.layer.device);
  o.fp8_weights = keeps_fp8_weights(a, o);
  o.nvfp4_weights = keeps_nvfp4_weights(a, o);
  o.max_batched_tokens = a.max_batched_tokens;
  o.max_seqs = a.max_seqs;
  for (const RequestSpec& s : specs) o.max_model_len = std::max(o.max_model_len, s.positions());
  o.max_model_len = std::min(o.max_model_len, o.model.max_position);
  o.layer.chunks.max_model_len = o.max_model_len;
  o.layer.chunks.max_batched_tokens = o.max_batched_tokens;
  if (a.prefix_cache) o.prefix_cache = PrefixCacheOptions{.retention_interval = a.prefix_retention};
  o.speculative = a.speculative;
  o.adaptive_speculation = a.adaptive_speculation;
  o.draft_acceptance = a.acceptance;
  if (a.dspark) o.dspark_layers = mtp_layers(o.model);
  o.seed = a.seed;
  if (a.plant_error == "position") o.planted_error = PlantedError::kPosition;
  if (a.plant_error == "block") o.planted_error = PlantedError::kBlock;
  if (a.plant_error == "rope") o.planted_error = PlantedError::kRope;
  o.layer.caches.context_ranks = a.context_parallel;
  o.num_blocks = choose_blocks(a, o, specs);
  return o;
}

ParallelOptions parallel_options(const RunArguments& a) {
  return {.tensor = a.tensor_parallel, .context = a.context_parallel};
}

}  // namespace smla
