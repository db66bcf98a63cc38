#include "python/workspace.h"

#include <map>
#include <string>
#include <utility>

#include "device/memory.h"
#include "sparsemla/error.h"

namespace smla::python {

namespace {

constexpr std::size_t kRound = std::size_t{1} << 16;

/// Memory that grows; what a thread lends to its calls on the CPU.
void* host_memory(std::size_t bytes) {
  thread_local DeviceMemory memory;
  if (memory.bytes() < bytes) memory = DeviceMemory(DeviceKind::kCpu, (bytes + kRound - 1) / kRound * kRound, false);
  return memory.data();
}

/// Memory of a stream of a GPU: calls on one stream follow each other. The caller holds the GIL. It is never freed:
/// at the end of the process the driver may be gone before it.
void* gpu_memory(std::size_t bytes, int ordinal, void* stream) {
  static auto& known = *new std::map<std::pair<int, void*>, DeviceMemory>;
  DeviceMemory& memory = known[{ordinal, stream}];
  if (memory.bytes() < bytes) {
    const CurrentDevice current(DeviceKind::kCuda, ordinal);
    synchronize(DeviceKind::kCuda, {.handle = stream});
    memory = DeviceMemory(DeviceKind::kCuda, (bytes + kRound - 1) / kRound * kRound, false);
  }
  return memory.data();
}

nb::object torch_memory(std::size_t bytes, const Place& place, void* stream, bool own_stream) {
  const nb::object torch = loaded_module("torch");
  const nb::object device = torch.attr("device")("cuda", place.ordinal);
  const nb::object dtype = torch.attr("uint8");
  if (!own_stream) return torch.attr("empty")(bytes, nb::arg("dtype") = dtype, nb::arg("device") = device);
  // Memory of the stream that the caller named, so that its allocator does not hand it on too early.
  const nb::object cuda = torch.attr("cuda");
  const nb::object context = cuda.attr("stream")(
      cuda.attr("ExternalStream")(reinterpret_cast<std::uintptr_t>(stream), nb::arg("device") = device));
  context.attr("__enter__")();
  nb::object memory;
  try {
    memory = torch.attr("empty")(bytes, nb::arg("dtype") = dtype, nb::arg("device") = device);
  } catch (...) {
    context.attr("__exit__")(nb::none(), nb::none(), nb::none());
    throw;
  }
  context.attr("__exit__")(nb::none(), nb::none(), nb::none());
  return memory;
}

}  // namespace

LentWorkspace::LentWorkspace(std::string_view op, nb::handle given, std::size_t bytes, const Place& place,
                             const Tensor* leader, void* stream, bool own_stream)
    : bytes_(bytes) {
  if (!given.is_none()) {
    const std::string name = std::string(op) + ": workspace";
    const Tensor t = read_tensor(name, given, stream);
    if (t.place != place)
      throw InvalidArgument(name + ": got a tensor on " + describe(t.place) + ", expected one on " + describe(place));
    std::int64_t step = 1;
    for (int i = t.rank - 1; i >= 0; --i) {
      const auto d = static_cast<std::size_t>(i);
      if (t.shape[d] != 1 && t.stride[d] != step && t.numel() > 0)
        throw InvalidArgument(name + ": got a strided tensor, expected a contiguous one");
      step *= t.shape[d];
    }
    const auto given_bytes = static_cast<std::size_t>(t.numel() * size_of(t.dtype));
    if (given_bytes < bytes || t.read_only)
      throw InvalidArgument(name + ": got " + std::to_string(given_bytes) + (t.read_only ? " read-only" : "") +
                            " bytes, expected " + std::to_string(bytes) + " that can be written");
    data_ = bytes == 0 ? nullptr : t.data;
    owner_ = t.owner;
    return;
  }
  if (bytes == 0) return;
  if (place.kind == DeviceKind::kCpu) {
    data_ = host_memory(bytes);
  } else if (leader != nullptr && leader->framework == Framework::kTorch) {
    owner_ = torch_memory(bytes, place, stream, own_stream);
    data_ = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(owner_.attr("data_ptr")()));
  } else {
    data_ = gpu_memory(bytes, place.ordinal, stream);
  }
}

}  // namespace smla::python
