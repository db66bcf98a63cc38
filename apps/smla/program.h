#pragma once

namespace smla {

/// The smla program: reads the command line, runs a command and prints. Returns the exit status; throws nothing.
int run_smla(int argc, char** argv);

}  // namespace smla
