#pragma once

#include <string>

namespace CLI {
class App;
}

namespace smla {

/// Exit statuses shared by all commands.
inline constexpr int kExitPass = 0;
inline constexpr int kExitMismatch = 1;  ///< the work was done and its result is not right
inline constexpr int kExitBad = 2;       ///< wrong usage, a bad file, nothing that can run it

/// Each adds one subcommand whose callback sets `exit_code`; errors leave the callback as exceptions and end as
/// status 2.
void add_run_command(CLI::App& app, int& exit_code);
void add_soak_command(CLI::App& app, int& exit_code);
void add_make_checkpoint_command(CLI::App& app, int& exit_code);
void add_verify_command(CLI::App& app, int& exit_code);
void add_bench_command(CLI::App& app, int& exit_code);
void add_info_command(CLI::App& app, int& exit_code);
void add_why_command(CLI::App& app, int& exit_code);

/// The program's arguments as they were typed, with blanks between them.
const std::string& command_line();

/// Writes "smla: <text>" to stderr.
void print_error(const std::string& text);

}  // namespace smla
