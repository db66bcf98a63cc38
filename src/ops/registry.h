#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ops/cuda_row.h"
#include "ops/decision.h"

namespace smla {

/// The table of an op and its checks; defined once a family, in `<family>.cpp`.
template <class Op>
struct OpTable {
  static std::span<const Implementation<Op>> implementations();  ///< best first, `ref` last
  static void check_problem(const typename Op::Problem& problem);
  static void check_args(const typename Op::Problem& problem, const typename Op::Args& args);
};

/// @throws InvalidArgument unless a run that needs `bytes` of workspace has them, 64-byte aligned.
void check_workspace(std::string_view op, const Workspace& workspace, std::size_t bytes);

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

/// Runs what was chosen as a part of another op's run, in the workspace from byte `from` on.
template <class Op>
void run_planned(const Planned<Op>& plan, const typename Op::Args& args, const RunContext& context,
                 std::size_t from = 0) {
  RunContext of_op = context;
  of_op.decision = &plan.decision;
  of_op.workspace = {.data = static_cast<std::byte*>(context.workspace.data) + from,
                     .bytes = context.workspace.bytes - from};
  plan.implementation->run(plan.problem, args, of_op);
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

}  // namespace smla
