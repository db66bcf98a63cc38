// Every op of the library by its name, from the descriptions of its problem and tensors.
#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "c/named.h"
#include "c/status.h"
#include "ops/op_descriptions.h"
#include "ops/rule_names.h"
#include "sparsemla/op.h"

/// A plan of some op.
struct smla_plan {
  smla_plan() = default;
  smla_plan(const smla_plan&) = delete;
  smla_plan& operator=(const smla_plan&) = delete;
  virtual ~smla_plan() = default;
  virtual std::string_view implementation() const = 0;
  virtual std::size_t workspace_bytes() const = 0;
  virtual void run(const smla_argument* arguments, std::int64_t count, smla::Workspace workspace,
                   smla::Stream stream) const = 0;
};

namespace {

using namespace smla;
using namespace smla::c;

/// Fills a Problem from named scalars.
struct ReadScalars {
  std::string_view op;
  NamedList<smla_scalar>& given;

  void operator()(const char* name, std::int64_t& value) const { read_integer(name, value); }
  void operator()(const char* name, int& value) const { read_integer(name, value); }
  void operator()(const char* name, bool& value) const {
    if (const smla_scalar* s = integer(name)) {
      if (s->integer != 0 && s->integer != 1) fail_member(op, name, std::to_string(s->integer), "0 or 1");
      value = s->integer == 1;
    }
  }
  void operator()(const char* name, DType& value) const {
    if (const smla_scalar* s = integer(name)) {
      const bool fits = s->integer >= SMLA_F32 && s->integer <= SMLA_BOOL;
      value = read_dtype(std::string(op) + ": " + name, fits ? static_cast<smla_dtype>(s->integer) : 0);
    }
  }
  void operator()(const char* name, float& value) const {
    const smla_scalar* s = given.take(name);
    if (s == nullptr) return;
    if (s->integer != 0 || s->text != nullptr) wrong_kind(name, *s, "number");
    value = static_cast<float>(s->number);
  }
  void operator()(const char* name, const RowFormat*& value) const {
    if (const char* word = text(name)) {
      for (const RowFormat* format : all_row_formats()) {
        if (format->name == word) {
          value = format;
          return;
        }
      }
      std::string names;
      for (const RowFormat* format : all_row_formats())
        names += (names.empty() ? "" : ", ") + std::string(format->name);
      fail_member(op, name, "\"" + std::string(word) + "\"", "one of " + names);
    }
  }
  template <Rule Value>
  void operator()(const char* name, Value& value) const {
    const char* word = text(name);
    if (word != nullptr && !set_rule(value, word))
      fail_member(op, name, "\"" + std::string(word) + "\"", rule_names<Value>());
  }

 private:
  [[noreturn]] void wrong_kind(const char* name, const smla_scalar& s, const std::string& expected) const {
    std::string got;
    if (s.integer != 0) got += "integer " + std::to_string(s.integer);
    if (s.number != 0) got += (got.empty() ? "number " : ", number ") + std::to_string(s.number);
    if (s.text != nullptr) got += (got.empty() ? "text \"" : ", text \"") + std::string(s.text) + "\"";
    fail_member(op, name, got.empty() ? "no text" : got, "a value in `" + expected + "` alone");
  }
  const smla_scalar* integer(const char* name) const {
    const smla_scalar* s = given.take(name);
    if (s != nullptr && (s->number != 0 || s->text != nullptr)) wrong_kind(name, *s, "integer");
    return s;
  }
  template <class T>
  void read_integer(const char* name, T& value) const {
    const smla_scalar* s = integer(name);
    if (s == nullptr) return;
    if (s->integer < std::numeric_limits<T>::min() || s->integer > std::numeric_limits<T>::max())
      fail_member(op, name, std::to_string(s->integer), "a number of " + std::to_string(8 * sizeof(T)) + " bits");
    value = static_cast<T>(s->integer);
  }
  /// The word given; null when the member was not named.
  const char* text(const char* name) const {
    const smla_scalar* s = given.take(name);
    if (s == nullptr) return nullptr;
    if (s->text == nullptr || s->integer != 0 || s->number != 0) wrong_kind(name, *s, "text");
    return s->text;
  }
};

/// Fills Args from named tensors and caches. `names`: "<op>: <member>", in the order of the description.
struct ReadArguments {
  std::string_view op;
  NamedList<smla_argument>& given;
  std::span<const std::string> names;
  std::size_t next = 0;

  void in(const char* name, ConstTensorView& view) { view = tensor(name); }
  void out(const char* name, TensorView& view) { view = tensor(name); }
  void cache(const char* name, PagedCache& cache, CacheAccess /*access*/) {
    const std::string& full_name = names[next++];
    const smla_argument* a = given.take(name);
    if (a == nullptr) return;
    if (a->tensor != nullptr) fail_member(op, name, "a tensor", "a cache");
    if (a->cache != nullptr) cache = read_cache(full_name, a->cache);
  }

 private:
  TensorView tensor(const char* name) {
    const std::string& full_name = names[next++];
    const smla_argument* a = given.take(name);
    if (a == nullptr) return {};
    if (a->cache != nullptr) fail_member(op, name, "a cache", "a tensor");
    return read_tensor(full_name, a->tensor);
  }
};

/// The members of an op by name and kind: scalars first, then tensors.
struct ListMembers {
  std::vector<smla_op_member> scalars;
  std::vector<smla_op_member> tensors;

  void operator()(const char* name, auto& member) {
    using Member = std::remove_reference_t<decltype(member)>;
    std::int32_t kind = SMLA_MEMBER_RULE;
    if constexpr (std::is_same_v<Member, bool>) {
      kind = SMLA_MEMBER_FLAG;
    } else if constexpr (std::is_integral_v<Member>) {
      kind = SMLA_MEMBER_INTEGER;
    } else if constexpr (std::is_floating_point_v<Member>) {
      kind = SMLA_MEMBER_NUMBER;
    } else if constexpr (std::is_same_v<Member, DType>) {
      kind = SMLA_MEMBER_DTYPE;
    } else if constexpr (std::is_same_v<Member, const RowFormat*>) {
      kind = SMLA_MEMBER_FORMAT;
    }
    add(scalars, name, kind);
  }
  void in(const char* name, ConstTensorView& /*view*/) { add(tensors, name, SMLA_MEMBER_INPUT); }
  void out(const char* name, TensorView& /*view*/) { add(tensors, name, SMLA_MEMBER_OUTPUT); }
  void cache(const char* name, PagedCache& /*cache*/, CacheAccess /*access*/) { add(tensors, name, SMLA_MEMBER_CACHE); }

 private:
  static void add(std::vector<smla_op_member>& to, const char* name, std::int32_t kind) {
    to.push_back({.struct_size = sizeof(smla_op_member), .name = name, .kind = kind, .reserved = 0});
  }
};

template <class Op>
ListMembers members_of() {
  ListMembers members;
  typename Op::Problem problem;
  typename Op::Args args;
  OpDescription<Op>::fields(problem, members);
  OpDescription<Op>::tensors(args, members);
  return members;
}

[[noreturn]] void fail_unknown(std::string_view op, const char* name, const std::vector<smla_op_member>& known) {
  std::string names;
  for (const smla_op_member& member : known) names += (names.empty() ? "" : ", ") + std::string(member.name);
  fail_member(op, name, "a member of that name", "one of " + names);
}

template <class Op>
typename Op::Problem read_problem(const smla_scalar* scalars, std::int64_t count) {
  NamedList<smla_scalar> given(Op::kName, "scalars", scalars, count);
  typename Op::Problem problem;
  OpDescription<Op>::fields(problem, ReadScalars{Op::kName, given});
  if (const char* name = given.rest()) fail_unknown(Op::kName, name, members_of<Op>().scalars);
  return problem;
}

template <class Op>
class PlanOf final : public smla_plan {
 public:
  PlanOf(const typename Op::Problem& problem, const PlanOptions& options) : plan_(problem, options) {
    for (const smla_op_member& member : members_of<Op>().tensors)
      names_.push_back(std::string(Op::kName) + ": " + member.name);
  }
  std::string_view implementation() const override { return plan_.implementation(); }
  std::size_t workspace_bytes() const override { return plan_.workspace_bytes(); }
  void run(const smla_argument* arguments, std::int64_t count, Workspace workspace, Stream stream) const override {
    NamedList<smla_argument> given(Op::kName, "arguments", arguments, count);
    typename Op::Args args;
    OpDescription<Op>::tensors(args, ReadArguments{.op = Op::kName, .given = given, .names = names_});
    if (const char* name = given.rest()) fail_unknown(Op::kName, name, members_of<Op>().tensors);
    plan_.run(args, workspace, stream);
  }

 private:
  Plan<Op> plan_;
  std::vector<std::string> names_;  ///< of the tensors, as errors print them
};

/// An op of the library as the C interface sees it.
struct NamedOp {
  std::string_view name;
  std::unique_ptr<smla_plan> (*plan)(const smla_scalar* scalars, std::int64_t count, const PlanOptions& options);
  std::vector<smla_op_member> members;
};

const std::vector<NamedOp>& named_ops() {
  static const std::vector<NamedOp> kOps = [] {
    std::vector<NamedOp> ops;
    for_each_op([&ops]<class Op>() {
      ListMembers members = members_of<Op>();
      members.scalars.insert(members.scalars.end(), members.tensors.begin(), members.tensors.end());
      ops.push_back({.name = Op::kName,
                     .plan = [](const smla_scalar* scalars, std::int64_t count,
                                const PlanOptions& options) -> std::unique_ptr<smla_plan> {
                       return std::make_unique<PlanOf<Op>>(read_problem<Op>(scalars, count), options);
                     },
                     .members = std::move(members.scalars)});
    });
    return ops;
  }();
  return kOps;
}

const NamedOp& named_op(const char* function, const char* name) {
  need_pointer(name, function, "op");
  for (const NamedOp& op : named_ops()) {
    if (op.name == name) return op;
  }
  std::string known;
  for (const NamedOp& op : named_ops()) {
    known += (known.empty() ? "" : ", ") + std::string(op.name);
  }
  fail_member(function, "op", "\"" + std::string(name) + "\"", "one of " + known);
}

PlanOptions read_plan_options(const smla_plan_options* options) {
  if (options == nullptr) return {};
  const smla_plan_options given = read_struct("smla_plan_options", options);
  check_reserved("smla_plan_options", given.reserved);
  return {.device = read_device(given.device),
          .implementation = given.implementation == nullptr ? "" : given.implementation,
          .deterministic = read_flag("deterministic", given.deterministic),
          .threads = read_threads(given.threads)};
}

}  // namespace

extern "C" {

int64_t smla_num_ops(void) { return AllOps::kSize; }

const char* smla_op_name(int64_t index) {
  static constexpr auto kNames = []<class... Ops>(TypeList<Ops...>) { return std::array{Ops::kName...}; }(AllOps{});
  return index < 0 || index >= AllOps::kSize ? nullptr : kNames[static_cast<std::size_t>(index)].data();  // literals
}

smla_status smla_op_get_member(const char* op, int64_t index, smla_op_member* member) {
  return guarded([&] {
    const std::vector<smla_op_member>& members = named_op("smla_op_get_member", op).members;
    if (index < 0) fail_member("smla_op_get_member", "index", std::to_string(index), "0 or more");
    const auto at = static_cast<std::size_t>(index);
    write_struct("smla_op_member", member, at < members.size() ? members[at] : smla_op_member{});
  });
}

smla_status smla_plan_create(const char* op, const smla_scalar* scalars, int64_t count,
                             const smla_plan_options* options, smla_plan** plan) {
  return guarded([&] {
    need_pointer(static_cast<const void*>(plan), "smla_plan_create", "plan");
    *plan = nullptr;
    *plan = named_op("smla_plan_create", op).plan(scalars, count, read_plan_options(options)).release();
  });
}

void smla_plan_destroy(smla_plan* plan) { delete plan; }

smla_status smla_plan_workspace(const smla_plan* plan, size_t* workspace_bytes, const char** implementation) {
  return guarded([&] {
    need_pointer(plan, "smla_plan_workspace", "plan");
    if (workspace_bytes != nullptr) *workspace_bytes = plan->workspace_bytes();
    if (implementation != nullptr) *implementation = plan->implementation().data();  // a literal, so it ends in 0
  });
}

smla_status smla_plan_run(const smla_plan* plan, const smla_argument* arguments, int64_t count, void* workspace,
                          size_t workspace_bytes, void* stream) {
  return guarded([&] {
    need_pointer(plan, "smla_plan_run", "plan");
    check_workspace("workspace", workspace, workspace_bytes);
    plan->run(arguments, count, {.data = workspace, .bytes = workspace_bytes}, {.handle = stream});
  });
}

}  // extern "C"
