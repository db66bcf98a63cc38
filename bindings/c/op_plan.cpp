// Every op of the library by its name, from the descriptions of its problem and tensors.
#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "c/op_members.h"
#include "c/status.h"
#include "ops/op_descriptions.h"
#include "ops/op_table.h"
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

template <class Op>
const OpRow& row_of() {
  static const OpRow& row =
      *std::find_if(op_table().begin(), op_table().end(), [](const OpRow& r) { return r.name == Op::kName; });
  return row;
}

[[noreturn]] void fail_unknown(const OpRow& op, const char* name, bool tensors) {
  std::string names;
  for (const OpMember& member : op.members) {
    if (member.is_tensor() == tensors) names += (names.empty() ? "" : ", ") + std::string(member.name);
  }
  fail_member(op.name, name, "a member of that name", "one of " + names);
}

template <class Op>
typename Op::Problem read_problem(const smla_scalar* scalars, std::int64_t count) {
  NamedList<smla_scalar> given(Op::kName, "scalars", scalars, count);
  typename Op::Problem problem;
  OpDescription<Op>::fields(problem, ReadScalars{Op::kName, given});
  if (const char* name = given.rest()) fail_unknown(row_of<Op>(), name, false);
  return problem;
}

template <class Op>
class PlanOf final : public smla_plan {
 public:
  PlanOf(const typename Op::Problem& problem, const PlanOptions& options) : plan_(problem, options) {
    for (const OpMember& member : row_of<Op>().members) {
      if (member.is_tensor()) names_.push_back(std::string(Op::kName) + ": " + std::string(member.name));
    }
  }
  std::string_view implementation() const override { return plan_.implementation(); }
  std::size_t workspace_bytes() const override { return plan_.workspace_bytes(); }
  void run(const smla_argument* arguments, std::int64_t count, Workspace workspace, Stream stream) const override {
    NamedList<smla_argument> given(Op::kName, "arguments", arguments, count);
    typename Op::Args args;
    OpDescription<Op>::tensors(args, ReadArguments{.op = Op::kName, .given = given, .names = names_});
    if (const char* name = given.rest()) fail_unknown(row_of<Op>(), name, true);
    plan_.run(args, workspace, stream);
  }

 private:
  Plan<Op> plan_;
  std::vector<std::string> names_;  ///< of the tensors, as errors print them
};

static_assert(static_cast<int>(MemberKind::kInteger) == SMLA_MEMBER_INTEGER);
static_assert(static_cast<int>(MemberKind::kCache) == SMLA_MEMBER_CACHE);

smla_op_member describe_member(const OpMember& member) {
  return {.struct_size = sizeof(smla_op_member),
          .name = member.name.data(),  // a literal
          .kind = static_cast<std::int32_t>(member.kind),
          .reserved = 0};
}

/// An op of the library as the C interface sees it.
struct NamedOp {
  const OpRow& row;
  std::unique_ptr<smla_plan> (*plan)(const smla_scalar* scalars, std::int64_t count, const PlanOptions& options);
};

const std::vector<NamedOp>& named_ops() {
  static const std::vector<NamedOp> kOps = [] {
    std::vector<NamedOp> ops;
    for_each_op([&ops]<class Op>() {
      ops.push_back({.row = row_of<Op>(),
                     .plan = [](const smla_scalar* scalars, std::int64_t count,
                                const PlanOptions& options) -> std::unique_ptr<smla_plan> {
                       return std::make_unique<PlanOf<Op>>(read_problem<Op>(scalars, count), options);
                     }});
    });
    return ops;
  }();
  return kOps;
}

const NamedOp& named_op(const char* function, const char* name) {
  need_pointer(name, function, "op");
  for (const NamedOp& op : named_ops()) {
    if (op.row.name == name) return op;
  }
  std::string known;
  for (const NamedOp& op : named_ops()) {
    known += (known.empty() ? "" : ", ") + std::string(op.row.name);
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
    const std::vector<OpMember>& members = named_op("smla_op_get_member", op).row.members;
    if (index < 0) fail_member("smla_op_get_member", "index", std::to_string(index), "0 or more");
    const auto at = static_cast<std::size_t>(index);
    write_struct("smla_op_member", member, at < members.size() ? describe_member(members[at]) : smla_op_member{});
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
