#include "engine/soak.h"

#include <fmt/format.h>
#include <omp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <thread>

#include "arguments.h"
#include "bench/gpu.h"
#include "commands.h"
#include "output_file.h"
#include "progress.h"
#include "run_arguments.h"
#include "run_combinations.h"
#include "run_options.h"
#include "run_report.h"
#include "soak_report.h"

namespace smla {

namespace {

constexpr double kBundledScale = 0.03;
constexpr std::int64_t kBundledRequests = 40;
constexpr double kTold = 10;  // seconds between two lines of progress

volatile std::sig_atomic_t g_interrupted = 0;

struct SoakArguments : RunArguments {
  SoakArguments() {
    arrival_speed = 2;
    max_batched_tokens = 64;
    max_seqs = 8;
    speculative = 3;
    prefix_retention = 256;
    deterministic = true;
  }
  double seconds = 60;
  std::int64_t arrivals = 0;
  double cancel = 0.1;
  std::int64_t warm_up_steps = SoakOptions{}.warm_up_steps;
  double memory_growth = SoakOptions{}.memory_growth;
  double stall_seconds = SoakOptions{}.stall_seconds;
  bool no_prefix_cache = false;
};

/// Ends the process when a step does not: no exception can come out of one that hangs.
class Watchdog {
 public:
  explicit Watchdog(double seconds) : seconds_(seconds), thread_([this] { watch(); }) {}
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// A step has ended; from here on the next one is waited for.
  void alive() {
    {
      const std::lock_guard lock(mutex_);
      last_ = std::chrono::steady_clock::now();
    }
    changed_.notify_all();
  }
  /// Nothing is waited for until the next call of alive.
  void rest() {
    const std::lock_guard lock(mutex_);
    last_.reset();
  }

 private:
  void watch() {
    std::unique_lock lock(mutex_);
    while (!ends_) {
      if (!last_) {
        changed_.wait(lock);
        continue;
      }
      const auto until = *last_ + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                      std::chrono::duration<double>(seconds_));
      if (std::chrono::steady_clock::now() >= until) {
        print_error(fmt::format("soak: FAIL: a step has not ended for {} s", seconds_));
        std::_Exit(kExitMismatch);
      }
      changed_.wait_until(lock, until);
    }
  }

  double seconds_;
  std::optional<std::chrono::steady_clock::time_point> last_;  ///< none: at rest
  bool ends_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread thread_;
};

/// One and a half times what the longest request needs, so that requests are preempted and prefixes evicted.
std::int64_t scarce_blocks(const EngineOptions& o, const std::vector<RequestSpec>& specs) {
  const KvLayout layout = engine_layout(o);
  std::int64_t longest = 1;
  for (const RequestSpec& s : specs) longest = std::max(longest, blocks_needed(layout, s, o.max_batched_tokens));
  return longest + longest / 2;
}

/// The outputs that requests have alone.
std::map<std::int64_t, std::uint64_t> run_alone(const SoakArguments& a, const RunReport& report,
                                                const std::vector<RequestSpec>& specs, Watchdog& watchdog) {
  Progress progress("soak: alone", "requests", static_cast<std::int64_t>(specs.size()), a.quiet);
  auto alone = digests_alone(report.options, report.parallel, specs, [&](std::int64_t done) {
    watchdog.alive();
    progress.update(done);
    if (g_interrupted != 0) throw InvalidArgument("soak: interrupted before the load began");
  });
  progress.finish();
  return alone;
}

int run_soak(const SoakArguments& a) {
  if (a.threads > 0) omp_set_num_threads(a.threads);
  OutputFile json("--json", a.json);
  RunReport report;
  std::vector<RequestSpec> specs = read_requests(a, report);
  RunArguments plain = static_cast<const RunArguments&>(a);
  plain.prefix_cache = false;  // which would take all memory there is
  report.options = engine_options(plain, specs);
  report.model = model_label(a, report.options);
  report.parallel = parallel_options(a);
  std::erase_if(specs, [&](const RequestSpec& s) { return s.positions() > report.options.max_model_len; });
  if (specs.empty()) throw InvalidArgument("--trace: got no request that fits the model, expected one at least");
  if (a.kv_blocks == 0 && a.kv_bytes.empty()) report.options.num_blocks = scarce_blocks(report.options, specs);
  if (a.prefix_cache) report.options.prefix_cache = PrefixCacheOptions{.retention_interval = a.prefix_retention};

  SoakOptions options{.seconds = a.seconds,
                      .arrivals = a.arrivals,
                      .cancelled_share = a.cancel,
                      .warm_up_steps = a.warm_up_steps,
                      .memory_growth = a.memory_growth,
                      .stall_seconds = a.stall_seconds,
                      .seed = a.seed};
  if (report.options.layer.device == DeviceKind::kCuda) {
    options.device_bytes = [] {
      return static_cast<std::int64_t>(bench::gpu_facts().memory_bytes - bench::gpu_free_bytes());
    };
  }
  if (!a.quiet)
    fmt::print(stderr, "smla soak: {}, {}, {} requests over and over for {} s; each of them alone first\n",
               report.model, layers_text(report.options), specs.size(), a.seconds);
  const auto previous = std::signal(SIGINT, [](int) { g_interrupted = 1; });
  Watchdog watchdog(a.stall_seconds);
  const auto alone = run_alone(a, report, specs, watchdog);
  watchdog.rest();
  std::erase_if(specs, [&](const RequestSpec& s) { return !alone.contains(s.id); });
  if (specs.empty())
    throw InvalidArgument(
        fmt::format("--kv-blocks: got {} blocks, expected enough for one request", report.options.num_blocks));

  ParallelEngine engine(report.options, report.parallel);
  double told = 0;
  const SoakReport seen = soak(engine, report.options, specs, alone, options, [&](const SoakReport& r) {
    watchdog.alive();
    if (!a.quiet && r.wall_seconds - told >= kTold) {
      told = r.wall_seconds;
      fmt::print(stderr,
                 "smla soak: {:.0f} of {:.0f} s, {} finished, {} cancelled, {} preemptions, {} outputs differ, "
                 "{:.1f} MiB\n",
                 told, a.seconds, r.finished, r.cancelled, r.totals.preemptions, r.different.size(),
                 static_cast<double>(r.host.last) / (1 << 20));
    }
    return g_interrupted == 0;
  });
  std::signal(SIGINT, previous);
  fmt::print(json.is_stdout() ? stderr : stdout, "{}", soak_text(report, options, seen));
  if (json.wanted()) json.write(soak_json(report, options, seen));
  if (json.wanted() && !json.is_stdout()) fmt::print("JSON: {}\n", json.path());
  if (seen.interrupted) return 130;
  return soak_passed(seen, report.options, options) ? kExitPass : kExitMismatch;
}

}  // namespace

void add_soak_command(CLI::App& app, int& exit_code) {
  auto a = std::make_shared<SoakArguments>();
  CLI::App* c =
      app.add_subcommand("soak", "Hold the engine under load and check outputs, memory, blocks, graphs and progress");
  c->footer(
      "With no option: a minute of the bundled trace over and over, lengths x 0.03, through the tiny preset, with "
      "drafts, a prefix cache, cancellations, and too few blocks for all. Each request runs alone first; every time "
      "it finishes under load its output must be the same bits. Memory is judged after 1000 steps of warm-up.\n"
      "Exit status: 0 all checks passed, 1 one failed or a step hangs, 2 bad input, 130 interrupted.");
  c->add_option("--seconds", a->seconds, "Requests come for so long; then those that are there end")
      ->check(real(0.1, 1e7))
      ->capture_default_str();
  c->add_option("--arrivals", a->arrivals, "Or until so many have come, whatever is first; 0: no such end")
      ->check(whole(0))
      ->capture_default_str();
  c->add_option("--cancel", a->cancel, "Share of requests that are cancelled, at a random step")
      ->check(real(0, 1))
      ->capture_default_str();
  c->add_option("--warm-up-steps", a->warm_up_steps,
                "Steps before memory is judged, at least; a quarter of the time and every request once belong to it")
      ->check(whole(0))
      ->capture_default_str();
  c->add_option("--memory-growth", a->memory_growth, "Share by which memory may grow once the warm-up is over")
      ->check(real(0, 100))
      ->capture_default_str();
  c->add_option("--stall-seconds", a->stall_seconds, "The longest that a request, or a step, may take")
      ->check(real(1e-6, 1e7))
      ->capture_default_str();
  add_engine_options(c, *a);
  c->get_option("--max-requests")->description("Only the first N requests (default: all)");
  c->get_option("--scale-lengths")
      ->description("Factor on prompt and output lengths (default: 0.03 for the bundled slice, 1 for a file)");
  c->get_option("--kv-blocks")
      ->description(
          "Blocks of the KV pool (default: one and a half times what the longest request needs, for preemptions)");
  c->add_option("--prefix-retention", a->prefix_retention,
                "Tokens between the places where a prefix can end, a multiple of 256")
      ->check(whole(1, std::int64_t{1} << 40))
      ->capture_default_str();
  c->add_flag("--no-prefix-cache", a->no_prefix_cache, "Without prefix cache, as always beside --cp");
  c->callback([a, c, &exit_code] {
    a->prefix_cache = !a->no_prefix_cache && a->context_parallel == 1;
    refuse_useless(*c, "--prefix-retention", !a->prefix_cache, "without a prefix cache",
                   "neither --no-prefix-cache nor --cp beside it");
    check_combinations(*c, *a);
    if (a->trace.empty()) {
      if (!a->scale_lengths) a->scale_lengths = kBundledScale;
      if (a->max_requests == 0) a->max_requests = kBundledRequests;
    }
    exit_code = run_soak(*a);
  });
}

}  // namespace smla
