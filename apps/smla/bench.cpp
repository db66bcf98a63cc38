#include "bench/bench.h"

#include <fmt/format.h>
#include <omp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <memory>
#include <sstream>

#include "accuracy.h"
#include "arguments.h"
#include "bench/device_machine.h"
#include "bench_compare.h"
#include "commands.h"
#include "device/gpu.h"
#include "ops/decision.h"
#include "output_file.h"
#include "serve.h"
#include "sparsemla/error.h"
#include "sparsemla/front_end.h"

namespace smla {

namespace {

constexpr double kMachineSeconds = 1.0;  // less for runs that measure little
constexpr double kGpuSeconds = 0.1;
constexpr std::int64_t kGpuRuns = 60;

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
  std::vector<std::int64_t> heads;
  std::string format = "table";
  std::string json;
  std::string csv;
  std::string output;
  bool quiet = false;
  bench::Options options;
};

bench::Options bench_options(const BenchArguments& a) {
  bench::Options o = a.options;
  o.model = load_model_config(a.model);
  o.rows = &cache_rows(FrontEnd::kFlashMla, a.cache_dtype);
  o.index_rows = &row_format("index_" + a.index_dtype);
  o.measure.clock = a.clock == "cpu" ? bench::Clock::kCpu : bench::Clock::kWall;
  o.measure.threads = resolve_threads(o.threads);
  o.device = device_from_name(a.device);
  if (o.device == DeviceKind::kCuda) {
    if (const std::string refusal = device::needs_gpu(device::current_gpu()); !refusal.empty())
      throw Unsupported("bench: --device cuda: " + refusal);
    if (!a.heads.empty()) o.head_counts = a.heads;
    if (a.heads.size() == 1) o.heads = a.heads[0];
    for (const std::int64_t heads : o.head_counts) {
      if (heads < 1)
        throw InvalidArgument("bench: got --heads " + std::to_string(heads) + ", expected 1 to 128 with --device cuda");
    }
  } else {
    if (a.heads.size() > 1) throw InvalidArgument("bench: got several --heads, expected one with --device cpu");
    o.heads = a.heads.empty() ? 0 : a.heads[0];
  }
  o.decode = a.only != "prefill";
  o.prefill = a.only != "decode";
  o.ratios.clear();
  for (const std::string& kind : a.kinds) o.ratios.push_back(kind == "swa" ? 1 : (kind == "c4a" ? 4 : 128));
  o.implementations = implementations_of(a.implementations, o.device);
  return o;
}

/// The groups that were asked for, in their own order; all of them when none was. "machine" alone: none.
std::vector<bench::Group> chosen_groups(const std::vector<std::string>& what, std::span<const bench::Group> groups) {
  std::vector<bench::Group> out;
  std::string names = "machine";
  for (const bench::Group& group : groups) {
    names += fmt::format(", {}", group.name);
    if (what.empty() || std::ranges::find(what, group.name) != what.end()) out.push_back(group);
  }
  for (const std::string& name : what) {
    if (name != "machine" && std::ranges::find(groups, name, &bench::Group::name) == groups.end()) {
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
  report.command = command_line();
  report.clock = options.measure.clock == bench::Clock::kCpu ? "cpu" : "wall";
  const bool gpu = options.device == DeviceKind::kCuda;
  const auto ceilings = [&] {
    return gpu ? bench::measure_gpu(options.measure)
               : bench::measure_machine(options.threads, seconds, options.measure.clock);
  };
  say("ceilings of this machine");
  report.before = ceilings();
  for (const bench::Group& group : groups) {
    say(fmt::format("{}: {}", group.name, group.help));
    group.run(options, [&](const bench::Row& row) {
      report.rows.push_back(row);
      const std::string verdict = row.check.failure.empty() ? "" : " WRONG: " + row.check.failure;
      if (!row.skipped.empty()) {
        say(fmt::format("  {} ({}): SKIP {}", row.name, row.shape, row.skipped));
      } else {
        say(fmt::format("  {} ({}): {:.4g} {}{}", row.name, row.shape, row.time.median * (gpu ? 1e6 : 1e3),
                        gpu ? "us" : "ms", verdict));
      }
    });
  }
  report.after = groups.empty() ? report.before : ceilings();
  return report;
}

std::string report_as(const std::string& format, const BenchReport& report) {
  if (format == "json") return bench_json(report);
  return format == "csv" ? bench_csv(report) : bench_table(report);
}

/// --json and --csv were flags once: a group behind them is what to measure, not a file.
void check_no_group(const char* option, const std::string& path, std::span<const bench::Group> groups) {
  if (path == "machine" || std::ranges::find(groups, path, &bench::Group::name) != groups.end())
    throw InvalidArgument(
        fmt::format("{}: got {}, which is something to measure, expected a FILE, or - for stdout", option, path));
}

/// @throws InvalidArgument for an option of shapes that none of the groups reads.
void check_shapes(const CLI::App& command, const std::vector<bench::Group>& groups,
                  std::span<const bench::Group> known) {
  const auto reads = [](const bench::Group& group, std::string_view option) {
    return (std::string(group.options) + " ").find(std::string(option) + " ") != std::string::npos;
  };
  for (const char* option :
       {"--kind", "--batch", "--tokens", "--context", "--keys", "--prefill", "--chunk", "--heads", "--pool", "--next-n",
        "--grid", "--layer", "--cache-dtype", "--index-dtype", "--fp8-weights", "--nvfp4-weights", "--only"}) {
    const auto reads_it = [&](const bench::Group& group) { return reads(group, option); };
    std::string chosen;
    std::string readers;
    for (const bench::Group& group : groups) chosen += fmt::format("{}{}", chosen.empty() ? "" : ", ", group.name);
    for (const bench::Group& group : known) {
      if (reads_it(group)) readers += fmt::format("{}{}", readers.empty() ? "" : " or ", group.name);
    }
    refuse_useless(command, option, std::ranges::none_of(groups, reads_it),
                   "on " + (chosen.empty() ? "machine" : chosen), readers.empty() ? "none" : readers);
  }
}

int run_bench(const CLI::App& command, const BenchArguments& a) {
  const bool gpu = device_from_name(a.device) == DeviceKind::kCuda;
  const std::span<const bench::Group> known = gpu ? bench::device_groups() : bench::groups();
  const std::vector<bench::Group> groups = chosen_groups(a.what, known);
  check_shapes(command, groups, known);
  refuse_useless(command, "--nvfp4-weights", a.options.fp8_weights, "beside --fp8-weights", "one of the two");
  check_no_group("--json", a.json, known);
  check_no_group("--csv", a.csv, known);
  const bench::Options options = bench_options(a);
  OutputFile output("--output", a.output);
  OutputFile json("--json", a.json);
  OutputFile csv("--csv", a.csv);
  if (options.threads > 0) omp_set_num_threads(options.threads);
  const BenchReport report = run_groups(groups, options, a.quiet);
  if (output.wanted()) {
    output.write(report_as(a.format, report));
  } else if (!json.is_stdout() && !csv.is_stdout()) {
    fmt::print("{}", report_as(a.format, report));
  }
  if (json.wanted()) json.write(bench_json(report));
  if (csv.wanted()) csv.write(bench_csv(report));
  return report.wrong() > 0 ? kExitMismatch : kExitPass;
}

/// @throws InvalidArgument for an option that has no effect beside the others.
void check_bench_combinations(const CLI::App& command, const BenchArguments& a) {
  const std::string device = "beside --device " + a.device;
  for (const char* option : {"--grid", "--layer", "--pool", "--next-n"})
    refuse_useless(command, option, a.device != "cuda", device, "--device cuda");
  refuse_useless(command, "--clock", a.device == "cuda" && a.clock == "cpu", device, "--device cpu");
  refuse_useless(command, "--csv", a.json == "-" && a.csv == "-", "beside --json, both to stdout",
                 "one of the two there");
  for (const auto& [option, path] : {std::pair("--json", &a.json), std::pair("--csv", &a.csv)})
    refuse_useless(command, "--format", *path == "-" && a.output.empty(), fmt::format("beside {} -", option),
                   "one of the two");
}

/// On a GPU an option that is not given means its grid's values, and time is measured in smaller portions.
void use_gpu_defaults(const CLI::App& command, bench::Options& o) {
  if (command.count("--batch") == 0) o.batches.clear();
  if (command.count("--tokens") == 0) o.tokens.clear();
  if (command.count("--context") == 0) o.contexts.clear();
  if (command.count("--prefill") == 0) o.prefills.clear();
  if (command.count("--keys") > 0) o.key_counts = o.keys;
  if (command.count("--min-time") == 0) o.measure.min_seconds = kGpuSeconds;
  if (command.count("--min-runs") == 0) o.measure.min_runs = kGpuRuns;
}

void add_shape_options(CLI::App* command, BenchArguments& a) {
  bench::Options& o = a.options;
  const auto count = whole(1, std::int64_t{1} << 24);
  const auto list = [&](const char* name, std::vector<std::int64_t>& values, const char* help) {
    command->add_option(name, values, help)
        ->delimiter(',')
        ->allow_extra_args(false)
        ->check(count)
        ->capture_default_str();
  };
  list("--batch", o.batches, "Decoding requests of a step, one token each");
  list("--tokens", o.tokens, "Prefill tokens of a step");
  list("--context", o.contexts, "Tokens a decoding request has behind it");
  list("--keys", o.keys, "Keys a query attends to; attention");
  list("--prefill", o.prefills, "Lengths of whole prompts; layer");
  command->add_option("--chunk", o.chunk, "Tokens of a prefill step; layer")->check(count)->capture_default_str();
  command
      ->add_option("--heads", a.heads,
                   "Query heads, a slice of a tensor-parallel model for example; 0: the model's. cuda: a list (64,128)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(whole(0, 128));
  list("--pool", o.pools, "cuda: entries that a prefill chooses from");
  list("--next-n", o.next_n, "cuda: queries of a decoding request");
  command->add_option("--grid", o.grids, "cuda: grids of a group by name, decode or prefill for example (default: all)")
      ->delimiter(',')
      ->allow_extra_args(false);
  command
      ->add_option("--layer", o.layers,
                   "cuda: decode attention of these alone: swa, c4a_32k, c128_8k, c128_32k, c128_128k, c128_1M")
      ->delimiter(',')
      ->allow_extra_args(false);
  command->add_option("--threads", o.threads, "CPU threads; 0: all")->check(whole(0, 4096))->capture_default_str();
  command->add_option("--min-time", o.measure.min_seconds, "Seconds to measure each row at least, after a warm-up")
      ->check(real(0.0, 3600.0))
      ->capture_default_str();
  command->add_option("--min-runs", o.measure.min_runs, "Calls to measure for each row at least")
      ->check(whole(1, 1 << 20))
      ->capture_default_str();
}

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) throw IoError(path + " could not be read");
  return text.str();
}

struct CompareArguments {
  std::vector<std::string> files;
  bool peers = false;
};

int run_compare(const CompareArguments& a) {
  if (a.files.size() != (a.peers ? 1U : 2U)) {
    throw InvalidArgument(
        fmt::format("bench compare: got {} files, expected two, or one with --peers", a.files.size()));
  }
  const BenchReport first = parse_report(a.files[0], text_of(a.files[0]));
  bool voided = false;
  if (a.peers) {
    fmt::print("{}", peers_table(first, voided));
  } else {
    const BenchComparison comparison = compare_reports(first, parse_report(a.files[1], text_of(a.files[1])));
    voided = !comparison.void_because.empty();
    fmt::print("{}", comparison_table(comparison));
  }
  return voided ? kExitMismatch : kExitPass;
}

void add_compare_command(CLI::App* bench, int& exit_code) {
  auto a = std::make_shared<CompareArguments>();
  CLI::App* command = bench->add_subcommand("compare", "Two runs row by row, or one beside other people's kernels");
  command->add_option("FILE", a->files, "What `smla bench --json FILE` wrote")->required();
  command->add_flag("--peers", a->peers, "One file: beside the measurements in data/peers");
  command->footer(
      "Ceilings that differ by more than 5 % make a comparison VOID.\nExit status: 0 compared, 1 VOID, 2 wrong usage "
      "or a bad file.");
  command->callback([a, &exit_code] { exit_code = run_compare(*a); });
}

}  // namespace

void add_bench_command(CLI::App& app, int& exit_code) {
  auto a = std::make_shared<BenchArguments>();
  CLI::App* command = app.add_subcommand("bench", "Measure ops and layers against this machine's own ceilings");
  std::string groups =
      "machine     the ceilings alone: fp32 and bf16 arithmetic, reading memory; they come with every run\n";
  for (const bench::Group& group : bench::groups()) groups += fmt::format("  {:<11} {}\n", group.name, group.help);
  std::string device_groups =
      "machine     the ceilings alone: a bf16 product, copying, gathering rows, mma.sync, the timer; they come with "
      "every run\n";
  for (const bench::Group& group : bench::device_groups())
    device_groups += fmt::format("  {:<11} {}\n", group.name, group.help);
  command->add_option("WHAT", a->what, "What to measure, see below (default: everything)");
  command->add_option("--model", a->model, "Preset (v4-flash, v4-pro, tiny) or a config.json")->capture_default_str();
  command->add_option("--kind", a->kinds, "Layer kinds")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(one_of({"swa", "c4a", "c128a"}))
      ->capture_default_str();
  add_shape_options(command, *a);
  command
      ->add_option("--cache-dtype", a->cache_dtype, "Cache rows: fp8_ds_mla, bf16 or fp8_per_tensor (queries e4m3 too)")
      ->capture_default_str();
  command
      ->add_option("--index-dtype", a->index_dtype,
                   "Index rows: fp8, mxfp4, or the end of another index_ format's name")
      ->capture_default_str();
  command->add_flag("--fp8-weights", a->options.fp8_weights,
                    "E4M3 weights with scales of 128 x 128 blocks, where FP8 checkpoints have them; layer, projection");
  command->add_flag("--nvfp4-weights", a->options.nvfp4_weights,
                    "NVFP4 weights where FP8 checkpoints have FP8 ones; layer, projection");
  command->add_option("--device", a->device, "Where to run")->capture_default_str();
  add_impl_option(command, a->implementations);
  command->add_option("--only", a->only, "Measure decode or prefill alone")->check(one_of({"decode", "prefill"}));
  command
      ->add_option("--clock", a->clock,
                   "wall, or cpu: processor time over threads, to compare kernels on a machine that is not quiet")
      ->check(one_of({"wall", "cpu"}))
      ->capture_default_str();
  command->add_option("--format", a->format, "What to write")
      ->check(one_of({"table", "csv", "json"}))
      ->capture_default_str();
  command->add_option("--output", a->output, "Write to this file instead of stdout");
  command->add_option("--json", a->json, "Also write JSON to FILE; - writes JSON alone to stdout");
  command->add_option("--csv", a->csv, "Also write CSV to FILE; - writes CSV alone to stdout");
  command->add_flag("-q,--quiet", a->quiet, "No progress on stderr");
  command->footer("WHAT:\n  " + groups + "\nWHAT with --device cuda:\n  " + device_groups +
                  "\nTimes are medians; p10 and p90 show the spread. The ceilings are measured before and after the "
                  "rows: where they differ by more\n"
                  "than 5 %, something else was running. GFLOP/s and GB/s count what the formula needs, once, not what "
                  "an implementation does.\n"
                  "--device cuda: times are those of CUDA graph replays after a sweep of L2; some results of each cell "
                  "are computed again.\n"
                  "Exit status: 0 measured, 1 a result is not right, 2 wrong usage.");
  add_compare_command(command, exit_code);
  add_serve_command(command, exit_code);
  add_accuracy_command(command, exit_code);
  command->callback([a, command, &exit_code] {
    if (!command->get_subcommands().empty()) return;
    check_bench_combinations(*command, *a);
    if (a->device == "cuda") use_gpu_defaults(*command, a->options);
    exit_code = run_bench(*command, *a);
  });
}

}  // namespace smla
