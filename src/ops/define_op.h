#pragma once

// The members of Plan<Op> and explain<Op>, for the file that defines the op's table. Everybody else links against what
// SMLA_DEFINE_OP instantiates there.

#include <memory>

#include "ops/call_observer.h"
#include "ops/plan_cache.h"
#include "ops/plan_key.h"
#include "ops/registry.h"

namespace smla {

/// The decisions of the process.
template <class Op>
[[gnu::visibility("hidden")]] PlanCache<Planned<Op>>& plan_cache() {
  static PlanCache<Planned<Op>> cache;
  return cache;
}

template <class Op>
Plan<Op>::Plan(const typename Op::Problem& problem, const PlanOptions& options) {
  const Machine machine = machine_for(options);
  if (options.implementation.size() > PlanKey::kMaxName) {  // no such name: the text says which there are
    planned_ = std::make_shared<const Planned<Op>>(choose<Op>(problem, options, machine));
    return;
  }
  const PlanKey key(problem, options, machine);
  planned_ = plan_cache<Op>().find(key.words());
  if (planned_ != nullptr) return;
  planned_ = std::make_shared<const Planned<Op>>(choose<Op>(problem, options, machine));
  plan_cache<Op>().insert(key.words(), planned_);
}

template <class Op>
Plan<Op> Plan<Op>::alike(const typename Op::Problem& problem) const {
  OpTable<Op>::check_problem(problem);
  Planned<Op> planned = *planned_;
  planned.problem = problem;
  Plan out = *this;
  out.planned_ = std::make_shared<const Planned<Op>>(std::move(planned));
  return out;
}

template <class Op>
void Plan<Op>::run(const typename Op::Args& args, Workspace workspace, Stream stream) const {
  const Planned<Op>& planned = *planned_;
  OpTable<Op>::check_args(planned.problem, args);
  check_workspace(Op::kName, workspace, planned.decision.workspace_bytes);
  const RunContext context{.workspace = workspace,
                           .stream = stream,
                           .threads = planned.threads,
                           .deterministic = planned.deterministic,
                           .decision = &planned.decision};
  const CallObserver<Op> observer = call_observer<Op>.load(std::memory_order_relaxed);
  if (observer == nullptr) {
    planned.implementation->run(planned.problem, args, context);
  } else {
    const CallPlace place{.device = planned.implementation->device, .stream = stream};
    observer(planned.problem, args, place, [&] { planned.implementation->run(planned.problem, args, context); });
  }
}

template <class Op>
const typename Op::Problem& Plan<Op>::problem() const {
  return planned_->problem;
}

template <class Op>
std::string_view Plan<Op>::implementation() const {
  return planned_->implementation->name;
}

template <class Op>
std::size_t Plan<Op>::workspace_bytes() const {
  return planned_->decision.workspace_bytes;
}

template <class Op>
std::string_view Plan<Op>::choice() const {
  return planned_->decision.words;
}

template <class Op>
std::vector<Candidate> explain(const typename Op::Problem& problem, const PlanOptions& options) {
  return candidates<Op>(problem, options, machine_for(options));
}

/// Instantiates what callers link against. Use once an op, after defining OpTable<Op>'s three members.
#define SMLA_DEFINE_OP(Op) \
  template class Plan<Op>; \
  template std::vector<Candidate> explain<Op>(const Op::Problem&, const PlanOptions&)

}  // namespace smla
