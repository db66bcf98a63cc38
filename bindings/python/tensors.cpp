#include "python/tensors.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <unordered_map>

#include "device/memory.h"
#include "python/dlpack.h"

namespace smla::python {

namespace {

[[noreturn]] void fail(std::string_view name, const std::string& got, const std::string& expected) {
  throw InvalidArgument(std::string(name) + ": got " + got + ", expected " + expected);
}

std::string text_of(nb::handle object) { return nb::cast<std::string>(nb::str(object)); }

std::string class_name(nb::handle object) { return text_of(nb::getattr(object.type(), "__name__")); }

/// What the pending Python error says; clears it.
std::string error_text(nb::python_error& error) { return text_of(error.value()); }

constexpr const char* kDTypes = "float32, float64, bfloat16, float8_e4m3fn, uint8, int32, int64 or bool";

struct DTypeName {
  std::string_view name;
  DType dtype;
};
// Words of frameworks, of safetensors and of C++. Two bytes without a sign are bfloat16's bits where a framework lacks
// it.
constexpr std::array kDTypeNames = {DTypeName{"float32", DType::kF32},
                                    DTypeName{"F32", DType::kF32},
                                    DTypeName{"f32", DType::kF32},
                                    DTypeName{"float", DType::kF32},
                                    DTypeName{"float64", DType::kF64},
                                    DTypeName{"F64", DType::kF64},
                                    DTypeName{"f64", DType::kF64},
                                    DTypeName{"bfloat16", DType::kBF16},
                                    DTypeName{"BF16", DType::kBF16},
                                    DTypeName{"bf16", DType::kBF16},
                                    DTypeName{"uint16", DType::kBF16},
                                    DTypeName{"float8_e4m3fn", DType::kE4M3},
                                    DTypeName{"F8_E4M3", DType::kE4M3},
                                    DTypeName{"E4M3", DType::kE4M3},
                                    DTypeName{"e4m3", DType::kE4M3},
                                    DTypeName{"uint8", DType::kU8},
                                    DTypeName{"U8", DType::kU8},
                                    DTypeName{"u8", DType::kU8},
                                    DTypeName{"float8_e8m0fnu", DType::kU8},
                                    DTypeName{"int32", DType::kI32},
                                    DTypeName{"I32", DType::kI32},
                                    DTypeName{"i32", DType::kI32},
                                    DTypeName{"int64", DType::kI64},
                                    DTypeName{"I64", DType::kI64},
                                    DTypeName{"i64", DType::kI64},
                                    DTypeName{"bool", DType::kBool},
                                    DTypeName{"BOOL", DType::kBool}};

/// False for a name that is none.
bool find_dtype(std::string_view name, DType& dtype) {
  for (const DTypeName& known : kDTypeNames) {
    if (known.name == name) return dtype = known.dtype, true;
  }
  return false;
}

DType dtype_of_word(std::string_view name, const std::string& word) {
  const std::size_t dot = word.rfind('.');  // "torch.bfloat16"
  DType dtype{};
  if (!find_dtype(dot == std::string::npos ? word : word.substr(dot + 1), dtype)) fail(name, "dtype " + word, kDTypes);
  return dtype;
}

/// A type of a module that is loaded; null before it is.
nb::handle loaded_type(const char* module, const char* type, nb::handle& known) {
  if (!known.is_valid()) {
    const nb::object loaded = loaded_module(module);
    if (loaded.is_valid() && nb::hasattr(loaded, type)) known = nb::getattr(loaded, type).release();  // lives on
  }
  return known;
}

/// Without asking the type's metaclass, which is Python code for torch's.
bool is_instance(nb::handle object, nb::handle type) {
  return type.is_valid() && PyType_IsSubtype(Py_TYPE(object.ptr()), reinterpret_cast<PyTypeObject*>(type.ptr())) != 0;
}

bool is_torch(nb::handle object) {
  static nb::handle type;
  return is_instance(object, loaded_type("torch", "Tensor", type));
}
bool is_cupy(nb::handle object) {
  static nb::handle type;
  return is_instance(object, loaded_type("cupy", "ndarray", type));
}
/// jax's arrays must not change, which jax before 0.12 does not tell.
bool is_jax(nb::handle object) {
  static nb::handle type;
  return is_instance(object, loaded_type("jax", "Array", type));
}
bool is_numpy(nb::handle object) {
  static nb::handle type;
  return is_instance(object, loaded_type("numpy", "ndarray", type));
}

/// Sizes and strides of a tuple; strides are divided by `unit`.
void read_numbers(std::string_view name, nb::handle numbers, std::array<std::int64_t, Tensor::kMaxRank>& to, int rank,
                  std::int64_t unit = 1) {
  for (int i = 0; i < rank; ++i) {
    const auto value = nb::cast<std::int64_t>(numbers[static_cast<std::size_t>(i)]);
    if (value % unit != 0)
      fail(name, "a stride of " + std::to_string(value) + " bytes", "a multiple of " + std::to_string(unit));
    to[static_cast<std::size_t>(i)] = value / unit;
  }
}

int checked_rank(std::string_view name, std::size_t rank) {
  if (rank > static_cast<std::size_t>(Tensor::kMaxRank)) fail(name, std::to_string(rank) + " dimensions", "at most 8");
  return static_cast<int>(rank);
}

DType torch_dtype(std::string_view name, nb::handle dtype) {
  // torch's dtypes are singletons that live as long as the process.
  static std::unordered_map<PyObject*, DType> known;
  if (const auto at = known.find(dtype.ptr()); at != known.end()) return at->second;
  const DType found = dtype_of_word(name, text_of(dtype));
  known.emplace(dtype.ptr(), found);
  return found;
}

Tensor read_torch(std::string_view name, nb::handle object) {
  Tensor t;
  t.framework = Framework::kTorch;
  const nb::object shape = object.attr("shape");
  t.rank = checked_rank(name, nb::len(shape));
  read_numbers(name, shape, t.shape, t.rank);
  t.dtype = torch_dtype(name, object.attr("dtype"));
  if (nb::cast<bool>(object.attr("is_cuda"))) {
    t.place = {DeviceKind::kCuda, nb::cast<int>(object.attr("get_device")())};
  } else if (!nb::cast<bool>(object.attr("is_cpu"))) {
    fail(name, "a tensor on " + text_of(object.attr("device")), "one on the CPU or on a CUDA GPU");
  }
  // Tensors that only stand for others (of a trace, of another layout) have no address and say so here.
  read_numbers(name, object.attr("stride")(), t.stride, t.rank);
  t.data = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(object.attr("data_ptr")()));
  t.requires_grad = nb::cast<bool>(object.attr("requires_grad"));
  t.owner = nb::borrow(object);
  return t;
}

Tensor read_numpy(std::string_view name, nb::handle object) {
  Tensor t;
  t.framework = Framework::kNumpy;
  const nb::object interface = object.attr("__array_interface__");
  const nb::object shape = interface["shape"];
  t.rank = checked_rank(name, nb::len(shape));
  read_numbers(name, shape, t.shape, t.rank);
  t.dtype = dtype_of_word(name, text_of(object.attr("dtype").attr("name")));
  if (const std::string type = text_of(interface["typestr"]); type.front() == '>')
    fail(name, "bytes in the order of another machine (" + type + ")", "this machine's order");
  read_numbers(name, object.attr("strides"), t.stride, t.rank, size_of(t.dtype));
  const nb::object data = interface["data"];
  t.data = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(data[0]));
  t.read_only = nb::cast<bool>(data[1]);
  t.owner = nb::borrow(object);
  return t;
}

DType dlpack_dtype(std::string_view name, const dlpack::DataType& type) {
  using dlpack::TypeCode;
  const auto is = [&](TypeCode code, int bits) {
    return type.code == static_cast<std::uint8_t>(code) && type.bits == bits && type.lanes == 1;
  };
  if (is(TypeCode::kFloat, 32)) return DType::kF32;
  if (is(TypeCode::kFloat, 64)) return DType::kF64;
  if (is(TypeCode::kBfloat, 16) || is(TypeCode::kUInt, 16)) return DType::kBF16;
  if (is(TypeCode::kFloat8E4M3FN, 8)) return DType::kE4M3;
  if (is(TypeCode::kUInt, 8) || is(TypeCode::kFloat8E8M0FNU, 8)) return DType::kU8;
  if (is(TypeCode::kInt, 32)) return DType::kI32;
  if (is(TypeCode::kInt, 64)) return DType::kI64;
  if (is(TypeCode::kBool, 8)) return DType::kBool;
  fail(name,
       "DLPack type code " + std::to_string(type.code) + " of " + std::to_string(type.bits) + " bits x " +
           std::to_string(type.lanes),
       kDTypes);
}

void read_dlpack(std::string_view name, const dlpack::Tensor& from, Tensor& t) {
  t.dtype = dlpack_dtype(name, from.dtype);
  t.rank = checked_rank(name, static_cast<std::size_t>(std::max(from.rank, 0)));
  std::int64_t step = 1;
  for (int i = t.rank - 1; i >= 0; --i) {
    const auto d = static_cast<std::size_t>(i);
    t.shape[d] = from.shape[i];
    t.stride[d] = from.strides == nullptr ? step : from.strides[i];
    step *= std::max<std::int64_t>(t.shape[d], 1);
  }
  t.data = from.data == nullptr ? nullptr : static_cast<char*>(from.data) + from.byte_offset;
}

/// Calls producer(max_version=(1, 1), ...), and without the version for producers that do not know it.
nb::object export_dlpack(nb::handle object, nb::dict& options) {
  const nb::object producer = object.attr("__dlpack__");
  options["max_version"] = nb::make_tuple(1, 1);
  try {
    return producer(**options);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
  }
  PyDict_DelItemString(options.ptr(), "max_version");
  return producer(**options);
}

/// Frees an exported tensor whose capsule has been consumed.
template <class Managed>
nb::object hold(Managed* managed) {
  return nb::capsule(managed, [](void* p) noexcept {
    auto* held = static_cast<Managed*>(p);
    if (held->deleter != nullptr) held->deleter(held);
  });
}

Tensor read_exported(std::string_view name, nb::handle object, void* stream) {
  Tensor t;
  t.framework = is_cupy(object) ? Framework::kCupy : Framework::kOther;
  const nb::object device = object.attr("__dlpack_device__")();
  const auto kind = static_cast<dlpack::DeviceType>(nb::cast<int>(nb::int_(nb::object(device[0]))));
  const bool on_gpu = kind == dlpack::DeviceType::kCuda || kind == dlpack::DeviceType::kCudaManaged;
  if (!on_gpu && kind != dlpack::DeviceType::kCpu && kind != dlpack::DeviceType::kCudaHost)
    fail(name, "a tensor on DLPack device " + text_of(device), "one on the CPU or on a CUDA GPU");
  nb::dict options;
  if (on_gpu) {
    t.place = {DeviceKind::kCuda, nb::cast<int>(device[1])};
    // cupy's stream is the call's, or the caller's concern; others wait for their work: 1 is the default stream.
    const auto handle = reinterpret_cast<std::uintptr_t>(stream);
    options["stream"] = t.framework == Framework::kCupy ? nb::int_(-1) : nb::int_(handle == 0 ? 1 : handle);
  }
  const nb::object capsule = export_dlpack(object, options);
  if (void* versioned = PyCapsule_IsValid(capsule.ptr(), dlpack::kVersionedName) != 0
                            ? PyCapsule_GetPointer(capsule.ptr(), dlpack::kVersionedName)
                            : nullptr) {
    auto* managed = static_cast<dlpack::ManagedTensorVersioned*>(versioned);
    if (managed->version.major != 1)
      fail(name, "DLPack version " + std::to_string(managed->version.major), "version 1");
    (void)PyCapsule_SetName(capsule.ptr(), dlpack::kVersionedUsedName);
    t.owner = hold(managed);
    t.read_only = (managed->flags & dlpack::kReadOnly) != 0;
    read_dlpack(name, managed->tensor, t);
  } else if (void* plain = PyCapsule_GetPointer(capsule.ptr(), dlpack::kName)) {
    auto* managed = static_cast<dlpack::ManagedTensor*>(plain);
    (void)PyCapsule_SetName(capsule.ptr(), dlpack::kUsedName);
    t.owner = hold(managed);
    read_dlpack(name, managed->tensor, t);
  } else {
    PyErr_Clear();
    fail(name, "a __dlpack__ that returned no fresh DLPack capsule", "one");
  }
  t.read_only = t.read_only || is_jax(object);
  return t;
}

/// Sizes are sizes, strides do not run backwards, and there is memory where there are elements.
void check_tensor(std::string_view name, const Tensor& t) {
  std::int64_t elements = 1;
  for (int i = 0; i < t.rank; ++i) {
    const std::int64_t size = t.shape[static_cast<std::size_t>(i)];
    if (size < 0) fail(name, "dimension " + std::to_string(i) + " of " + std::to_string(size), "0 or more");
    if (size != 0 && elements > std::numeric_limits<std::int64_t>::max() / size / 8)
      fail(name, "a tensor of more than 2^60 elements", "one that memory can hold");
    elements *= size;
  }
  for (int i = 0; i < t.rank && elements > 1; ++i) {
    const std::int64_t stride = t.stride[static_cast<std::size_t>(i)];
    if (stride < 0) fail(name, "stride " + std::to_string(i) + " of " + std::to_string(stride), "0 or more");
  }
  if (elements > 0 && t.data == nullptr)
    fail(name, "a tensor without memory (" + describe(t) + ", freed)", "one that has its memory");
}

}  // namespace

std::int64_t Tensor::numel() const {
  std::int64_t n = 1;
  for (int i = 0; i < rank; ++i) n *= shape[static_cast<std::size_t>(i)];
  return n;
}

std::string describe(const Place& place) {
  return place.kind == DeviceKind::kCpu ? "cpu" : "cuda:" + std::to_string(place.ordinal);
}

std::string describe(const Tensor& tensor) {
  std::string text = "[";
  for (int i = 0; i < tensor.rank; ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(tensor.shape[static_cast<std::size_t>(i)]);
  return text + "] " + std::string(name_of(tensor.dtype));
}

nb::object loaded_module(const char* name) {
  PyObject* modules = PyImport_GetModuleDict();
  PyObject* module = PyDict_GetItemString(modules, name);
  if (module == nullptr) return {};
  return nb::borrow(module);
}

bool is_tensor(nb::handle object) { return is_torch(object) || is_numpy(object) || nb::hasattr(object, "__dlpack__"); }

Tensor read_tensor(std::string_view name, nb::handle object, void* stream) {
  Tensor t;
  try {
    if (is_torch(object)) {
      t = read_torch(name, object);
    } else if (is_numpy(object)) {
      t = read_numpy(name, object);
    } else if (nb::hasattr(object, "__dlpack__")) {
      t = read_exported(name, object, stream);
    } else {
      fail(name, "a " + class_name(object), "a tensor (torch, numpy, or any with __dlpack__)");
    }
  } catch (nb::python_error& error) {
    if (error.matches(PyExc_KeyboardInterrupt)) throw;
    fail(name, "a " + class_name(object) + " that cannot be shared (" + error_text(error) + ")",
         "a tensor with memory of its own");
  } catch (const nb::cast_error&) {
    fail(name, "a " + class_name(object) + " whose attributes are not those of a tensor", "a tensor");
  }
  check_tensor(name, t);
  return t;
}

DType read_dtype(std::string_view name, nb::handle object) {
  if (PyUnicode_Check(object.ptr()) == 0 && nb::hasattr(object, "name"))
    return dtype_of_word(name, text_of(object.attr("name")));  // numpy's
  return dtype_of_word(name, text_of(object));
}

std::optional<Place> read_place(nb::handle device) {
  if (device.is_none()) return {};
  const std::string text = nb::cast<std::string>(nb::str(device));
  if (text == "cpu") return Place{};
  if (text == "cuda") return Place{DeviceKind::kCuda, current_device(DeviceKind::kCuda)};
  if (text.substr(0, 5) == "cuda:" && text.size() > 5 && text.size() < 9 &&
      text.find_first_not_of("0123456789", 5) == std::string::npos)
    return Place{DeviceKind::kCuda, std::stoi(text.substr(5))};
  throw InvalidArgument("device: got \"" + text + "\", expected \"cpu\", \"cuda\" or \"cuda:0\"");
}

void* current_stream(const Tensor& tensor) {
  if (tensor.place.kind == DeviceKind::kCpu) return nullptr;
  if (tensor.framework == Framework::kTorch) {
    const nb::object stream = loaded_module("torch").attr("cuda").attr("current_stream")(tensor.place.ordinal);
    return reinterpret_cast<void*>(nb::cast<std::uintptr_t>(stream.attr("cuda_stream")));
  }
  if (tensor.framework == Framework::kCupy) {
    const nb::object stream = loaded_module("cupy").attr("cuda").attr("get_current_stream")();
    return reinterpret_cast<void*>(nb::cast<std::uintptr_t>(stream.attr("ptr")));
  }
  return nullptr;
}

void* read_stream(nb::handle object) {
  try {
    for (const char* handle : {"cuda_stream", "ptr"}) {
      if (nb::hasattr(object, handle)) return read_stream(object.attr(handle));
    }
    if (nb::hasattr(object, "__cuda_stream__")) {
      const nb::object pair = object.attr("__cuda_stream__")();
      return read_stream(nb::object(pair[1]));
    }
    if (PyLong_Check(object.ptr()) != 0 && PyBool_Check(object.ptr()) == 0)
      return reinterpret_cast<void*>(nb::cast<std::uintptr_t>(object));
  } catch (const nb::cast_error&) {
    // Negative, or more than an address: said below.
  }
  fail("stream", nb::cast<std::string>(nb::repr(object)),
       "None, a cudaStream_t as an int, or a stream of torch or cupy");
}

}  // namespace smla::python
