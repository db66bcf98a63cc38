#include "bench/serve.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "arguments.h"
#include "bench/device_machine.h"
#include "commands.h"
#include "device/gpu.h"
#include "output_file.h"
#include "serve.h"
#include "sparsemla/error.h"
#include "sparsemla/front_end.h"

namespace smla {

namespace {

struct ServeArguments {
  std::string model = "v4-flash";
  std::string cache_dtype = "fp8_ds_mla";
  std::string index_dtype = "fp8";
  std::vector<std::int64_t> requests{1, 2, 4, 8, 16, 32, 64, 128};
  std::int64_t prompt = 8192;
  std::int64_t output = 8192;
  std::int64_t rounds = 4;
  std::int64_t heads = 0;
  std::vector<std::string> implementations;
  double min_seconds = 0.1;
  bool fp8_weights = false;
  bool nvfp4_weights = false;
  bool whole_stack = false;
  std::string json;
  bool quiet = false;
};

struct Line {
  std::int64_t requests = 0;
  bench::ServeResult result;
};

/// Sizes of decode batches to measure: powers of two up to the largest number of requests, and that.
std::vector<std::int64_t> batches_to(std::int64_t most) {
  std::vector<std::int64_t> out;
  for (std::int64_t b = 1; b < most; b *= 2) out.push_back(b);
  out.push_back(most);
  return out;
}

std::string table_of(const ServeArguments& a, const bench::Options& options, const bench::Machine& machine,
                     const std::vector<Line>& lines) {
  std::string stack;
  std::int64_t all = 0;
  for (const auto& [ratio, layers] : bench::layers_by_ratio(options.model)) {
    stack += fmt::format("{}{} {}", stack.empty() ? "" : ", ", layers, bench::kind_name(ratio));
    all += layers;
  }
  std::string out = fmt::format("GPU {}, driver {}, CUDA {}\n", machine.gpu, machine.driver, machine.cuda);
  out += fmt::format("attention of {}: {} layers ({}), {} cache rows, index_{}, {} weights\n", a.model, all, stack,
                     a.cache_dtype, a.index_dtype, a.nvfp4_weights ? "NVFP4" : (a.fp8_weights ? "FP8" : "bf16"));
  out += fmt::format(
      "{} prompt and {} output tokens; all requests come at once, then another whenever one is done, {} times as many "
      "in all.\n{}; nothing else of a model is in these times.\n\n",
      a.prompt, a.output, a.rounds,
      a.whole_stack ? "A decode step of all layers is measured as one graph, each layer with weights and caches of its "
                      "own, as the mean of four\npositions in turn; a prompt as one layer of each kind, multiplied by "
                      "its layers"
                    : "One layer of each kind is measured from hidden states to hidden states and multiplied by its "
                      "layers");
  out +=
      "| requests | mean TPOT, ms | median | p99 | mean TTFT, ms | median | p99 | output tokens/s "
      "|\n|---|---|---|---|---|---|---|---|\n";
  for (const Line& l : lines) {
    const double tokens = static_cast<double>(l.requests * a.rounds * a.output);
    out += fmt::format("| {} | {:.3f} | {:.3f} | {:.3f} | {:.1f} | {:.1f} | {:.1f} | {:.0f} |\n", l.requests,
                       l.result.tpot.mean * 1e3, l.result.tpot.median * 1e3, l.result.tpot.p99 * 1e3,
                       l.result.ttft.mean * 1e3, l.result.ttft.median * 1e3, l.result.ttft.p99 * 1e3,
                       l.result.seconds > 0 ? tokens / l.result.seconds : 0);
  }
  return out;
}

std::string json_of(const ServeArguments& a, const bench::Machine& machine, const std::vector<Line>& lines,
                    const std::vector<bench::Row>& rows) {
  const auto spread = [](const bench::Spread& s) {
    return nlohmann::ordered_json{{"mean_ms", s.mean * 1e3}, {"median_ms", s.median * 1e3}, {"p99_ms", s.p99 * 1e3}};
  };
  nlohmann::ordered_json out{{"format", "smla-serve/1"},
                             {"command", command_line()},
                             {"model", a.model},
                             {"device", machine.gpu},
                             {"driver", machine.driver},
                             {"cuda", machine.cuda},
                             {"prompt", a.prompt},
                             {"output", a.output},
                             {"fp8_weights", a.fp8_weights},
                             {"nvfp4_weights", a.nvfp4_weights},
                             {"whole_stack", a.whole_stack}};
  out["loads"] = nlohmann::ordered_json::array();
  for (const Line& l : lines)
    out["loads"].push_back(
        {{"requests", l.requests}, {"tpot", spread(l.result.tpot)}, {"ttft", spread(l.result.ttft)}});
  out["layers"] = nlohmann::ordered_json::array();
  for (const bench::Row& row : rows) {
    nlohmann::ordered_json layer{{"name", row.name}, {"shape", row.shape}, {"median_ms", row.time.median * 1e3}};
    for (const auto& [name, value] : row.stages) layer["stages"][name] = value;
    out["layers"].push_back(std::move(layer));
  }
  return out.dump(2) + "\n";
}

bench::StackMeasure measure_of(const ServeArguments& a) {
  return a.whole_stack ? bench::StackMeasure::kWhole : bench::StackMeasure::kByKind;
}

int run_serve(const ServeArguments& a) {
  if (const std::int64_t least = bench::least_prompt(measure_of(a)); a.prompt < least) {
    throw InvalidArgument("--prompt: got " + std::to_string(a.prompt) + ", expected " + std::to_string(least) +
                          " or more" + (a.whole_stack ? " with --whole-stack" : "") +
                          ": a decode is the mean of several positions in turn");
  }
  if (const std::string refusal = device::needs_gpu(device::current_gpu()); !refusal.empty())
    throw Unsupported("bench serve: " + refusal);
  bench::Options options;
  options.model = load_model_config(a.model);
  options.rows = &cache_rows(FrontEnd::kFlashMla, a.cache_dtype);
  options.index_rows = &row_format("index_" + a.index_dtype);
  options.device = DeviceKind::kCuda;
  options.heads = a.heads;
  options.fp8_weights = a.fp8_weights;
  options.nvfp4_weights = a.nvfp4_weights;
  options.measure.min_seconds = a.min_seconds;
  options.measure.min_runs = 40;
  options.implementations = implementations_of(a.implementations, options.device);
  OutputFile json("--json", a.json);
  const bench::Machine machine = bench::gpu_identity();
  std::vector<bench::Row> rows;
  const auto emit = [&](const bench::Row& row) {
    rows.push_back(row);
    if (!a.quiet)
      fmt::print(stderr, "smla bench serve: {} ({}): {:.4g} us\n", row.name, row.shape, row.time.median * 1e6);
  };
  const bench::StackTimes times = bench::measure_stack(
      options, measure_of(a), batches_to(*std::ranges::max_element(a.requests)), a.prompt, a.output, emit);
  std::vector<Line> lines;
  for (const std::int64_t n : a.requests) {
    lines.push_back({.requests = n,
                     .result = bench::simulate(
                         times, {.concurrent = n, .total = n * a.rounds, .prompt = a.prompt, .output = a.output})});
  }
  if (!json.is_stdout()) fmt::print("{}", table_of(a, options, machine, lines));
  if (json.wanted()) json.write(json_of(a, machine, lines, rows));
  return kExitPass;
}

}  // namespace

void add_serve_command(CLI::App* bench, int& exit_code) {
  auto a = std::make_shared<ServeArguments>();
  CLI::App* command = bench->add_subcommand(
      "serve", "The attention share of serving: TPOT and TTFT of a model's whole attention stack on a GPU");
  const auto count = whole(1, std::int64_t{1} << 24);
  command->add_option("--model", a->model, "Preset or a config.json")->capture_default_str();
  command->add_option("--requests", a->requests, "Concurrent requests")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(count)
      ->capture_default_str();
  command->add_option("--prompt", a->prompt, "Tokens of a prompt, one step")->check(count)->capture_default_str();
  command->add_option("--output-tokens", a->output, "Tokens that each request is given")
      ->check(count)
      ->capture_default_str();
  command->add_option("--rounds", a->rounds, "Requests in all, times the concurrent ones")
      ->check(whole(1, 1000))
      ->capture_default_str();
  command->add_option("--heads", a->heads, "Heads of a tensor-parallel rank; 0: the model's")
      ->check(whole(0, 128))
      ->capture_default_str();
  command
      ->add_option("--cache-dtype", a->cache_dtype, "Cache rows: fp8_ds_mla, bf16 or fp8_per_tensor (queries e4m3 too)")
      ->capture_default_str();
  command->add_option("--index-dtype", a->index_dtype, "Index rows")->capture_default_str();
  command->add_flag("--fp8-weights", a->fp8_weights,
                    "E4M3 weights with scales of 128 x 128 blocks, where FP8 checkpoints have them");
  command->add_flag("--nvfp4-weights", a->nvfp4_weights, "NVFP4 weights, where FP8 checkpoints have FP8 ones");
  command->add_flag("--whole-stack", a->whole_stack,
                    "Measure a decode step of all layers as one graph, not one layer of each kind");
  add_impl_option(command, a->implementations);
  command
      ->add_option("--min-time", a->min_seconds, "Seconds to measure each layer, or each position of a step, at least")
      ->check(real(0.0, 3600.0))
      ->capture_default_str();
  command->add_option("--json", a->json, "Also write JSON to FILE; - writes JSON alone to stdout");
  command->add_flag("-q,--quiet", a->quiet, "No progress on stderr");
  command->footer(
      "Layers are measured by kind at several lengths, in between times are interpolated; a schedule with whole "
      "prompts before decodes is then "
      "played\n"
      "through. Window-only layers are measured once a batch size. A layer alone finds nothing of what it needs in L2; "
      "with --whole-stack\n"
      "it finds what the layers ahead of it left there. Exit status: 0 measured, 2 wrong usage or no GPU.");
  command->callback([command, a, &exit_code] {
    refuse_useless(*command, "--nvfp4-weights", a->fp8_weights, "beside --fp8-weights", "one of the two");
    exit_code = run_serve(*a);
  });
}

}  // namespace smla
