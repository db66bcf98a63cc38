#pragma once

#include <nanobind/nanobind.h>

namespace smla::python {

/// Adds run_program, the smla program, to a module that is built with it (program.cpp; else no_program.cpp).
void bind_program(nanobind::module_& module);

}  // namespace smla::python
