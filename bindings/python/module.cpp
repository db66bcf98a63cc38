// The Python module sparsemla._core.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <exception>
#include <string>

#include "device/library_folders.h"
#include "python/call.h"
#include "python/layer.h"
#include "python/objects.h"
#include "python/program.h"
#include "sparsemla/c_api.h"
#include "sparsemla/device.h"

namespace smla::python {

namespace {

struct Exceptions {
  PyObject* error = nullptr;
  PyObject* invalid_argument = nullptr;
  PyObject* unsupported = nullptr;
  PyObject* io_error = nullptr;
  PyObject* cuda_error = nullptr;
};

Exceptions& exceptions() {
  static Exceptions made;
  return made;
}

PyObject* make_exception(nb::module_& module, const char* name, const char* doc, PyObject* first, PyObject* second) {
  const nb::object bases = second == nullptr ? nb::object(nb::make_tuple(nb::handle(first)))
                                             : nb::object(nb::make_tuple(nb::handle(first), nb::handle(second)));
  const std::string full = std::string("sparsemla.") + name;
  PyObject* made = PyErr_NewExceptionWithDoc(full.c_str(), doc, bases.ptr(), nullptr);
  if (made == nullptr) nb::raise_python_error();
  module.attr(name) = nb::handle(made);
  return made;  // lives as long as the process
}

void make_exceptions(nb::module_& module) {
  Exceptions& e = exceptions();
  e.error = make_exception(module, "Error", "What went wrong in the library.", PyExc_RuntimeError, nullptr);
  e.invalid_argument =
      make_exception(module, "InvalidArgument", "An argument has the wrong shape, dtype, stride, range, place or name.",
                     e.error, PyExc_ValueError);
  e.unsupported =
      make_exception(module, "Unsupported", "A valid request that no implementation on this machine accepts.", e.error,
                     PyExc_NotImplementedError);
  e.io_error =
      make_exception(module, "IoError", "A file could not be read or written, or is damaged.", e.error, PyExc_OSError);
  e.cuda_error = make_exception(module, "CudaError", "A CUDA call failed.", e.error, nullptr);
  nb::register_exception_translator(
      [](const std::exception_ptr& pending, void*) {
        try {
          std::rethrow_exception(pending);
        } catch (const InvalidArgument& error) {
          PyErr_SetString(exceptions().invalid_argument, error.what());
        } catch (const Unsupported& error) {
          PyErr_SetString(exceptions().unsupported, error.what());
        } catch (const IoError& error) {
          PyErr_SetString(exceptions().io_error, error.what());
        } catch (const CudaError& error) {
          PyErr_SetString(exceptions().cuda_error, error.what());
        } catch (const Error& error) {
          PyErr_SetString(exceptions().error, error.what());
        }
      },
      nullptr);
}

}  // namespace

}  // namespace smla::python

NB_MODULE(_core, module) {
  using namespace smla::python;
  // Plans and caches in a module's or class's variables live until the interpreter ends; that is no leak.
  nb::set_leak_warnings(false);
  module.doc() = "SparseMLA's ops and layers, over tensors of any framework.";
  make_exceptions(module);
  module.attr("__version__") = smla_version();
  module.def(
      "built_with_cuda", [] { return smla::built_with_cuda(); }, "Whether this build has GPU kernels.");
  module.def("add_library_folders", &smla::device::add_library_folders, nb::arg("folders"),
             "Further folders where libraries of the CUDA toolkit may lie.");
  bind_ops(module);
  bind_layers(module);
  bind_models(module);
  bind_caches(module);
  bind_prefixes(module);
  bind_cases(module);
  bind_program(module);
}
