#pragma once

// Tensors of Python: torch, numpy, and everything that has __dlpack__. Nothing is copied.

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sparsemla/device.h"
#include "sparsemla/dtype.h"
#include "sparsemla/error.h"

namespace smla::python {

namespace nb = nanobind;

/// Which framework owns a tensor: whose current stream and allocator a call uses.
enum class Framework : std::uint8_t { kOther, kTorch, kNumpy, kCupy };

/// Where a tensor lies.
struct Place {
  DeviceKind kind = DeviceKind::kCpu;
  int ordinal = 0;  ///< of the GPU
  friend bool operator==(const Place&, const Place&) = default;
};
/// "cpu", "cuda:1".
std::string describe(const Place& place);

/// A tensor of Python while a call uses it.
struct Tensor {
  static constexpr int kMaxRank = 8;

  void* data = nullptr;
  DType dtype = DType::kU8;
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> stride{};  ///< in elements
  Place place;
  bool read_only = false;
  bool requires_grad = false;
  Framework framework = Framework::kOther;
  nb::object owner;  ///< keeps the memory: the tensor, or what it exported

  std::int64_t numel() const;
};

/// "[3, 8, 512] BF16", for errors.
std::string describe(const Tensor& tensor);

/// Whether an object is a tensor: torch's, numpy's, or one with __dlpack__.
bool is_tensor(nb::handle object);

/// The tensor that an object is. `name` is how errors call it.
/// @param stream for producers that wait for their own work: the stream that the call will use; null: the default one
/// @throws InvalidArgument for what is no tensor, what cannot be shared, dtypes that the library lacks and strides that
/// are no strides.
Tensor read_tensor(std::string_view name, nb::handle object, void* stream = nullptr);

/// The dtype of a word or of a framework's dtype: "bf16", "BF16", torch.bfloat16, numpy.dtype("float32").
/// @throws InvalidArgument with the names.
DType read_dtype(std::string_view name, nb::handle object);

/// A module that somebody has imported; none otherwise. Nothing is imported here.
nb::object loaded_module(const char* name);

/// The place that "cpu", "cuda", "cuda:1" or a torch.device names; nothing for None. @throws InvalidArgument.
std::optional<Place> read_place(nb::handle device);

/// The stream that a call takes when none is given: the current one of the tensor's framework on that GPU.
void* current_stream(const Tensor& tensor);

/// The cudaStream_t of what was given as `stream`: an int, or a stream of torch or cupy.
void* read_stream(nb::handle object);

}  // namespace smla::python
