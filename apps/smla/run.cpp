#include <fmt/format.h>
#include <omp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <thread>

#include "arguments.h"
#include "bench/measure.h"
#include "commands.h"
#include "output_file.h"
#include "prefix_report.h"
#include "progress.h"
#include "run_arguments.h"
#include "run_combinations.h"
#include "run_report.h"
#include "sparsemla/case.h"

namespace smla {

namespace {

constexpr double kToldWait = 2;  // seconds without work that are worth a line

volatile std::sig_atomic_t g_interrupted = 0;

/// Feeds requests as they arrive and steps until all are done or Ctrl-C.
void replay_requests(ParallelEngine& engine, const std::vector<RequestSpec>& specs, const RunArguments& a,
                     RunReport& report) {
  const bench::Clock clock = a.clock == "cpu" ? bench::Clock::kCpu : bench::Clock::kWall;
  const int threads = a.threads > 0 ? a.threads : omp_get_max_threads();
  const double start = bench::seconds_now(clock, threads);
  const auto now = [&] { return bench::seconds_now(clock, threads) - start; };
  std::int64_t total = 0;
  for (const RequestSpec& s : specs) total += s.positions();
  Progress progress("run", "tokens", total, a.quiet);
  std::string last;  // implementations of the step before
  std::size_t next = 0;
  std::size_t announced = specs.size();  // the request whose wait was told
  while (g_interrupted == 0) {
    while (next < specs.size() && specs[next].arrival_seconds <= now()) engine.submit(specs[next++]);
    if (engine.idle()) {
      if (next == specs.size()) break;
      const double wait = specs[next].arrival_seconds - now();
      if (wait > kToldWait && announced != next && !a.quiet) {
        progress.finish();
        fmt::print(stderr, "smla run: nothing to do; waiting for request {}, which comes in {:.0f} s\n", specs[next].id,
                   wait);
        announced = next;
      }
      std::this_thread::sleep_for(std::chrono::duration<double>(std::clamp(wait, 0.0, 0.05)));
      continue;
    }
    const bool dumped = !a.dump.empty() && engine.engine().totals().steps + 1 == a.dump_step;
    if (dumped) record_calls(a.dump);
    engine.step(now);
    if (dumped) record_calls("");
    if (std::string now_running = engine.engine().implementations(); now_running != last) {
      merge_implementations(report.implementations, now_running);
      last = std::move(now_running);
    }
    const RunTotals& t = engine.engine().totals();
    progress.update(t.prefill_tokens + t.decode_tokens - t.recomputed_tokens + t.cached_tokens,
                    fmt::format("step {}", t.steps));
  }
  progress.finish();
  report.interrupted = g_interrupted != 0;
  report.wall_seconds = now();
}

/// A dump beside an older one could not be told apart from it.
void check_dump_folder(const std::string& folder) {
  if (folder.empty() || !std::filesystem::is_directory(folder)) return;
  const auto entries = std::filesystem::directory_iterator(folder);
  const auto count = std::ranges::count_if(begin(entries), end(entries), [](const auto& entry) {
    return entry.path().string().ends_with(kRecordedCaseSuffix);
  });
  if (count > 0)
    throw InvalidArgument("--dump: got " + folder + ", which holds " + std::to_string(count) +
                          " recorded calls, expected a new folder or one without any");
}

/// What the dump wrote; a step that was never reached is an error.
void tell_of_dump(const RunArguments& a, std::int64_t steps) {
  if (a.dump.empty()) return;
  if (a.dump_step > steps)
    throw InvalidArgument("--dump-step: got " + std::to_string(a.dump_step) + ", expected at most " +
                          std::to_string(steps) + ", the steps of this run; nothing was recorded");
  fmt::print("recorded {} calls of step {} in {}, {:.1f} MB\n", recorded_calls(), a.dump_step, a.dump,
             static_cast<double>(recorded_bytes()) * 1e-6);
}

/// One notice a model: rows and queries by the options' scales where the checkpoint brings none.
void tell_of_missing_scales(const EngineOptions& o) {
  if (o.weights == nullptr || o.layer.precision == Precision::kF32 ||
      o.layer.caches.rows->scale != ScaleKind::kPerTensor)
    return;
  if (std::ranges::all_of(o.layers, [&](std::int64_t layer) { return o.weights->has_cache_scales(layer); })) return;
  fmt::print(stderr, "smla run: {} has no KV or q scales for some layers; they use {} and {}\n", o.weights->path(),
             o.layer.caches.kv_scale, o.layer.q_scale);
}

/// The same requests through an engine without a prefix cache, for comparison.
void replay_without(const std::vector<RequestSpec>& specs, const RunArguments& a, RunReport& report) {
  RunReport plain;
  plain.options = report.options;
  plain.options.prefix_cache.reset();
  ParallelEngine engine(plain.options, parallel_options(a));
  replay_requests(engine, specs, a, plain);
  report.compared = true;
  report.without = engine.engine().results();
  report.without_seconds = plain.wall_seconds;
}

int run(const RunArguments& a) {
  RunReport report;
  report.cpu_clock = a.clock == "cpu";
  check_dump_folder(a.dump);
  if (a.threads > 0) omp_set_num_threads(a.threads);
  const auto start = std::chrono::steady_clock::now();
  OutputFile json("--json", a.json);
  const std::vector<RequestSpec> specs = read_requests(a, report);
  report.options = engine_options(a, specs);
  report.model = model_label(a, report.options);
  if (!a.quiet)
    fmt::print(stderr, "smla run: {}, {}, {} requests; making weights and caches\n", report.model,
               layers_text(report.options), specs.size());
  tell_of_missing_scales(report.options);
  std::vector<RequestSpec> checkable;
  std::ranges::copy_if(specs, std::back_inserter(checkable),
                       [&](const RequestSpec& s) { return s.positions() <= report.options.max_model_len; });
  RunCheck check(checkable, report.options, a.check);
  report.parallel = parallel_options(a);
  ParallelEngine ranks(report.options, report.parallel, a.check > 0 ? &check : nullptr);
  report.setup_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  const auto previous = std::signal(SIGINT, [](int) { g_interrupted = 1; });
  if (a.prefix_compare) replay_without(specs, a, report);
  replay_requests(ranks, specs, a, report);
  std::signal(SIGINT, previous);

  const Engine& engine = ranks.engine();
  report.results = engine.results();
  report.totals = engine.totals();
  report.layout = engine.pool().layout();
  for (std::size_t g = 0; g < report.layout.groups.size(); ++g)
    report.peak_blocks.push_back(engine.pool().peak(static_cast<int>(g)));
  if (engine.prefix_cache() != nullptr) report.prefixes = engine.prefix_cache()->stats();
  if (a.check > 0) {
    Progress progress("check", "samples", a.check, a.quiet);
    report.check = check.finish([&](int done) { progress.update(done); });
    progress.finish();
    report.checked = true;
  }
  fmt::print(json.is_stdout() ? stderr : stdout, "{}", report_text(report));
  if (json.wanted()) json.write(report_json(report));
  if (json.wanted() && !json.is_stdout()) fmt::print("JSON: {}\n", json.path());
  if (report.interrupted) return 130;
  tell_of_dump(a, report.totals.steps);
  if (report.compared && report.options.layer.deterministic && different_outputs(report) > 0) return 1;
  return report.checked && !report.check.passed ? 1 : 0;
}

}  // namespace

void add_run_command(CLI::App& app, int& exit_code) {
  auto a = std::make_shared<RunArguments>();
  CLI::App* c = app.add_subcommand(
      "run", "Replay a request trace through a stack of attention layers and check samples against float64");
  c->footer(
      "With no option: the first 16 requests of the bundled trace, lengths x 0.15, through the tiny preset, 8 samples "
      "checked.\n"
      "Exit status: 0 done and checks passed (or --check 0), 1 a check failed or nothing was checked, 2 bad input, 130 "
      "interrupted.");
  c->add_option("--model", a->model,
                "Preset (v4-flash, v4-pro, tiny) or a config.json (default: that of --weights, else tiny)");
  c->add_option("--weights", a->weights,
                "Checkpoint: a folder with safetensors, or one file (default: random weights of --seed)");
  c->add_option(
       "--fp8-weights", a->fp8_weights,
       "The checkpoint's FP8 weights: on keeps them (on a GPU with FP8 inputs), off dequantises them, auto keeps "
       "them on a CPU and where cuBLASLt multiplies them")
      ->check(one_of({"auto", "on", "off"}))
      ->capture_default_str();
  c->add_option("--layers", a->layers,
                "N: the first N layers; a list has a comma: 0,2,3 or 3, (default: all decoder layers)");
  c->add_option("--trace", a->trace,
                "Request trace, JSON Lines: timestamp (ms), input_length, output_length (default: bundled slice)");
  c->add_option("--max-requests", a->max_requests,
                "Only the first N requests (default: 16 of the bundled slice, all of a file)")
      ->check(whole(1));
  c->add_option("--scale-lengths", a->scale_lengths,
                "Factor on prompt and output lengths (default: 0.15 for the bundled slice, 1 for a file)")
      ->check(real(1e-9, 1e3));
  c->add_option("--arrival-speed", a->arrival_speed,
                "Replay arrivals this many times faster than recorded, the first at once; 0: all at once")
      ->check(real(0, 1e9))
      ->capture_default_str();
  c->add_option("--clock", a->clock,
                "cpu: times are the process's CPU time by thread, for two runs on a machine that others use, too")
      ->check(one_of({"wall", "cpu"}))
      ->capture_default_str();
  c->add_option("--max-batched-tokens", a->max_batched_tokens, "Tokens of a step")
      ->check(whole(1, 1 << 20))
      ->capture_default_str();
  c->add_option("--max-seqs", a->max_seqs, "Requests in flight")->check(whole(1, 1 << 16))->capture_default_str();
  c->add_option("--kv-blocks", a->kv_blocks,
                "Blocks of the KV pool (default: enough for max-seqs of the longest, at most 4 GiB; with "
                "--prefix-cache 4 GiB)")
      ->check(whole(1, std::int64_t{1} << 31));
  c->add_option("--kv-bytes", a->kv_bytes, "Bytes of the KV pool in place of --kv-blocks, e.g. 500M or 2GB");
  c->add_flag("--prefix-cache", a->prefix_cache,
              "Begin requests with prefixes that earlier ones computed, by the trace's hash_ids");
  c->add_option("--prefix-retention", a->prefix_retention,
                "Tokens between the places where a prefix can end, a multiple of 256; the end of a prompt is one, too")
      ->check(whole(1, std::int64_t{1} << 40))
      ->capture_default_str();
  c->add_flag("--prefix-compare", a->prefix_compare,
              "Replay the trace without the prefix cache first and report the times of both");
  c->add_option("--front-end", a->front_end, "flashmla, flashinfer, sm120, auto, or one of upstream's backend names")
      ->capture_default_str();
  c->add_flag("--strict", a->strict, "Refuse what upstream's kernels of that front-end refuse, with its texts");
  c->add_flag("--gather-prefill", a->gather_prefill,
              "flashmla: prefills copy their rows into a bf16 workspace first, as upstream does");
  c->add_option("--cache-dtype", a->cache_dtype,
                "fp8_ds_mla, bf16, fp8_per_tensor (queries e4m3 too), auto, or upstream's names: bfloat16, fp8, "
                "fp8_e4m3, fp8_inc (default: the "
                "front-end's: bf16 with flashinfer, else fp8_ds_mla)");
  c->add_option("--index-dtype", a->index_dtype, "Rows of the index cache: fp8 or mxfp4")->capture_default_str();
  c->add_flag("--hadamard", a->hadamard, "Walsh-Hadamard transform on both sides of the indexer");
  c->add_option("--index-topk-freq", a->index_topk_freq,
                "Of N C4A layers in a row the first chooses entries, the others reuse them (default: the model's)")
      ->check(whole(1, 1 << 20));
  c->add_option("--index-topk-pattern", a->index_topk_pattern,
                "Or layer by layer: a letter for each C4A layer that runs, F chooses entries, S takes the last choice");
  c->add_option("--output-projection", a->output_projection,
                "bf16; fp8: E4M3 outputs with fp32 scales; fp8-ue8m0: with packed UE8M0 scales")
      ->check(one_of({"bf16", "fp8", "fp8-ue8m0"}))
      ->capture_default_str();
  c->add_option("--precision", a->precision, "bf16, or f32: float32 activations and caches")
      ->check(one_of({"bf16", "f32"}))
      ->capture_default_str();
  c->add_option("--kv-scale", a->kv_scale, "Scale of fp8_per_tensor rows, for layers whose checkpoint has none")
      ->check(real(1e-6, 1e6))
      ->capture_default_str();
  c->add_option("--q-scale", a->q_scale, "Scale of e4m3 queries, for layers whose checkpoint has none")
      ->check(real(1e-6, 1e6))
      ->capture_default_str();
  c->add_option("--speculative", a->speculative, "Draft tokens a decode step verifies")
      ->check(whole(0, 64))
      ->capture_default_str();
  c->add_option("--draft-acceptance", a->acceptance, "Share of drafts that the seeded coin accepts")
      ->check(real(0, 1))
      ->capture_default_str();
  c->add_flag("--adaptive-speculation", a->adaptive_speculation,
              "Draft as many tokens as a request's last step suggests, at most --speculative");
  c->add_option("--check", a->check, "Samples (request, token, layer) recomputed in float64; 0: none")
      ->check(whole(0, 100000))
      ->capture_default_str();
  c->add_option("--dump", a->dump,
                "Record every op of one step as case files in this folder, which must hold none yet, for smla verify");
  c->add_option("--dump-step", a->dump_step, "Which step, counted from 1")->check(whole(1))->capture_default_str();
  c->add_option("--plant-error", a->plant_error, "Plant a fault (position, block or rope) to see the check fail")
      ->check(one_of({"position", "block", "rope"}));
  c->add_option("--device", a->device, "Where layers and caches are: cpu or cuda")
      ->check(one_of({"cpu", "cuda"}))
      ->capture_default_str();
  c->add_option("--tp", a->tensor_parallel, "Ranks that share out heads, a thread each; cuda: on GPUs 0, 1, 2, ...")
      ->check(whole(1, 1024))
      ->capture_default_str();
  c->add_option("--cp", a->context_parallel, "Ranks that share out compressed and index rows; with --tp N * M ranks")
      ->check(whole(1, 1024))
      ->capture_default_str();
  c->add_flag("--no-graphs", a->no_graphs,
              "cuda: queue every decode step anew instead of launching recorded CUDA graphs");
  c->add_option("--max-graphs", a->max_graphs,
                "cuda: recorded graphs that are kept; the one launched longest ago goes first")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))
      ->capture_default_str();
  c->add_option("--graph-memory", a->graph_memory, "cuda: MiB of the GPU's memory that recorded graphs may keep")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 24))
      ->capture_default_str();
  c->add_flag("--stage-times", a->stage_times, "cuda: time the stages; each is waited for, and no graphs run");
  c->add_option("--threads", a->threads, "CPU threads; 0: all")->check(whole(0, 4096))->capture_default_str();
  c->add_option("--seed", a->seed, "Seed of weights, inputs, drafts and samples")
      ->check(seed_number())
      ->capture_default_str();
  add_impl_option(c, a->implementations);
  c->add_flag("--deterministic", a->deterministic, "A token's result does not depend on the batch around it");
  c->add_option("--json", a->json,
                "Also write the report to FILE as JSON; - writes JSON alone to stdout, the report to stderr");
  c->add_flag("-q,--quiet", a->quiet, "No progress");
  c->callback([a, c, &exit_code] {
    check_combinations(*c, *a);
    exit_code = run(*a);
  });
}

}  // namespace smla
