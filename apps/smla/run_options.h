#pragma once

#include "run_arguments.h"

namespace CLI {
class App;
}

namespace smla {

/// The options of a command that runs an engine over a trace: trace, model, formats, engine, ranks, output. They show
/// what is in `arguments` as their defaults and write there; it must outlive the parsing.
void add_engine_options(CLI::App* command, RunArguments& arguments);

}  // namespace smla
