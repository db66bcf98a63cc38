#include <fmt/format.h>
#include <omp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <fstream>
#include <numeric>
#include <optional>
#include <thread>

#include "bundled_trace.h"
#include "commands.h"
#include "progress.h"
#include "run_report.h"
#include "sparsemla/trace.h"

namespace smla {

namespace {

volatile std::sig_atomic_t g_interrupted = 0;

// What runs when nothing is asked for: a part of the bundled trace that two cores finish in well under a minute.
constexpr std::int64_t kBundledRequests = 16;
constexpr double kBundledScale = 0.15;
constexpr std::int64_t kDefaultKvBytes = std::int64_t{4} << 30;

struct RunArguments {
  std::string model;
  std::string weights;
  std::string layers;
  std::string trace;
  std::int64_t max_requests = 0;
  std::optional<double> scale_lengths;
  double arrival_speed = 0;
  std::int64_t max_batched_tokens = 512;
  std::int64_t max_seqs = 16;
  std::int64_t kv_blocks = 0;
  std::string kv_bytes;
  std::string cache_dtype = "fp8_ds_mla";
  std::string precision = "bf16";
  double kv_scale = 1.0;
  double q_scale = 1.0;
  int speculative = 0;
  double acceptance = 0.7;
  int check = 8;
  int threads = 0;
  std::uint64_t seed = 0;
  std::string json;
  std::vector<std::string> implementations;
  bool deterministic = false;
  bool quiet = false;
  std::string plant_error;
};

std::int64_t parse_bytes(const std::string& text) {
  std::size_t used = 0;
  double value = -1;
  try {
    value = std::stod(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  const std::string unit = text.substr(used);
  double factor = -1;
  if (unit.empty()) factor = 1;
  if (unit == "K" || unit == "KiB") factor = 1024;
  if (unit == "M" || unit == "MiB") factor = 1024.0 * 1024;
  if (unit == "G" || unit == "GiB") factor = 1024.0 * 1024 * 1024;
  if (used == 0 || factor < 0 || !(value >= 0) || value * factor > 1e15) {
    throw InvalidArgument("--kv-bytes: got \"" + text + "\", expected a number of bytes such as 500000000, 800M or 2G");
  }
  return static_cast<std::int64_t>(value * factor);
}

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
    if (n < 1 || n > all) throw InvalidArgument("--layers: got " + text + " layers, expected 1 to " + std::to_string(all));
    layers.resize(static_cast<std::size_t>(n));
    std::iota(layers.begin(), layers.end(), 0);
  } else {
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t comma = std::min(text.find(',', begin), text.size());
      layers.push_back(number(text.substr(begin, comma - begin)));
      if (layers.back() >= all) {
        throw InvalidArgument("--layers: got layer " + std::to_string(layers.back()) + ", expected 0 to " + std::to_string(all - 1));
      }
      begin = comma + 1;
    }
  }
  return layers;
}

std::vector<RequestSpec> read_requests(const RunArguments& a, RunReport& report) {
  const bool bundled = a.trace.empty();
  const std::int64_t limit = a.max_requests > 0 ? a.max_requests : (bundled ? kBundledRequests : 0);
  report.scale_lengths = a.scale_lengths.value_or(bundled ? kBundledScale : 1.0);
  report.arrival_speed = a.arrival_speed;
  report.trace = bundled ? "the bundled slice of the Mooncake conversation trace" : a.trace;
  const std::vector<TraceRequest> trace = bundled ? parse_trace("bundled trace", kBundledTrace, limit) : read_trace(a.trace, limit);
  std::vector<RequestSpec> specs;
  for (const TraceRequest& t : trace) {
    const auto scaled = [&](std::int64_t n) { return std::max<std::int64_t>(1, std::llround(static_cast<double>(n) * report.scale_lengths)); };
    specs.push_back({.id = static_cast<std::int64_t>(specs.size()),
                     .arrival_seconds = a.arrival_speed > 0 ? t.arrival_ms / 1e3 / a.arrival_speed : 0,
                     .prompt_tokens = scaled(t.input_length),
                     .output_tokens = scaled(t.output_length)});
  }
  std::ranges::stable_sort(specs, {}, &RequestSpec::arrival_seconds);
  return specs;
}

/// Enough blocks for the longest `max_seqs` requests at once, within the byte limit.
std::int64_t choose_blocks(const RunArguments& a, const EngineOptions& options, const std::vector<RequestSpec>& specs) {
  if (a.kv_blocks > 0) return a.kv_blocks;
  std::vector<LayerConfig> configs;
  for (const std::int64_t layer : options.layers) configs.push_back(options.model.layer(layer));
  const KvLayout layout = make_kv_layout(configs, options.layer.caches);
  std::vector<std::int64_t> needs;
  for (const RequestSpec& s : specs) needs.push_back(blocks_needed(layout, s, options.max_batched_tokens));
  std::ranges::sort(needs, std::greater<>());
  const std::size_t at_once = std::min<std::size_t>(needs.size(), static_cast<std::size_t>(options.max_seqs));
  const std::int64_t wanted = std::accumulate(needs.begin(), needs.begin() + static_cast<std::ptrdiff_t>(at_once), std::int64_t{0});
  const std::int64_t bytes = a.kv_bytes.empty() ? kDefaultKvBytes : parse_bytes(a.kv_bytes);
  const std::int64_t limit = bytes / layout.block_stride_bytes;
  return std::max<std::int64_t>(1, a.kv_bytes.empty() ? std::min(wanted, limit) : limit);
}

EngineOptions engine_options(const RunArguments& a, const std::vector<RequestSpec>& specs) {
  EngineOptions o;
  if (!a.weights.empty()) o.weights = std::make_shared<const Checkpoint>(a.weights);
  if (a.model.empty() && o.weights != nullptr) {
    if (!o.weights->model()) throw InvalidArgument("--weights: got " + a.weights + " without a config.json, expected one, or --model");
    o.model = *o.weights->model();
  } else {
    o.model = load_model_config(a.model.empty() ? "tiny" : a.model);
  }
  o.layers = parse_layers(a.layers, o.model);
  o.layer.precision = a.precision == "f32" ? Precision::kF32 : Precision::kBF16;
  if (o.layer.precision == Precision::kF32) {
    o.layer.caches = {.rows = &f32_rows(), .index = &index_f32_rows(), .kv_scale = 1.0F};
  } else {
    o.layer.caches.rows = &cache_rows(a.cache_dtype);
    o.layer.caches.kv_scale = static_cast<float>(a.kv_scale);
    o.layer.q_scale = static_cast<float>(a.q_scale);
    if (o.layer.caches.rows->scale == ScaleKind::kPerTensor) o.layer.q = DType::kE4M3;
  }
  o.layer.deterministic = a.deterministic;
  o.layer.threads = a.threads;
  for (const std::string& choice : a.implementations) {
    const std::size_t equals = choice.find('=');
    if (equals == std::string::npos) {
      o.layer.implementations["*"] = choice;
    } else {
      o.layer.implementations[choice.substr(0, equals)] = choice.substr(equals + 1);
    }
  }
  o.max_batched_tokens = a.max_batched_tokens;
  o.max_seqs = a.max_seqs;
  for (const RequestSpec& s : specs) o.max_model_len = std::max(o.max_model_len, s.positions());
  o.max_model_len = std::min(o.max_model_len, o.model.max_position);
  o.speculative = a.speculative;
  o.draft_acceptance = a.acceptance;
  o.seed = a.seed;
  if (a.plant_error == "position") o.planted_error = PlantedError::kPosition;
  if (a.plant_error == "block") o.planted_error = PlantedError::kBlock;
  o.num_blocks = choose_blocks(a, o, specs);
  return o;
}

/// Feeds requests as they arrive and steps until all are done or Ctrl-C.
void replay_requests(Engine& engine, const std::vector<RequestSpec>& specs, bool quiet, RunReport& report) {
  const auto start = std::chrono::steady_clock::now();
  const auto now = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  std::int64_t total = 0;
  for (const RequestSpec& s : specs) total += s.positions();
  Progress progress("run", "tokens", total, quiet);
  std::size_t next = 0;
  while (g_interrupted == 0) {
    while (next < specs.size() && specs[next].arrival_seconds <= now()) engine.submit(specs[next++]);
    if (engine.idle()) {
      if (next == specs.size()) break;
      std::this_thread::sleep_for(std::chrono::duration<double>(std::min(specs[next].arrival_seconds - now(), 0.05)));
      continue;
    }
    engine.step(now);
    const RunTotals& t = engine.totals();
    progress.update(t.prefill_tokens + t.decode_tokens - t.recomputed_tokens, fmt::format("step {}", t.steps));
  }
  progress.finish();
  report.interrupted = g_interrupted != 0;
  report.wall_seconds = now();
}

/// One notice a model: rows and queries by the options' scales where the checkpoint brings none.
void tell_of_missing_scales(const EngineOptions& o) {
  if (o.weights == nullptr || o.layer.precision == Precision::kF32 || o.layer.caches.rows->scale != ScaleKind::kPerTensor) return;
  if (std::ranges::all_of(o.layers, [&](std::int64_t layer) { return o.weights->has_cache_scales(layer); })) return;
  fmt::print(stderr, "smla run: {} has no KV or q scales for some layers; they use {} and {}\n", o.weights->path(), o.layer.caches.kv_scale,
             o.layer.q_scale);
}

int run(const RunArguments& a) {
  RunReport report;
  if (a.threads > 0) omp_set_num_threads(a.threads);
  const auto start = std::chrono::steady_clock::now();
  const std::vector<RequestSpec> specs = read_requests(a, report);
  report.options = engine_options(a, specs);
  if (!a.quiet)
    fmt::print(stderr, "smla run: {}, {} layers, {} requests; making weights and caches\n", report.options.model.name, report.options.layers.size(),
               specs.size());
  tell_of_missing_scales(report.options);
  std::vector<RequestSpec> checkable;
  std::ranges::copy_if(specs, std::back_inserter(checkable), [&](const RequestSpec& s) { return s.positions() <= report.options.max_model_len; });
  RunCheck check(checkable, report.options, a.check);
  Engine engine(report.options, a.check > 0 ? &check : nullptr);
  report.setup_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  const auto previous = std::signal(SIGINT, [](int) { g_interrupted = 1; });
  replay_requests(engine, specs, a.quiet, report);
  std::signal(SIGINT, previous);

  report.results = engine.results();
  report.totals = engine.totals();
  report.layout = engine.pool().layout();
  for (std::size_t g = 0; g < report.layout.groups.size(); ++g) report.peak_blocks.push_back(engine.pool().peak(static_cast<int>(g)));
  report.implementations = engine.implementations();
  if (a.check > 0) {
    Progress progress("check", "samples", a.check, a.quiet);
    report.check = check.finish(engine, [&](int done) { progress.update(done); });
    progress.finish();
    report.checked = true;
  }
  fmt::print("{}", report_text(report));
  if (!a.json.empty()) {
    std::ofstream file(a.json, std::ios::binary);
    file << report_json(report);
    file.flush();
    if (!file) throw IoError("--json: " + a.json + " could not be written");
    fmt::print("JSON: {}\n", a.json);
  }
  if (report.interrupted) return 130;
  return report.checked && !report.check.passed ? 1 : 0;
}

}  // namespace

void add_run_command(CLI::App& app, int& exit_code) {
  auto a = std::make_shared<RunArguments>();
  CLI::App* c = app.add_subcommand("run", "Replay a request trace through a stack of attention layers and check samples against float64");
  c->footer(
      "With no option: the first 16 requests of the bundled trace, lengths x 0.15, through the tiny preset, 8 samples checked.\n"
      "Exit status: 0 done and checks passed, 1 a check failed, 2 bad input, 130 interrupted.");
  c->add_option("--model", a->model, "Preset (v4-flash, v4-pro, tiny) or a config.json (default: that of --weights, else tiny)");
  c->add_option("--weights", a->weights, "Checkpoint: a folder with safetensors, or one file (default: random weights of --seed)");
  c->add_option("--layers", a->layers, "N: the first N layers; a list has a comma: 0,2,3 or 3, (default: all decoder layers)");
  c->add_option("--trace", a->trace, "Request trace, JSON Lines: timestamp (ms), input_length, output_length, hash_ids (default: bundled slice)");
  c->add_option("--max-requests", a->max_requests, "Only the first N requests (default: 16 of the bundled slice, all of a file)")
      ->check(CLI::PositiveNumber);
  c->add_option("--scale-lengths", a->scale_lengths, "Factor on prompt and output lengths (default: 0.15 for the bundled slice, 1 for a file)")
      ->check(CLI::Range(1e-9, 1e3));
  c->add_option("--arrival-speed", a->arrival_speed, "Replay arrivals this many times faster than recorded; 0: all at once")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  c->add_option("--max-batched-tokens", a->max_batched_tokens, "Tokens of a step")->check(CLI::Range(1, 1 << 20))->capture_default_str();
  c->add_option("--max-seqs", a->max_seqs, "Requests in flight")->check(CLI::Range(1, 1 << 16))->capture_default_str();
  CLI::Option* blocks =
      c->add_option("--kv-blocks", a->kv_blocks, "Blocks of the KV pool (default: enough for max-seqs of the longest, at most 4 GiB)")
          ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 31));
  c->add_option("--kv-bytes", a->kv_bytes, "Bytes of the KV pool, e.g. 500M or 2G")->excludes(blocks);
  c->add_option("--cache-dtype", a->cache_dtype, "fp8_ds_mla, bf16 or fp8_per_tensor (queries e4m3 too)")->capture_default_str();
  c->add_option("--precision", a->precision, "bf16, or f32: float32 activations and caches")
      ->check(CLI::IsMember({"bf16", "f32"}))
      ->capture_default_str();
  c->add_option("--kv-scale", a->kv_scale, "Scale of fp8_per_tensor rows, for layers whose checkpoint has none")
      ->check(CLI::Range(1e-6, 1e6))
      ->capture_default_str();
  c->add_option("--q-scale", a->q_scale, "Scale of e4m3 queries, for layers whose checkpoint has none")
      ->check(CLI::Range(1e-6, 1e6))
      ->capture_default_str();
  c->add_option("--speculative", a->speculative, "Draft tokens a decode step verifies")->check(CLI::Range(0, 64))->capture_default_str();
  c->add_option("--draft-acceptance", a->acceptance, "Share of drafts that the seeded coin accepts")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  c->add_option("--check", a->check, "Samples (request, token, layer) recomputed in float64; 0: none")
      ->check(CLI::Range(0, 100000))
      ->capture_default_str();
  c->add_option("--plant-error", a->plant_error, "Plant a fault (position or block) to see the check fail")
      ->check(CLI::IsMember({"position", "block"}));
  c->add_option("--threads", a->threads, "CPU threads; 0: all")->check(CLI::Range(0, 4096))->capture_default_str();
  c->add_option("--seed", a->seed, "Seed of weights, inputs, drafts and samples")->capture_default_str();
  c->add_option("--impl", a->implementations, "Force an implementation: NAME for every op that has it, or OP=NAME");
  c->add_flag("--deterministic", a->deterministic, "A token's result does not depend on the batch around it");
  c->add_option("--json", a->json, "Also write the report to FILE as JSON");
  c->add_flag("-q,--quiet", a->quiet, "No progress");
  c->callback([a, &exit_code] { exit_code = run(*a); });
}

}  // namespace smla
