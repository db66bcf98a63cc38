#include "python/call.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "c/descriptors.h"
#include "c/named.h"
#include "device/memory.h"
#include "python/workspace.h"

namespace smla::python {

namespace {

using c::fail_member;

std::string repr_of(nb::handle value) {
  std::string text = nb::cast<std::string>(nb::repr(value));
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text;
}

bool is_sequence(nb::handle value) { return PyList_Check(value.ptr()) != 0 || PyTuple_Check(value.ptr()) != 0; }
bool is_cache(nb::handle value) { return nb::isinstance<Cache>(value); }
bool is_number(nb::handle value) {
  return PyLong_Check(value.ptr()) != 0 || PyFloat_Check(value.ptr()) != 0 || PyBool_Check(value.ptr()) != 0;
}
bool is_word(nb::handle value) { return PyUnicode_Check(value.ptr()) != 0; }

[[noreturn]] void fail_unknown(const OpRow& op, const std::string& name) {
  std::string names;
  for (const OpMember& member : op.members) names += (names.empty() ? "" : ", ") + std::string(member.name);
  fail_member(op.name, name, "a member of that name", "one of " + names);
}

/// Strides as the C interface takes them: those of dimensions of one element do not matter, and all zero means
/// contiguous there.
void copy_strides(const std::string& name, const Tensor& t, smla_tensor& to) {
  std::int64_t step = 1;
  bool all_zero = true;
  for (int i = t.rank - 1; i >= 0; --i) {
    const auto d = static_cast<std::size_t>(i);
    to.shape[i] = t.shape[d];
    to.strides[i] = t.shape[d] == 1 || t.numel() == 0 ? step : t.stride[d];
    all_zero = all_zero && to.strides[i] == 0;
    step *= std::max<std::int64_t>(t.shape[d], 1);
  }
  if (all_zero && t.rank > 0)
    throw InvalidArgument(name + ": got strides of 0 (" + describe(t) +
                          ", one element seen many times), expected a tensor with its own elements");
}

smla_dtype c_dtype(DType dtype) { return c::write_dtype(dtype); }

}  // namespace

void check_status(smla_status status) {
  if (status == SMLA_OK) return;
  const std::string text = smla_last_error();
  switch (status) {
    case SMLA_INVALID_ARGUMENT: throw InvalidArgument(text);
    case SMLA_UNSUPPORTED: throw Unsupported(text);
    case SMLA_IO_ERROR: throw IoError(text);
    case SMLA_CUDA_ERROR: throw CudaError(text);
    case SMLA_OUT_OF_MEMORY: throw std::bad_alloc();
    default: throw Error(text);
  }
}

CacheView read_cache(std::string_view name, const Cache& cache, void* stream) {
  const auto fail = [&](const std::string& got, const std::string& expected) {
    throw InvalidArgument(std::string(name) + ": got " + got + ", expected " + expected);
  };
  CacheView view{.tensor = read_tensor(name, cache.tensor, stream)};
  const Tensor& t = view.tensor;
  const RowFormat& format = row_format(cache.format);
  const std::int64_t item = size_of(t.dtype);
  const std::int64_t least = block_bytes(format, cache.block_size);
  // Bytes of a block that lie one after the other; a matrix and more has blocks as its first dimension.
  const int first = t.rank >= 2 ? 1 : 0;
  std::int64_t run = 1;
  for (int i = t.rank - 1; i >= first; --i) {
    const auto d = static_cast<std::size_t>(i);
    if (t.shape[d] != 1 && t.stride[d] != run && t.numel() > 0)
      fail("stride " + std::to_string(t.stride[d]) + " of dimension " + std::to_string(i),
           std::to_string(run) + ": only blocks may lie apart");
    run *= t.shape[d];
  }
  if (t.rank == 0) fail("a number", "blocks of bytes");
  std::int64_t blocks = 0;
  std::int64_t stride = cache.block_stride_bytes;
  if (t.rank == 1) {
    const std::int64_t bytes = run * item;
    if (stride == 0) stride = least;
    if (stride < least)
      fail("a block stride of " + std::to_string(stride) + " bytes", std::to_string(least) + " or more");
    blocks = bytes < least ? 0 : (bytes - least) / stride + 1;
  } else {
    const std::int64_t own = t.shape[0] == 1 ? std::max(run * item, least) : t.stride[0] * item;
    blocks = run == 0 ? 0 : t.shape[0];
    if (blocks > 0 && run * item < least)
      fail("blocks of " + std::to_string(run * item) + " bytes (" + describe(t) + ")",
           std::to_string(least) + " bytes or more: " + std::to_string(cache.block_size) + " rows of " + cache.format);
    if (stride != 0 && stride != own && blocks > 1)
      fail("block_stride_bytes " + std::to_string(stride), std::to_string(own) + ", the tensor's own stride");
    stride = own;
  }
  view.cache = {.struct_size = sizeof(smla_cache),
                .format = format.name.data(),  // a literal
                .base = t.data,
                .num_blocks = blocks,
                .block_size = cache.block_size,
                .block_stride_bytes = stride,
                .kv_scale = cache.kv_scale,
                .reserved = 0};
  return view;
}

void Call::add(const std::string& name, nb::handle value) {
  const OpMember* scalar = op_.scalar(name);
  const OpMember* tensor = op_.tensor(name);
  if (value.is_none()) {
    if (scalar != nullptr || tensor != nullptr) return;
    // A part that is absent: "query_prologue", "scopes[1]".
    for (const OpMember& member : op_.members) {
      if (member.name.substr(0, name.size()) == name && member.name.size() > name.size() &&
          (member.name[name.size()] == '.' || member.name[name.size()] == '['))
        return;
    }
    fail_unknown(op_, name);
  }
  if (PyDict_Check(value.ptr()) != 0) {
    for (const auto& [key, inner] : nb::cast<nb::dict>(value)) {
      if (!is_word(key)) fail_member(op_.name, name, "a key " + repr_of(key), "names of members");
      add(name + "." + nb::cast<std::string>(key), inner);
    }
  } else if (is_sequence(value)) {
    const std::string element = name + "[";
    if (std::none_of(op_.members.begin(), op_.members.end(),
                     [&](const OpMember& m) { return m.name.substr(0, element.size()) == element; }))
      fail_member(op_.name, name, "a list", tensor != nullptr ? "a tensor" : "the name of a list");
    const auto count = static_cast<std::size_t>(nb::len(value));
    for (std::size_t i = 0; i < count; ++i) add(name + "[" + std::to_string(i) + "]", nb::object(value[i]));
  } else if (tensor != nullptr && (scalar == nullptr || is_cache(value) || is_tensor(value))) {
    add_tensor(*tensor, value);
  } else if (scalar != nullptr) {
    add_scalar(*scalar, value);
  } else {
    fail_unknown(op_, name);
  }
}

void Call::add_scalar(const OpMember& member, nb::handle value) {
  for (const NamedScalar& known : scalars_)
    if (known.name == member.name) fail_member(op_.name, member.name, "it twice", "it once");
  const auto expect = [&](bool fits, const char* expected) {
    if (!fits) fail_member(op_.name, member.name, repr_of(value), expected);
  };
  const std::string full_name = std::string(op_.name) + ": " + std::string(member.name);
  NamedScalar scalar{.name = member.name, .value = std::int64_t{0}};
  switch (member.kind) {
    case MemberKind::kInteger:
    case MemberKind::kFlag: {
      nb::object index = nb::steal(PyNumber_Index(value.ptr()));  // ints, numpy's ints
      if (!index.is_valid()) PyErr_Clear();
      expect(index.is_valid(), member.kind == MemberKind::kFlag ? "True or False" : "an integer");
      int overflow = 0;
      const long long number = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
      expect(overflow == 0, "a number of 64 bits");
      scalar.value = static_cast<std::int64_t>(number);
      break;
    }
    case MemberKind::kNumber: {
      const double number = is_word(value) ? 0 : PyFloat_AsDouble(value.ptr());
      const bool failed = PyErr_Occurred() != nullptr;
      if (failed) PyErr_Clear();
      expect(!failed && !is_word(value), "a number");
      scalar.value = number;
      break;
    }
    case MemberKind::kDType: scalar.value = name_of(read_dtype(full_name, value)); break;
    default:
      expect(is_word(value), "a word");
      words_.push_back(nb::cast<std::string>(value));
      scalar.value = std::string_view(words_.back());
  }
  scalars_.push_back(scalar);
}

void Call::add_tensor(const OpMember& member, nb::handle value) {
  for (const Value& known : values_)
    if (known.member == &member) fail_member(op_.name, member.name, "it twice", "it once");
  if (is_number(value) || is_word(value))
    fail_member(op_.name, member.name, repr_of(value),
                member.kind == MemberKind::kCache ? "a sparsemla.Cache" : "a tensor");
  if (member.kind == MemberKind::kCache && !is_cache(value))
    fail_member(op_.name, member.name, "a " + nb::cast<std::string>(nb::getattr(value.type(), "__name__")),
                "a sparsemla.Cache (Cache(tensor, format, block_size))");
  if (member.kind != MemberKind::kCache && is_cache(value)) fail_member(op_.name, member.name, "a Cache", "a tensor");
  values_.push_back({.member = &member,
                     .object = nb::borrow(value),
                     .full_name = std::string(op_.name) + ": " + std::string(member.name),
                     .is_cache = member.kind == MemberKind::kCache});
}

void Call::read_tensors(void* stream) {
  for (Value& v : values_) {
    if (v.is_cache) {
      CacheView view = read_cache(v.full_name, *nb::inst_ptr<Cache>(v.object), stream);
      v.tensor = std::move(view.tensor);
      v.c_cache = view.cache;
    } else {
      v.tensor = read_tensor(v.full_name, v.object, stream);
      if (v.tensor.rank < 1 || v.tensor.rank > 4)
        throw InvalidArgument(v.full_name + ": got " + std::to_string(v.tensor.rank) + " dimensions, expected 1 to 4");
    }
    if (v.member->written && v.tensor.read_only && !v.is_cache)
      throw InvalidArgument(v.full_name + ": got a read-only tensor, expected one that can be written");
    if (v.member->written && v.tensor.requires_grad)
      throw InvalidArgument(v.full_name +
                            ": got a tensor that requires grad, expected one that can be written (detach it)");
  }
}

Place Call::place() const {
  if (values_.empty()) return {};
  const Value& first = values_.front();
  for (const Value& v : values_) {
    if (v.tensor.place == first.tensor.place) continue;
    throw InvalidArgument(v.full_name + ": got a tensor on " + describe(v.tensor.place) + ", expected one on " +
                          describe(first.tensor.place) + " beside " + std::string(first.member->name));
  }
  return first.tensor.place;
}

const Tensor* Call::leader() const {
  for (const Value& v : values_)
    if (v.tensor.framework == Framework::kTorch) return &v.tensor;
  return values_.empty() ? nullptr : &values_.front().tensor;
}

nb::handle Call::first_object() const {
  if (values_.empty()) return {};
  const Value& v = values_.front();
  return v.is_cache ? nb::handle(nb::inst_ptr<Cache>(v.object)->tensor) : nb::handle(v.object);
}

void Call::determine() {
  std::vector<NamedTensor> tensors;
  for (const Value& v : values_) {
    NamedTensor t{.name = v.member->name,
                  .dtype = v.tensor.dtype,
                  .shape = std::span(v.tensor.shape).first(static_cast<std::size_t>(v.tensor.rank))};
    if (v.is_cache) {
      t.format = &row_format(v.c_cache.format);
      t.block_size = v.c_cache.block_size;
    }
    tensors.push_back(t);
  }
  for (NamedScalar& found : determine_scalars(op_, scalars_, tensors)) {
    if (const auto* word = std::get_if<std::string_view>(&found.value)) {
      words_.emplace_back(*word);  // C reads it to its end
      found.value = std::string_view(words_.back());
    }
    scalars_.push_back(found);
  }
  auto next = tensors.begin();
  for (Value& v : values_) v.tensor.dtype = (next++)->dtype;
}

std::vector<smla_scalar> Call::scalars() const {
  std::vector<smla_scalar> out;
  for (const NamedScalar& s : scalars_) {
    smla_scalar scalar{
        .struct_size = sizeof(smla_scalar), .name = s.name.data(), .integer = 0, .number = 0, .text = nullptr};
    if (const auto* integer = std::get_if<std::int64_t>(&s.value)) {
      scalar.integer = *integer;
    } else if (const auto* number = std::get_if<double>(&s.value)) {
      scalar.number = *number;
    } else {
      const std::string_view word = std::get<std::string_view>(s.value);
      if (op_.scalar(s.name)->kind == MemberKind::kDType) {
        scalar.integer = c_dtype(dtype_from_name(word));
      } else {
        scalar.text = word.data();  // of words_
      }
    }
    out.push_back(scalar);
  }
  return out;
}

std::vector<smla_argument> Call::arguments() const {
  std::vector<smla_argument> out;
  for (const Value& v : values_) {
    auto& value = const_cast<Value&>(v);  // its C struct is a scratch of this function
    smla_argument a{
        .struct_size = sizeof(smla_argument), .name = v.member->name.data(), .tensor = nullptr, .cache = nullptr};
    if (v.is_cache) {
      a.cache = &v.c_cache;
    } else {
      value.c_tensor = {.struct_size = sizeof(smla_tensor),
                        .data = v.tensor.data,
                        .dtype = c_dtype(v.tensor.dtype),
                        .rank = v.tensor.rank,
                        .shape = {},
                        .strides = {}};
      copy_strides(v.full_name, v.tensor, value.c_tensor);
      a.tensor = &v.c_tensor;
    }
    out.push_back(a);
  }
  return out;
}

namespace {
template <class T>
void append_bytes(std::string& to, const T& value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof(value));
}
}  // namespace

std::string Call::signature() const {
  std::string key;
  key.reserve(64 * (values_.size() + scalars_.size() + 2));
  append_bytes(key, reinterpret_cast<std::uintptr_t>(&op_));
  for (const NamedScalar& s : scalars_) {
    append_bytes(key, reinterpret_cast<std::uintptr_t>(s.name.data()));
    append_bytes(key, s.value.index());
    if (const auto* word = std::get_if<std::string_view>(&s.value)) {
      append_bytes(key, word->size());
      key += *word;
    } else if (const auto* number = std::get_if<double>(&s.value)) {
      append_bytes(key, *number);
    } else {
      append_bytes(key, std::get<std::int64_t>(s.value));
    }
  }
  for (const Value& v : values_) {
    append_bytes(key, reinterpret_cast<std::uintptr_t>(v.member));
    if (v.is_cache) {
      append_bytes(key, reinterpret_cast<std::uintptr_t>(v.c_cache.format));
      append_bytes(key, v.c_cache.block_size);
    } else {
      append_bytes(key, v.tensor.dtype);
      append_bytes(key, v.tensor.rank);
      key.append(reinterpret_cast<const char*>(v.tensor.shape.data()),
                 sizeof(std::int64_t) * static_cast<std::size_t>(v.tensor.rank));
    }
  }
  return key;
}

bool Call::has_bytes() const {
  return std::any_of(values_.begin(), values_.end(),
                     [](const Value& v) { return !v.is_cache && v.tensor.dtype == DType::kU8; });
}

std::vector<DType> Call::dtypes() const {
  std::vector<DType> dtypes;
  for (const Value& v : values_) dtypes.push_back(v.tensor.dtype);
  return dtypes;
}

void Call::set_dtypes(const std::vector<DType>& dtypes) {
  auto next = dtypes.begin();
  for (Value& v : values_) v.tensor.dtype = *next++;
}

Plan::Plan(const Call& call, const Place& place, const CallOptions& options) : op_(call.op()), place_(place) {
  const std::vector<smla_scalar> scalars = call.scalars();
  const smla_plan_options c_options{
      .struct_size = sizeof(smla_plan_options),
      .implementation = options.implementation.empty() ? nullptr : options.implementation.c_str(),
      .device = place.kind == DeviceKind::kCpu ? SMLA_CPU : SMLA_CUDA,
      .threads = options.threads,
      .deterministic = options.deterministic ? 1 : 0,
      .reserved = 0};
  smla_status status = SMLA_OK;
  smla_plan* plan = nullptr;
  {
    const nb::gil_scoped_release released;
    const CurrentDevice current(place.kind, place.ordinal);
    status =
        smla_plan_create(op_.name.data(), scalars.data(), static_cast<std::int64_t>(scalars.size()), &c_options, &plan);
    plan_.reset(plan);
    if (status == SMLA_OK) status = smla_plan_workspace(plan, &workspace_bytes_, &implementation_);
  }
  check_status(status);
}

std::string Plan::implementation() const { return implementation_; }

void Plan::run(const Call& call, nb::handle workspace, void* stream, bool own_stream) const {
  const std::vector<smla_argument> arguments = call.arguments();
  const LentWorkspace lent(op_.name, workspace, workspace_bytes_, place_, call.leader(), stream, own_stream);
  smla_status status = SMLA_OK;
  {
    const nb::gil_scoped_release released;
    const CurrentDevice current(place_.kind, place_.ordinal);
    status = smla_plan_run(plan_.get(), arguments.data(), static_cast<std::int64_t>(arguments.size()), lent.data(),
                           lent.bytes(), stream);
  }
  check_status(status);
}

}  // namespace smla::python
