#include "accuracy.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

#include "arguments.h"
#include "bench/accuracy.h"
#include "commands.h"
#include "device/gpu.h"
#include "output_file.h"
#include "sparsemla/error.h"

namespace smla {

namespace {

struct AccuracyArguments {
  bench::AccuracyOptions options;
  std::string device = "cpu";
  std::string json;
  bool small = false;
  bool quiet = false;
};

/// A model and a request that take seconds.
void make_small(bench::AccuracyOptions& o) {
  o.sizes = {
      .hidden = 128, .heads = 2, .o_groups = 1, .lora = 128, .index_heads = 4, .index_topk = 64, .vocabulary = 256};
}

std::string share_text(double share) { return fmt::format("{:.2f} %", 100 * share); }

std::string head_of(const bench::AccuracyOptions& o) {
  const bench::AccuracySizes& s = o.sizes;
  return fmt::format(
      "Eight layers of V4-Flash's order (SWA, SWA, then C4A and C128A in turn), random weights, seed {}: hidden {}, "
      "{} heads of 512, {} index heads of 128, top {} entries, vocabulary {}. One request on {}; its last {} tokens "
      "pass through the stack and are compared with float64 (of the group kernel at most 128).\n"
      "Relative l2 of attention(x), mean over the layers of a kind, and of the stack's end: with float64's choice of "
      "entries; `own choice`, differing entries and queries, and greedy tokens: with the layers' own.\n\n",
      o.seed, s.hidden, s.heads, s.index_heads, s.index_topk, s.vocabulary,
      o.device == DeviceKind::kCuda ? "the GPU" : "the CPU", o.measured);
}

std::string table_of(const bench::AccuracyOptions& o, const std::vector<bench::AccuracyRow>& rows) {
  std::string out = head_of(o);
  std::string at;
  for (const bench::AccuracyRow& r : rows) {
    const std::string place = fmt::format("{} tokens, {}", r.context, r.group);
    if (place != at) {
      out += fmt::format(
          "{}| {} | SWA | C4A | C128A | stack | own choice | entries that differ | queries with one | same greedy "
          "token |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|\n",
          at.empty() ? "" : "\n", place);
      at = place;
    }
    if (!r.skipped.empty()) {
      out += fmt::format("| {} | SKIP: {} | | | | | | | |\n", r.name, r.skipped);
      continue;
    }
    out += fmt::format("| {} | {:.2e} | {:.2e} | {:.2e} | {:.2e} | {:.2e} | {} | {} | {} |\n", r.name, r.kinds[0],
                       r.kinds[1], r.kinds[2], r.stack, r.own_stack, share_text(r.entries), share_text(r.queries),
                       share_text(r.agreement));
  }
  return out;
}

std::string json_of(const bench::AccuracyOptions& o, const std::vector<bench::AccuracyRow>& rows) {
  const bench::AccuracySizes& s = o.sizes;
  nlohmann::ordered_json out{{"format", "smla-accuracy/1"},
                             {"command", command_line()},
                             {"device", o.device == DeviceKind::kCuda ? "cuda" : "cpu"},
                             {"seed", o.seed},
                             {"measured", o.measured},
                             {"sizes",
                              {{"hidden", s.hidden},
                               {"heads", s.heads},
                               {"o_groups", s.o_groups},
                               {"lora", s.lora},
                               {"index_heads", s.index_heads},
                               {"index_topk", s.index_topk},
                               {"vocabulary", s.vocabulary}}}};
  out["rows"] = nlohmann::ordered_json::array();
  for (const bench::AccuracyRow& r : rows) {
    nlohmann::ordered_json row{{"context", r.context}, {"group", r.group}, {"name", r.name}};
    if (!r.skipped.empty()) {
      row["skipped"] = r.skipped;
    } else {
      row["swa"] = r.kinds[0];
      row["c4a"] = r.kinds[1];
      row["c128a"] = r.kinds[2];
      row["stack"] = r.stack;
      row["own_stack"] = r.own_stack;
      row["entries_differ"] = r.entries;
      row["queries_differ"] = r.queries;
      row["greedy_agreement"] = r.agreement;
      row["implementations"] = r.implementations;
    }
    out["rows"].push_back(std::move(row));
  }
  return out.dump(2) + "\n";
}

int run_accuracy(const AccuracyArguments& a) {
  const bench::AccuracyOptions& o = a.options;
  if (o.device == DeviceKind::kCuda) {
    if (const std::string refusal = device::needs_gpu(device::current_gpu()); !refusal.empty())
      throw Unsupported("bench accuracy: --device cuda: " + refusal);
  }
  OutputFile json("--json", a.json);
  std::vector<bench::AccuracyRow> rows;
  const auto start = std::chrono::steady_clock::now();
  const auto say = [&](const std::string& text) {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (!a.quiet) fmt::print(stderr, "smla bench accuracy: {:6.1f} s  {}\n", seconds, text);
  };
  bench::measure_accuracy(o, say, [&](const bench::AccuracyRow& row) {
    rows.push_back(row);
    say(row.skipped.empty() ? fmt::format("  stack {:.2e}, own choice {:.2e}", row.stack, row.own_stack)
                            : "  SKIP " + row.skipped);
  });
  if (!json.is_stdout()) fmt::print("{}", table_of(o, rows));
  if (json.wanted()) json.write(json_of(o, rows));
  return kExitPass;
}

}  // namespace

void add_accuracy_command(CLI::App* bench, int& exit_code) {
  auto a = std::make_shared<AccuracyArguments>();
  CLI::App* command = bench->add_subcommand(
      "accuracy", "The error of every cache, query, index and weight format and of every kernel against float64");
  const auto count = whole(1, std::int64_t{1} << 20);
  std::vector<std::string> groups;
  for (const std::string_view group : bench::accuracy_groups()) groups.emplace_back(group);
  command->add_option("GROUP", a->options.groups, "What to measure: cache, index, weights, kernel (default: all)")
      ->check(one_of(groups));
  CLI::Option* context = command->add_option("--context", a->options.contexts, "Tokens of the request")
                             ->delimiter(',')
                             ->allow_extra_args(false)
                             ->check(count)
                             ->capture_default_str();
  CLI::Option* measured =
      command->add_option("--measured", a->options.measured, "How many of them, the last, are compared")
          ->check(count)
          ->capture_default_str();
  command->add_flag("--small", a->small, "A smaller model, 1024 tokens of which 32 are compared: seconds");
  command->add_option("--seed", a->options.seed, "Of weights, tokens and hidden states")
      ->check(seed_number())
      ->capture_default_str();
  command->add_option("--device", a->device, "Where the layers run")
      ->check(one_of({"cpu", "cuda"}))
      ->capture_default_str();
  command->add_option("--threads", a->options.threads, "CPU threads; 0: all")->check(whole(0, 4096));
  command->add_option("--json", a->json, "Also write JSON to FILE; - writes JSON alone to stdout");
  command->add_flag("-q,--quiet", a->quiet, "No progress on stderr");
  command->footer(
      "Minutes on two cores. The group kernel runs at 1024 tokens, of which 128 are compared. docs/accuracy.md has the "
      "tables and what they mean.\nExit status: 0 measured, 2 wrong usage or no GPU.");
  command->callback([a, context, measured, &exit_code] {
    if (a->small) {
      make_small(a->options);
      if (context->count() == 0) a->options.contexts = {1024};
      if (measured->count() == 0) a->options.measured = 32;
    }
    a->options.device = device_from_name(a->device);
    exit_code = run_accuracy(*a);
  });
}

}  // namespace smla
