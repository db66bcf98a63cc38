#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>

#include "arguments.h"
#include "commands.h"
#include "ops/catalog.h"
#include "sparsemla/error.h"
#include "sparsemla/ops/attention.h"
#include "why_cells.h"

namespace smla {

namespace {

struct WhyOptions {
  std::string op;
  std::int64_t heads = 64;
  std::int64_t tokens = 64;
  std::vector<std::int64_t> widths{128, 512};
  std::vector<std::string> formats{"fp8_ds_mla"};
  std::vector<std::int64_t> block_sizes{64};
  std::string q = "bf16";
  std::string device = "cpu";
  std::string implementation;
  std::string gpu;
  bool partial = false;
  bool deterministic = false;
  bool cells = false;
  bool details = false;
};

/// Value of scope `i`: one value serves both scopes.
template <class T>
const T& of_scope(const std::vector<T>& values, std::size_t i) {
  return values[values.size() == 1 ? 0 : i];
}

void check_list(const char* option, std::size_t got, std::size_t scopes) {
  if (got == 1 || got == scopes) return;
  throw InvalidArgument(fmt::format("{}: got {} values, expected 1 or {} (one for each --width)", option, got, scopes));
}

DType q_dtype(const std::string& name) {
  if (name == "bf16") return DType::kBF16;
  if (name == "e4m3") return DType::kE4M3;
  if (name == "f32") return DType::kF32;
  throw InvalidArgument("--q: got \"" + name + "\", expected bf16, e4m3 or f32");
}

SparseAttention::Problem attention_problem(const WhyOptions& options) {
  const std::size_t scopes = options.widths.size();
  if (scopes < 1 || scopes > SparseAttention::kMaxScopes)
    throw InvalidArgument(fmt::format("--width: got {} values, expected 1 or 2", scopes));
  check_list("--format", options.formats.size(), scopes);
  check_list("--block-size", options.block_sizes.size(), scopes);
  SparseAttention::Problem problem{.tokens = options.tokens,
                                   .heads = options.heads,
                                   .q = q_dtype(options.q),
                                   .o = options.partial ? DType::kF32 : DType::kBF16,
                                   .scopes = static_cast<int>(scopes),
                                   .partial = options.partial};
  for (std::size_t i = 0; i < scopes; ++i) {
    problem.scope[i] = {.format = &row_format(of_scope(options.formats, i)),
                        .block_size = of_scope(options.block_sizes, i),
                        .width = options.widths[i]};
  }
  return problem;
}

std::string describe(const SparseAttention::Problem& problem, const std::string& q) {
  std::string text = fmt::format("{} tokens, {} heads, {} q", problem.tokens, problem.heads, q);
  for (int i = 0; i < problem.scopes; ++i) {
    const SparseAttention::ScopeShape& scope = problem.scope[static_cast<std::size_t>(i)];
    text += fmt::format("{} width {} of {} in blocks of {}", i == 0 ? "," : " +", scope.width, scope.format->name,
                        scope.block_size);
  }
  return text + (problem.partial ? ", partial" : "");
}

/// Prints the candidates with the chosen one marked; false when nobody accepts.
bool print_candidates(const std::vector<Candidate>& candidates, const std::string& forced) {
  bool taken = false;
  bool known = forced.empty();
  std::string names;
  for (const Candidate& candidate : candidates) {
    names += (names.empty() ? "" : ", ") + candidate.name;
    known = known || candidate.name == forced;
    const bool wanted = forced.empty() || candidate.name == forced;
    const bool chosen = wanted && !taken && candidate.refusal.empty();
    taken = taken || chosen;
    const std::string verdict = chosen                       ? "chosen"
                                : !candidate.refusal.empty() ? "refuses: " + candidate.refusal
                                : wanted                     ? "accepts"
                                                             : "accepts, not asked for";
    fmt::print("{} {:<12} {:<28} {}\n", chosen ? '*' : ' ', candidate.name, candidate.machine, verdict);
    if (!candidate.choice.empty()) fmt::print("  {:<12} {}\n", "", candidate.choice);
  }
  if (!known) throw InvalidArgument("--impl: got \"" + forced + "\", expected one of " + names);
  return taken;
}

/// Who runs each of the cells that are measured; a card by name need not be there.
int why_cells(const WhyOptions& options) {
  if (options.op != SparseAttention::kName)
    throw InvalidArgument("--cells: got " + options.op + ", expected sparse_attention");
  std::optional<device::Gpu> gpu;
  if (!options.gpu.empty()) gpu = known_gpu(options.gpu);
  const PlanOptions plan{.device = gpu ? DeviceKind::kCuda : device_from_name(options.device),
                         .implementation = options.implementation,
                         .deterministic = options.deterministic};
  const CellTables tables = attention_cells(attention_problem(options), plan, gpu ? &*gpu : nullptr);
  fmt::print("{}", options.details ? tables.details : tables.text);
  return tables.served ? kExitPass : kExitMismatch;
}

int why(const WhyOptions& options, bool shaped) {
  if (options.cells) return why_cells(options);
  if (!options.gpu.empty() || options.details)
    throw InvalidArgument("--gpu and --details: got one without --cells, expected it too");
  const PlanOptions plan{
      .device = device_from_name(options.device), .implementation = {}, .deterministic = options.deterministic};
  std::vector<Candidate> candidates;
  if (options.op == SparseAttention::kName) {
    const SparseAttention::Problem problem = attention_problem(options);
    candidates = explain<SparseAttention>(problem, plan);
    fmt::print("{} on {}: {}\n", options.op, options.device, describe(problem, options.q));
  } else {
    const OpInfo& op = find_op(options.op);
    if (shaped)
      throw InvalidArgument("why: got shape options for " + options.op + ", expected them for sparse_attention only");
    candidates = op.candidates(plan);
    fmt::print("{} on {}: {}\n", op.name, options.device, op.problem);
  }
  if (print_candidates(candidates, options.implementation)) return kExitPass;
  fmt::print("nothing here runs this problem\n");
  return kExitMismatch;
}

}  // namespace

void add_why_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<WhyOptions>();
  CLI::App* command = app.add_subcommand(
      "why", "Explain which implementation of an op would run for a problem, and why the others would not");
  command
      ->add_option("OP", options->op,
                   "Name of the op (see `smla info`); shapes can be given for sparse_attention, others take their "
                   "typical problem")
      ->required();
  CLI::Option_group* shape = command->add_option_group("Shape of sparse_attention");
  const auto positive = whole(0, std::int64_t{1} << 40);
  shape->add_option("--heads", options->heads, "Query heads, 1 to 128")->capture_default_str();
  shape->add_option("--tokens", options->tokens, "Queries")->check(positive)->capture_default_str();
  shape->add_option("--width", options->widths, "Columns of the index matrix; W,W2 for two scopes")
      ->delimiter(',')
      ->check(positive)
      ->capture_default_str();
  shape
      ->add_option("--format", options->formats,
                   "Cache rows: fp8_ds_mla, bf16, fp8_per_tensor or f32; one, or one for each scope")
      ->delimiter(',')
      ->capture_default_str();
  shape->add_option("--block-size", options->block_sizes, "Rows in a cache block; one, or one for each scope")
      ->delimiter(',')
      ->check(positive)
      ->capture_default_str();
  shape->add_option("--q", options->q, "Queries: bf16, e4m3 or f32")->capture_default_str();
  shape->add_flag("--partial", options->partial, "fp32 partial result without sink");
  command->add_option("--device", options->device, "Where to run: cpu or cuda")->capture_default_str();
  command->add_option("--impl", options->implementation, "Ask for one implementation by name");
  command->add_flag("--deterministic", options->deterministic, "Rows must not depend on their neighbours");
  CLI::Option_group* cells = command->add_option_group("Cells of sparse_attention");
  cells->add_flag("--cells", options->cells,
                  "Who runs each cell of the decode and prefill grids, as tables; --format, --q, --impl and "
                  "--deterministic hold for all of them");
  cells->add_flag("--details", options->details, "A line for each cell, with how it is cut");
  cells->add_option("--gpu", options->gpu, "Ask for a card that need not be there: a100, l40s, h100, h200 or b200");
  command->footer("Exit status: 0 something runs it, 1 nothing does, 2 wrong usage.");
  command->callback([options, shape, &exit_code] { exit_code = why(*options, shape->count_all() > 0); });
}

}  // namespace smla
