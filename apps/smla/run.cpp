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
#include "run_options.h"
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
  add_engine_options(c, *a);
  c->add_option("--clock", a->clock,
                "cpu: times are the process's CPU time by thread, for two runs on a machine that others use, too")
      ->check(one_of({"wall", "cpu"}))
      ->capture_default_str();
  c->add_flag("--prefix-cache", a->prefix_cache,
              "Begin requests with prefixes that earlier ones computed, by the trace's hash_ids");
  c->add_option("--prefix-retention", a->prefix_retention,
                "Tokens between the places where a prefix can end, a multiple of 256; the end of a prompt is one, too")
      ->check(whole(1, std::int64_t{1} << 40))
      ->capture_default_str();
  c->add_flag("--prefix-compare", a->prefix_compare,
              "Replay the trace without the prefix cache first and report the times of both");
  c->add_option("--check", a->check, "Samples (request, token, layer) recomputed in float64; 0: none")
      ->check(whole(0, 100000))
      ->capture_default_str();
  c->add_option("--dump", a->dump,
                "Record every op of one step as case files in this folder, which must hold none yet, for smla verify");
  c->add_option("--dump-step", a->dump_step, "Which step, counted from 1")->check(whole(1))->capture_default_str();
  c->add_flag("--stage-times", a->stage_times, "cuda: time the stages; each is waited for, and no graphs run");
  c->add_flag("--deterministic", a->deterministic, "A token's result does not depend on the batch around it");
  c->callback([a, c, &exit_code] {
    check_combinations(*c, *a);
    exit_code = run(*a);
  });
}

}  // namespace smla
