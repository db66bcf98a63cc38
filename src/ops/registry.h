#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "ops/cuda_row.h"
#include "ops/decision.h"
#include "ops/plan_cache.h"
#include "ops/plan_key.h"
#include "sparsemla/op.h"

namespace smla {

/// The table of an op and its checks; defined once a family, in `<family>.cpp`, by SMLA_DEFINE_OP.
template <class Op>
struct OpTable {
  static std::span<const Implementation<Op>> implementations();  ///< best first, `ref` last
  static void check_problem(const typename Op::Problem& problem);
  static void check_args(const typename Op::Problem& problem, const typename Op::Args& args);
};

/// @throws InvalidArgument unless a run that needs `bytes` of workspace has them, 64-byte aligned.
void check_workspace(std::string_view op, const Workspace& workspace, std::size_t bytes);

/// Where a call's tensors lie and where it is queued.
struct CallPlace {
  DeviceKind device = DeviceKind::kCpu;
  Stream stream;
};

/// Sees every run of `Op`; it must call `run` exactly once.
template <class Op>
using CallObserver = void (*)(const typename Op::Problem& problem, const typename Op::Args& args,
                              const CallPlace& place, const std::function<void()>& run);

/// The observer of the process, null when there is none: how calls are recorded (cases/record.cpp).
template <class Op>
[[gnu::visibility("hidden")]] inline std::atomic<CallObserver<Op>> call_observer{nullptr};

/// What a plan holds: a problem, who computes it, and how.
template <class Op>
struct Planned {
  typename Op::Problem problem;
  const Implementation<Op>* implementation = nullptr;
  Decision decision;
  int threads = 1;
  bool deterministic = false;
};

/// An implementation's answer to a problem on a machine, which may be another than this one.
template <class Op>
Decision decide(const Implementation<Op>& implementation, const typename Op::Problem& problem,
                const PlanOptions& options, const Machine& machine) {
  return implementation.decide == nullptr ? Decision{} : implementation.decide(problem, options, machine);
}

/// The first implementation that accepts, or the named one, with its decision. @throws as Plan's constructor.
template <class Op>
Planned<Op> choose(const typename Op::Problem& problem, const PlanOptions& options, const Machine& machine) {
  OpTable<Op>::check_problem(problem);
  std::string refusals;
  bool known = options.implementation.empty();
  for (const Implementation<Op>& candidate : OpTable<Op>::implementations()) {
    if (candidate.device != options.device) continue;
    if (!options.implementation.empty() && candidate.name != options.implementation) continue;
    known = true;
    Decision decision = decide(candidate, problem, options, machine);
    if (decision.refusal.empty()) {
      return {.problem = problem,
              .implementation = &candidate,
              .decision = std::move(decision),
              .threads = machine.threads,
              .deterministic = options.deterministic};
    }
    refusals += "\n  " + std::string(candidate.name) + ": " + decision.refusal;
  }
  if (!known) {
    std::string names;
    for (const Implementation<Op>& candidate : OpTable<Op>::implementations()) {
      if (candidate.device == options.device) names += (names.empty() ? "" : ", ") + std::string(candidate.name);
    }
    throw InvalidArgument(std::string(Op::kName) + ": got implementation \"" + options.implementation +
                          "\", expected one of " + names);
  }
  throw Unsupported(std::string(Op::kName) + ": no implementation on " + name_of(options.device) +
                    " accepts this problem" + refusals);
}

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

/// What explain() says on a machine, which may be another than this one.
template <class Op>
std::vector<Candidate> candidates(const typename Op::Problem& problem, const PlanOptions& options,
                                  const Machine& machine) {
  OpTable<Op>::check_problem(problem);
  std::vector<Candidate> out;
  for (const Implementation<Op>& candidate : OpTable<Op>::implementations()) {
    Candidate seen;  // nvcc loses a braced argument
    seen.name = candidate.name;
    seen.machine = candidate.machine;
    if (candidate.device != options.device) {
      seen.refusal = "runs on " + name_of(candidate.device) + ", asked for " + name_of(options.device);
    } else {
      Decision decision = decide(candidate, problem, options, machine);
      seen.refusal = std::move(decision.refusal);
      if (seen.refusal.empty()) seen.choice = std::move(decision.words);
    }
    out.push_back(std::move(seen));
  }
  return out;
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
