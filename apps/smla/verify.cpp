#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <new>

#include "arguments.h"
#include "cases/replay.h"
#include "commands.h"
#include "sparsemla/device.h"
#include "sparsemla/error.h"
#include "sparsemla/ops/validate.h"

namespace smla {

namespace {

struct VerifyOptions {
  std::vector<std::string> files;
  std::string implementation;
  std::string device = "cpu";
  std::string dump;
  int threads = 0;
  bool validate = false;
};

std::string place(const std::vector<std::int64_t>& where) {
  return where.empty() ? "-" : fmt::format("[{}]", fmt::join(where, ", "));
}

void print_verdict(const std::string& path, const Verdict& verdict) {
  const Comparison& c = verdict.comparison;
  std::string line =
      fmt::format("{}  {}  {}  worst {:.3g} at {}", c.pass ? "PASS" : "FAIL",
                  std::filesystem::path(path).filename().string(), verdict.result, std::fabs(c.worst), place(c.where));
  if (!c.detail.empty()) line += fmt::format(" ({})", c.detail);
  line += fmt::format("  l2 {:.3g}, bound {}  [{}]", c.l2, verdict.bound, verdict.implementation);
  if (!c.failure.empty()) line += fmt::format("  {}", c.failure);
  fmt::print("{}\n", line);
}

/// Where the dump of a case goes.
std::filesystem::path dump_path(const VerifyOptions& options, const std::string& file) {
  std::filesystem::path path = options.dump;
  if (options.files.size() > 1 || std::filesystem::is_directory(path)) path /= std::filesystem::path(file).filename();
  return path;
}

/// No dump may take the place of a case that is verified, or of another dump.
void check_dumps(const VerifyOptions& options) {
  if (options.dump.empty()) return;
  if (options.files.size() > 1 && !std::filesystem::is_directory(options.dump)) {
    throw InvalidArgument("--dump: got \"" + options.dump + "\", expected an existing folder for more than one file");
  }
  std::map<std::filesystem::path, std::string> written;
  for (const std::string& file : options.files) {
    const std::filesystem::path path = dump_path(options, file);
    for (const std::string& input : options.files) {
      std::error_code absent;
      if (std::filesystem::equivalent(path, input, absent))
        throw InvalidArgument("--dump: got " + path.string() + ", which is the case " + input +
                              " itself, expected another place");
    }
    const auto [first, is_new] = written.emplace(path, file);
    if (!is_new)
      throw InvalidArgument("--dump: got " + first->second + " and " + file + ", which would both be written to " +
                            path.string() + ", expected files of different names");
  }
}

/// The case again with what came out in place of what was expected.
void dump_case(const VerifyOptions& options, const CaseFile& file, const ReplayResult& made) {
  std::map<std::string, const HostTensor*> tensors;
  for (const auto& [name, tensor] : file.tensors) {
    if (!name.starts_with("out.")) tensors[name] = &tensor;
  }
  for (const auto& [name, tensor] : made.results) tensors["out." + name] = &tensor;
  write_case(dump_path(options, file.path).string(), file.op, to_json(file.params), tensors);
}

int verify_file(const VerifyOptions& options, const ReplayOptions& replay_options, const std::string& path) {
  const CaseFile file = read_case(path);
  const ReplayResult made = replay(file, replay_options);
  if (!options.dump.empty()) dump_case(options, file, made);
  int code = kExitPass;
  for (const Verdict& verdict : judge(file, made)) {
    print_verdict(path, verdict);
    if (!verdict.comparison.pass) code = kExitMismatch;
  }
  return code;
}

int verify(const VerifyOptions& options) {
  check_dumps(options);
  const ReplayOptions replay_options{.plan = {.device = device_from_name(options.device),
                                              .implementation = options.implementation,
                                              .threads = options.threads}};
  if (options.validate) validate_calls(true);
  int code = kExitPass;
  for (const std::string& path : options.files) {
    // One bad file does not hide the others.
    try {
      code = std::max(code, verify_file(options, replay_options, path));
    } catch (const Error& e) {
      const std::string text = e.what();
      print_error(text.find(path) == std::string::npos ? path + ": " + text : text);
      code = kExitBad;
    } catch (const std::bad_alloc&) {
      print_error(path + ": out of memory");
      code = kExitBad;
    }
  }
  return code;
}

}  // namespace

void add_verify_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<VerifyOptions>();
  CLI::App* command =
      app.add_subcommand("verify", "Replay recorded calls (smla-case/1 files) and compare with their expected results");
  command->add_option("FILE", options->files, "Case files")->required();
  command->add_option("--impl", options->implementation,
                      "Force an implementation by name, e.g. ref (see `smla info`); default: the best that accepts");
  command->add_option("--device", options->device, "Where to run: cpu or cuda")->capture_default_str();
  command->add_option("--threads", options->threads, "CPU threads; 0: all")
      ->check(whole(0, 4096))
      ->capture_default_str();
  command->add_option(
      "--dump", options->dump,
      "Write the case with the results that came out: a file, or an existing folder; never over a case that is "
      "verified");
  command->add_flag("--validate", options->validate,
                    "First check the indices, lengths, slots and block tables that each op is given");
  std::string ops;
  for (const ReplayEntry& entry : replay_table()) ops += (ops.empty() ? "" : ", ") + std::string(entry.op);
  command->footer(
      "Prints one line a result: verdict, file, result, worst element and where, relative l2 error, bound, "
      "[implementation].\nKnown ops: " +
      ops + ".\nExit status: 0 all pass, 1 a mismatch, 2 a bad file, an unknown op or a missing tensor.");
  command->callback([options, &exit_code] { exit_code = verify(*options); });
}

}  // namespace smla
