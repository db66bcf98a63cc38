#include "program.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <new>

#include "arguments.h"
#include "commands.h"
#include "sparsemla/case.h"

namespace smla {

void print_error(const std::string& text) {
  // What a file holds may stand in an error: it must neither drive the terminal nor fill it.
  constexpr std::size_t kShown = 16384;
  std::string shown = text.substr(0, kShown);
  for (char& c : shown) {
    if (static_cast<unsigned char>(c) < 0x20 && c != '\n') c = '?';
  }
  std::fflush(stdout);
  fmt::print(stderr, "smla: {}{}\n", shown, text.size() > kShown ? "..." : "");
}

namespace {

std::string& typed() {
  static std::string text;
  return text;
}

int run_program(int argc, char** argv) {
  for (int i = 0; i < argc; ++i) typed() += (i == 0 ? "" : " ") + std::string(argv[i]);
  CLI::App app{"SparseMLA: DeepSeek-V4 sparse attention on any machine.", "smla"};
  app.set_version_flag("--version", "smla " SMLA_VERSION);
  app.footer(
      "Exit status: 0 all right, 1 a result is not right, 2 wrong usage, a bad file, or nothing here can run "
      "it.\n`smla COMMAND --help` tells more.");
  int exit_code = kExitPass;
  add_run_command(app, exit_code);
  add_soak_command(app, exit_code);
  add_make_checkpoint_command(app, exit_code);
  add_verify_command(app, exit_code);
  add_bench_command(app, exit_code);
  add_info_command(app, exit_code);
  add_why_command(app, exit_code);
  const int shown = parse_arguments(app, argc, argv);
  return shown >= 0 ? shown : exit_code;
}

}  // namespace

const std::string& command_line() { return typed(); }

int run_smla(int argc, char** argv) {
  try {
    record_calls_from_environment();
    typed().clear();
    const int code = run_program(argc, argv);
    // A full disk behind stdout must not pass for success.
    return std::fflush(stdout) == 0 ? code : kExitBad;
  } catch (const std::bad_alloc&) {
    print_error("out of memory");
  } catch (const std::exception& e) {
    print_error(e.what());
  }
  return kExitBad;
}

}  // namespace smla
