#include "python/program.h"
#include "sparsemla/error.h"

namespace smla::python {

void bind_program(nanobind::module_& module) {
  module.def(
      "run_program",
      [](const nanobind::list& /*arguments*/) -> int {
        throw Unsupported("smla: this build of the module has no program (SMLA_BUILD_APPS=OFF)");
      },
      nanobind::arg("arguments"), "The smla program, which this build lacks.");
}

}  // namespace smla::python
