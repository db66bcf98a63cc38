#include "python/program.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "smla/program.h"

namespace smla::python {

void bind_program(nanobind::module_& module) {
  module.def(
      "run_program",
      [](std::vector<std::string> arguments) {
        std::vector<char*> words;
        for (std::string& argument : arguments) words.push_back(argument.data());
        words.push_back(nullptr);
        const nanobind::gil_scoped_release released;
        return run_smla(static_cast<int>(arguments.size()), words.data());
      },
      nanobind::arg("arguments"), "The smla program over a command line; returns its exit status.");
}

}  // namespace smla::python
