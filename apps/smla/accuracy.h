#pragma once

namespace CLI {
class App;
}

namespace smla {

/// Adds `smla bench accuracy`.
void add_accuracy_command(CLI::App* bench, int& exit_code);

}  // namespace smla
