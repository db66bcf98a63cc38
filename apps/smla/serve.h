#pragma once

namespace CLI {
class App;
}

namespace smla {

/// Adds `smla bench serve`.
void add_serve_command(CLI::App* bench, int& exit_code);

}  // namespace smla
