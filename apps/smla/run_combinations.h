#pragma once

#include "run_arguments.h"

namespace CLI {
class App;
}

namespace smla {

/// @throws InvalidArgument naming both for options of `smla run` that contradict each other, and for one that has no
/// effect beside the others. `command`: what was typed.
void check_combinations(const CLI::App& command, const RunArguments& a);

}  // namespace smla
