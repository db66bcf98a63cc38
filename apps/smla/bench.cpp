#include "bench/bench.h"

#include <fmt/format.h>
#include <omp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <memory>

#include "bench_report.h"
#include "commands.h"
#include "ops/registry.h"
#include "sparsemla/error.h"
#include "sparsemla/front_end.h"

namespace smla {

namespace {

constexpr double kMachineSeconds = 1.0;  // less for runs that measure little

/// The options of `smla bench` as they were typed.
struct BenchArguments {
  std::vector<std::string> what;
  std::string model = "v4-flash";
  std::vector<std::string> kinds{"swa", "c4a", "c128a"};
  std::string cache_dtype = "fp8_ds_mla";
  std::string index_dtype = "fp8";
  std::string device = "cpu";
  std::string only;
  std::string clock = "wall";
  std::vector<std::string> implementations;
  std::string format = "table";
  std::string output;
  bool quiet = false;
  bench::Options options;
};

bench::Options bench_options(const BenchArguments& a) {
  bench::Options o = a.options;
  o.model = load_model_config(a.model);
  o.rows = &cache_rows(FrontEnd::kFlashMla, a.cache_dtype);
  o.index_rows = a.index_dtype == "mxfp4" ? &index_mxfp4_rows() : &index_fp8_rows();
  o.measure.clock = a.clock == "cpu" ? bench::Clock::kCpu : bench::Clock::kWall;
  o.measure.threads = resolve_threads(o.threads);
  o.device = device_from_name(a.device);
  if (o.device != DeviceKind::kCpu) throw Unsupported("bench: got --device " + a.device + ", expected cpu: there are no kernels for it yet");
  o.decode = a.only != "prefill";
  o.prefill = a.only != "decode";
  o.ratios.clear();
  for (const std::string& kind : a.kinds) o.ratios.push_back(kind == "swa" ? 1 : (kind == "c4a" ? 4 : 128));
  for (const std::string& choice : a.implementations) {
    const std::size_t equals = choice.find('=');
    if (equals == std::string::npos) {
      o.implementations["*"] = choice;
    } else {
      o.implementations[choice.substr(0, equals)] = choice.substr(equals + 1);
    }
  }
  return o;
}

/// The groups that were asked for, in their own order; all of them when none was. "machine" alone: none.
std::vector<bench::Group> chosen_groups(const std::vector<std::string>& what) {
  std::vector<bench::Group> out;
  std::string names = "machine";
  for (const bench::Group& group : bench::groups()) {
    names += fmt::format(", {}", group.name);
    if (what.empty() || std::ranges::find(what, group.name) != what.end()) out.push_back(group);
  }
  for (const std::string& name : what) {
    if (name != "machine" && std::ranges::find(bench::groups(), name, &bench::Group::name) == bench::groups().end()) {
      throw InvalidArgument("bench: got \"" + name + "\", expected " + names);
    }
  }
  return out;
}

BenchReport run_groups(const std::vector<bench::Group>& groups, const bench::Options& options, bool quiet) {
  const auto say = [&](const std::string& text) {
    if (!quiet) fmt::print(stderr, "smla bench: {}\n", text);
  };
  const double seconds = std::clamp(4 * options.measure.min_seconds, 0.05, kMachineSeconds);
  BenchReport report;
  report.model = options.model.name;
  report.clock = options.measure.clock == bench::Clock::kCpu ? "cpu" : "wall";
  say("ceilings of this machine");
  report.before = bench::measure_machine(options.threads, seconds, options.measure.clock);
  for (const bench::Group& group : groups) {
    say(fmt::format("{}: {}", group.name, group.help));
    group.run(options, [&](const bench::Row& row) {
      report.rows.push_back(row);
      say(fmt::format("  {} ({}): {:.4g} ms", row.name, row.shape, row.time.median * 1e3));
    });
  }
  report.after = groups.empty() ? report.before : bench::measure_machine(options.threads, seconds, options.measure.clock);
  return report;
}

void write(const BenchArguments& a, const std::string& text) {
  if (a.output.empty()) {
    fmt::print("{}", text);
    return;
  }
  std::ofstream file(a.output, std::ios::binary);
  file << text;
  file.flush();
  if (!file) throw IoError("--output: " + a.output + " could not be written");
}

int run_bench(const BenchArguments& a) {
  const std::vector<bench::Group> groups = chosen_groups(a.what);
  const bench::Options options = bench_options(a);
  if (options.threads > 0) omp_set_num_threads(options.threads);
  const BenchReport report = run_groups(groups, options, a.quiet);
  write(a, a.format == "json" ? bench_json(report) : (a.format == "csv" ? bench_csv(report) : bench_table(report)));
  return kExitPass;
}

void add_shape_options(CLI::App* command, bench::Options& o) {
  const auto count = CLI::Range(std::int64_t{1}, std::int64_t{1} << 24);
  const auto list = [&](const char* name, std::vector<std::int64_t>& values, const char* help) {
    command->add_option(name, values, help)->delimiter(',')->allow_extra_args(false)->check(count)->capture_default_str();
  };
  list("--batch", o.batches, "Decoding requests of a step, one token each");
  list("--tokens", o.tokens, "Prefill tokens of a step");
  list("--context", o.contexts, "Tokens a decoding request has behind it");
  list("--keys", o.keys, "Keys a query attends to; attention");
  list("--prefill", o.prefills, "Lengths of whole prompts; layer");
  command->add_option("--chunk", o.chunk, "Tokens of a prefill step; layer")->check(count)->capture_default_str();
  command->add_option("--heads", o.heads, "Query heads, a slice of a tensor-parallel model for example; 0: the model's")
      ->check(CLI::Range(0, 128))
      ->capture_default_str();
  command->add_option("--threads", o.threads, "CPU threads; 0: all")->check(CLI::Range(0, 4096))->capture_default_str();
  command->add_option("--min-time", o.measure.min_seconds, "Seconds to measure each row at least, after a warm-up")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  command->add_option("--min-runs", o.measure.min_runs, "Calls to measure for each row at least")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
}

}  // namespace

void add_bench_command(CLI::App& app, int& exit_code) {
  auto a = std::make_shared<BenchArguments>();
  CLI::App* command = app.add_subcommand("bench", "Measure ops and layers against this machine's own ceilings");
  std::string groups = "machine     the ceilings alone: fp32 and bf16 arithmetic, reading memory; they come with every run\n";
  for (const bench::Group& group : bench::groups()) groups += fmt::format("  {:<11} {}\n", group.name, group.help);
  command->add_option("WHAT", a->what, "What to measure, see below (default: everything)");
  command->add_option("--model", a->model, "Preset (v4-flash, v4-pro, tiny) or a config.json")->capture_default_str();
  command->add_option("--kind", a->kinds, "Layer kinds")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::IsMember({"swa", "c4a", "c128a"}))
      ->capture_default_str();
  add_shape_options(command, a->options);
  command->add_option("--cache-dtype", a->cache_dtype, "Cache rows: fp8_ds_mla, bf16 or fp8_per_tensor (queries e4m3 too)")->capture_default_str();
  command->add_option("--index-dtype", a->index_dtype, "Index rows")->check(CLI::IsMember({"fp8", "mxfp4"}))->capture_default_str();
  command->add_option("--device", a->device, "Where to run")->capture_default_str();
  command->add_option("--impl", a->implementations, "Force an implementation: NAME for every op that has it, or OP=NAME")->allow_extra_args(false);
  command->add_option("--only", a->only, "Measure decode or prefill alone")->check(CLI::IsMember({"decode", "prefill"}));
  command->add_option("--clock", a->clock, "wall, or cpu: processor time over threads, to compare kernels on a machine that is not quiet")
      ->check(CLI::IsMember({"wall", "cpu"}))
      ->capture_default_str();
  command->add_option("--format", a->format, "What to write")->check(CLI::IsMember({"table", "csv", "json"}))->capture_default_str();
  command->add_option("--output", a->output, "Write to this file instead of stdout");
  command->add_flag("-q,--quiet", a->quiet, "No progress on stderr");
  command->footer("WHAT:\n  " + groups +
                  "\nTimes are medians; p10 and p90 show the spread. The ceilings are measured before and after the rows: where they differ by more\n"
                  "than 5 %, something else was running. GFLOP/s and GB/s count what the formula needs, once, not what an implementation does.\n"
                  "Exit status: 0 measured, 2 wrong usage.");
  command->callback([a, &exit_code] { exit_code = run_bench(*a); });
}

}  // namespace smla
