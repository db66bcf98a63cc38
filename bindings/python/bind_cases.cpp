// Python's view of recorded calls.
#include <nanobind/stl/string.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "cases/case_file.h"
#include "core/host_tensor.h"
#include "device/memory.h"
#include "python/objects.h"
#include "python/tensors.h"
#include "sparsemla/case.h"

namespace smla::python {

namespace {

/// A contiguous copy on the host. @throws InvalidArgument for a strided tensor of a GPU.
HostTensor copy_to_host(const std::string& name, const Tensor& t) {
  HostTensor copy(t.dtype, std::vector<std::int64_t>(t.shape.begin(), t.shape.begin() + t.rank));
  const auto size = static_cast<std::size_t>(size_of(t.dtype));
  auto* to = static_cast<char*>(copy.data());
  const auto* from = static_cast<const char*>(t.data);
  std::vector<std::int64_t> at(static_cast<std::size_t>(t.rank), 0);
  std::int64_t step = 1;
  bool contiguous = true;
  for (int i = t.rank - 1; i >= 0; --i) {
    const auto d = static_cast<std::size_t>(i);
    contiguous = contiguous && (t.shape[d] == 1 || t.stride[d] == step);
    step *= t.shape[d];
  }
  if (t.numel() == 0) return copy;
  if (contiguous || t.place.kind == DeviceKind::kCuda) {
    if (!contiguous)
      throw InvalidArgument(name + ": got a strided tensor on " + describe(t.place) + ", expected a contiguous one");
    const CurrentDevice current(t.place.kind, t.place.ordinal);
    copy_bytes(t.place.kind, to, from, copy.bytes(), {.handle = current_stream(t)});
    return copy;
  }
  for (std::int64_t n = 0; n < t.numel(); ++n) {
    std::int64_t offset = 0;
    for (std::size_t d = 0; d < at.size(); ++d) offset += at[d] * t.stride[d];
    std::copy_n(from + offset * static_cast<std::int64_t>(size), size, to + static_cast<std::size_t>(n) * size);
    for (std::size_t d = at.size(); d-- > 0;) {
      if (++at[d] < t.shape[d]) break;
      at[d] = 0;
    }
  }
  return copy;
}

void write(const std::string& path, const std::string& op, const std::string& params, const nb::dict& tensors) {
  std::map<std::string, HostTensor> copies;
  for (const auto& [key, value] : tensors) {
    const std::string name = nb::cast<std::string>(nb::str(key));
    if (value.is_none()) continue;
    const std::string full = "case: " + name;
    copies.emplace(name, copy_to_host(full, read_tensor(full, value)));
  }
  std::map<std::string, const HostTensor*> views;
  for (const auto& [name, tensor] : copies) views.emplace(name, &tensor);
  const nb::gil_scoped_release released;
  write_case(path, op, params, views);
  (void)read_case(path);  // what is no case says so now
}

}  // namespace

void bind_cases(nb::module_& module) {
  using nb::arg;
  module.def("write_case", &write, arg("path"), arg("op"), arg("params"), arg("tensors"));
  module.def("record_calls", &record_calls, arg("folder"));
  module.def("recorded_calls", &recorded_calls);
}

}  // namespace smla::python
