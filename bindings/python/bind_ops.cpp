// Python's view of ops: Cache, Plan, and calls by name.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <map>
#include <memory>
#include <optional>
#include <unordered_map>

#include "device/memory.h"
#include "python/call.h"

namespace smla::python {

namespace {

const OpRow& find_op(const std::string& name) {
  std::string known;
  for (const OpRow& op : op_table()) {
    if (op.name == name) return op;
    known += (known.empty() ? "" : ", ") + std::string(op.name);
  }
  throw InvalidArgument("op: got \"" + name + "\", expected one of " + known);
}

CallOptions read_options(const std::optional<std::string>& implementation, bool deterministic, int threads) {
  return {.implementation = implementation.value_or(""), .deterministic = deterministic, .threads = threads};
}

/// The stream of a call: what was given, or the current one of the tensors' framework.
struct CallStream {
  void* handle = nullptr;
  bool own = false;
};

CallStream given_stream(nb::handle stream) {
  if (stream.is_none()) return {};
  return {read_stream(stream), true};
}

/// Imports the call's tensors and finds the stream.
CallStream prepare(Call& call, nb::handle stream) {
  CallStream found = given_stream(stream);
  call.read_tensors(found.handle);
  const Place place = call.place();
  if (place.kind == DeviceKind::kCpu) {
    if (found.handle != nullptr) throw InvalidArgument("stream: got a stream for tensors on the CPU, expected None");
  } else if (!found.own && call.leader() != nullptr) {
    found.handle = current_stream(*call.leader());
  }
  return found;
}

/// A call that was planned before: its plan, and what its tensors' bytes stand for.
struct KnownCall {
  std::shared_ptr<const Plan> plan;
  std::vector<DType> dtypes;
};

/// Fills in the call and finds its plan, again where the same shapes were seen before. The caller holds the GIL.
std::shared_ptr<const Plan> find_plan(Call& call, const Place& place, const CallOptions& options) {
  constexpr std::size_t kMost = 4096;
  static std::unordered_map<std::string, KnownCall> known;
  std::string key = call.signature() + describe(place) + "\n" + options.implementation + "\n" +
                    (options.deterministic ? "d" : "") + std::to_string(options.threads);
  if (const auto at = known.find(key); at != known.end()) {
    call.set_dtypes(at->second.dtypes);
    return at->second.plan;
  }
  call.determine();
  auto plan = std::make_shared<const Plan>(call, place, options);
  if (known.size() >= kMost) known.clear();
  known.emplace(std::move(key), KnownCall{plan, call.dtypes()});
  return plan;
}

void call_op(const std::string& name, const nb::dict& members, nb::handle stream, nb::handle workspace,
             nb::handle device, const std::optional<std::string>& implementation, bool deterministic, int threads) {
  Call call(find_op(name));
  for (const auto& [key, value] : members) call.add(nb::cast<std::string>(key), value);
  const CallStream on = prepare(call, stream);
  const Place place = call.place();
  if (const auto wanted = read_place(device); wanted && *wanted != place)
    throw InvalidArgument("device: got " + describe(*wanted) + ", expected " + describe(place) +
                          ", where the tensors are");
  find_plan(call, place, read_options(implementation, deterministic, threads))->run(call, workspace, on.handle, on.own);
}

/// A plan that Python holds.
struct HeldPlan {
  std::shared_ptr<const Plan> plan;
  std::map<std::string, nb::object> scalars;
};

nb::object scalar_object(const NamedScalar& s) {
  if (const auto* integer = std::get_if<std::int64_t>(&s.value)) return nb::int_(*integer);
  if (const auto* number = std::get_if<double>(&s.value)) return nb::float_(*number);
  const std::string_view word = std::get<std::string_view>(s.value);
  return nb::str(word.data(), word.size());
}

void make_plan(HeldPlan* to, const std::string& op, const nb::dict& scalars, nb::handle device,
               const std::optional<std::string>& implementation, bool deterministic, int threads) {
  Call call(find_op(op));
  for (const auto& [key, value] : scalars) call.add(nb::cast<std::string>(key), value);
  if (call.has_tensors())
    throw InvalidArgument(op + ": scalars: got a tensor, expected scalars (tensors are given to run)");
  new (to) HeldPlan{std::make_shared<const Plan>(call, read_place(device).value_or(Place{}),
                                                 read_options(implementation, deterministic, threads)),
                    {}};
}

void run_plan(const HeldPlan& held, const nb::dict& tensors, nb::handle workspace, nb::handle stream) {
  const Plan& plan = *held.plan;
  Call call(plan.op());
  for (const auto& [key, value] : tensors) call.add(nb::cast<std::string>(key), value);
  const CallStream on = prepare(call, stream);
  if (call.has_tensors() && call.place() != plan.place())
    throw InvalidArgument(std::string(plan.op().name) + ": tensors: got them on " + describe(call.place()) +
                          ", expected them on " + describe(plan.place()) + ", for which the plan was made");
  if (call.has_bytes()) call.determine();
  plan.run(call, workspace, on.handle, on.own);
}

/// The scalars of a call as they would be planned.
nb::dict determine(const std::string& op, const nb::dict& members) {
  Call call(find_op(op));
  for (const auto& [key, value] : members) call.add(nb::cast<std::string>(key), value);
  call.read_tensors(nullptr);
  call.determine();
  nb::dict found;
  for (const NamedScalar& s : call.named_scalars()) found[nb::str(s.name.data(), s.name.size())] = scalar_object(s);
  return found;
}

nb::list members_of(const std::string& op) {
  static constexpr const char* kKinds[] = {"",       "int",  "bool",  "dtype",  "float",
                                           "format", "word", "input", "output", "cache"};
  nb::list members;
  for (const OpMember& m : find_op(op).members) {
    nb::dict d;
    d["name"] = nb::str(m.name.data(), m.name.size());
    d["kind"] = kKinds[static_cast<std::size_t>(m.kind)];
    if (m.is_tensor()) {
      d["written"] = m.written;
      d["dtype"] = nb::str(m.shape->dtype.data(), m.shape->dtype.size());
      d["dims"] = nb::str(m.shape->dims.data(), m.shape->dims.size());
    } else {
      d["default"] = m.fallback;
    }
    members.append(d);
  }
  return members;
}

void make_cache(Cache* to, nb::object tensor, const std::string& format, std::int64_t block_size,
                std::optional<std::int64_t> block_stride_bytes, float kv_scale) {
  const auto fail = [](const std::string& what, const std::string& got, const std::string& expected) {
    throw InvalidArgument("Cache: " + what + ": got " + got + ", expected " + expected);
  };
  (void)row_format(format);
  if (block_size < 1 || block_size > 1 << 30) fail("block_size", std::to_string(block_size), "1 to 2^30 rows");
  if (block_stride_bytes && *block_stride_bytes < 1)
    fail("block_stride_bytes", std::to_string(*block_stride_bytes), "a number of bytes, or None");
  const Cache cache{std::move(tensor), format, block_size, block_stride_bytes.value_or(0), kv_scale};
  (void)read_cache("Cache: tensor", cache, nullptr);  // says now what does not fit
  new (to) Cache(cache);
}

}  // namespace

void bind_ops(nb::module_& module) {
  using nb::arg;
  nb::class_<Cache>(
      module, "Cache",
      "A paged cache over a tensor (torch, numpy, or any with __dlpack__), which it keeps.\n\n"
      "tensor: blocks of bytes. With one dimension they follow each other, block_stride_bytes apart; with\n"
      "        more, the first dimension counts blocks and its stride is theirs. Any dtype.\n"
      "format: how rows are stored: \"fp8_ds_mla\", \"bf16\", \"fp8_per_tensor\", \"f32\", \"index_fp8\", ...\n"
      "block_size: rows in a block.\n"
      "kv_scale: of fp8_per_tensor rows, number = e4m3 * kv_scale.\n\n"
      "Raises InvalidArgument for an unknown format and for blocks that do not fit in the tensor.")
      .def("__init__", &make_cache, arg("tensor").none(), arg("format"), arg("block_size"),
           arg("block_stride_bytes") = nb::none(), arg("kv_scale") = 1.0F)
      .def_prop_ro("tensor", [](const Cache& c) { return c.tensor; })
      .def_prop_ro("format", [](const Cache& c) { return c.format; })
      .def_prop_ro("block_size", [](const Cache& c) { return c.block_size; })
      .def_prop_ro("kv_scale", [](const Cache& c) { return c.kv_scale; })
      .def_prop_ro("num_blocks",
                   [](const Cache& c) { return read_cache("Cache: tensor", c, nullptr).cache.num_blocks; })
      .def_prop_ro("block_stride_bytes",
                   [](const Cache& c) { return read_cache("Cache: tensor", c, nullptr).cache.block_stride_bytes; })
      .def("__repr__", [](const Cache& c) {
        return "Cache(format=\"" + c.format + "\", block_size=" + std::to_string(c.block_size) + ")";
      });

  nb::class_<HeldPlan>(
      module, "Plan",
      "An implementation of an op, chosen for one problem and kept.\n\n"
      "scalars: by name, as sparsemla.ops.<op> lists them; nested values are flattened.\n"
      "device: \"cpu\", \"cuda\" or \"cuda:1\".\n\n"
      "Raises InvalidArgument for an impossible problem and Unsupported when no implementation accepts it.")
      .def("__init__", &make_plan, arg("op"), arg("scalars") = nb::dict(), arg("device") = "cpu",
           arg("implementation") = nb::none(), arg("deterministic") = false, arg("threads") = 0)
      .def("run", &run_plan, arg("tensors"), arg("workspace") = nb::none(), arg("stream") = nb::none(),
           "Runs over tensors and caches by name; outputs are written in place.\n\n"
           "workspace: a tensor of workspace_bytes bytes, or None. stream: a cudaStream_t, or None: the current one.")
      .def_prop_ro("op", [](const HeldPlan& p) { return std::string(p.plan->op().name); })
      .def_prop_ro("device", [](const HeldPlan& p) { return describe(p.plan->place()); })
      .def_prop_ro("implementation", [](const HeldPlan& p) { return p.plan->implementation(); })
      .def_prop_ro("workspace_bytes", [](const HeldPlan& p) { return p.plan->workspace_bytes(); })
      .def("__repr__", [](const HeldPlan& p) {
        return "Plan(\"" + std::string(p.plan->op().name) + "\", device=\"" + describe(p.plan->place()) +
               "\", implementation=\"" + p.plan->implementation() + "\")";
      });

  module.def("op_names", [] {
    nb::list names;
    for (const OpRow& op : op_table()) names.append(nb::str(op.name.data(), op.name.size()));
    return names;
  });
  module.def(
      "op_family", [](const std::string& op) { return std::string(find_op(op).family); }, arg("op"));
  module.def(
      "op_typical", [](const std::string& op) { return std::string(find_op(op).typical); }, arg("op"));
  module.def("op_members", &members_of, arg("op"),
             "The scalars and tensors of an op: name, kind, dtype, dims, default.");
  module.def("determine", &determine, arg("op"), arg("members"),
             "The scalars of a call: those given and those that its tensors determine.");
  module.def("call", &call_op, arg("op"), arg("members"), arg("stream") = nb::none(), arg("workspace") = nb::none(),
             arg("device") = nb::none(), arg("implementation") = nb::none(), arg("deterministic") = false,
             arg("threads") = 0);
}

}  // namespace smla::python
