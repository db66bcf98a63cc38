#pragma once

#include <atomic>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "sparsemla/op.h"

namespace smla {

/// What an implementation is told beside the tensors.
struct RunContext {
  Workspace workspace;
  Stream stream;
  int threads = 1;  ///< CPU threads to use
  bool deterministic = false;
};

/// One way to compute `Op`. Plain functions, so that a list of them is a table.
template <class Op>
struct Implementation {
  std::string_view name;     ///< file suffix: "ref", "cpu", "avx2", "avx512", "onednn", "cuda", "cuda_simt", "sm90"
  std::string_view machine;  ///< what it needs, for people
  DeviceKind device = DeviceKind::kCpu;
  /// Why it does not take this problem here; empty when it does.
  std::string (*refuse)(const typename Op::Problem& problem, const PlanOptions& options) = nullptr;
  std::size_t (*workspace_bytes)(const typename Op::Problem& problem, int threads) = nullptr;  ///< null: none
  void (*run)(const typename Op::Problem& problem, const typename Op::Args& args, const RunContext& context) = nullptr;
  /// How it would cut a problem that it takes, for people.
  std::string (*choice)(const typename Op::Problem& problem, const PlanOptions& options) = nullptr;
};

/// The table of an op and its checks; defined once a family, in `<family>.cpp`, by SMLA_DEFINE_OP.
template <class Op>
struct OpTable {
  static std::span<const Implementation<Op>> implementations();  ///< best first, `ref` last
  static void check_problem(const typename Op::Problem& problem);
  static void check_args(const typename Op::Problem& problem, const typename Op::Args& args);
};

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

/// Refusals shared by many implementations; empty when the CPU has the feature.
std::string needs_avx2();
std::string needs_avx512();

/// Threads a plan with these options uses on this machine.
int resolve_threads(int requested);

template <class Op>
Plan<Op>::Plan(const typename Op::Problem& problem, const PlanOptions& options)
    : problem_(problem),
      implementation_(nullptr),
      deterministic_(options.deterministic),
      threads_(resolve_threads(options.threads)) {
  OpTable<Op>::check_problem(problem);
  std::string refusals;
  bool known = options.implementation.empty();
  for (const Implementation<Op>& candidate : OpTable<Op>::implementations()) {
    if (candidate.device != options.device) continue;
    if (!options.implementation.empty() && candidate.name != options.implementation) continue;
    known = true;
    const std::string refusal = candidate.refuse == nullptr ? std::string() : candidate.refuse(problem, options);
    if (refusal.empty()) {
      implementation_ = &candidate;
      return;
    }
    refusals += "\n  " + std::string(candidate.name) + ": " + refusal;
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

template <class Op>
void Plan<Op>::run(const typename Op::Args& args, Workspace workspace, Stream stream) const {
  OpTable<Op>::check_args(problem_, args);
  if (workspace.bytes < workspace_bytes()) {
    throw InvalidArgument(std::string(Op::kName) + ": workspace: got " + std::to_string(workspace.bytes) +
                          " bytes, expected at least " + std::to_string(workspace_bytes()));
  }
  const RunContext context{
      .workspace = workspace, .stream = stream, .threads = threads_, .deterministic = deterministic_};
  const CallObserver<Op> observer = call_observer<Op>.load(std::memory_order_relaxed);
  if (observer == nullptr) {
    implementation_->run(problem_, args, context);
  } else {
    const CallPlace place{.device = implementation_->device, .stream = stream};
    observer(problem_, args, place, [&] { implementation_->run(problem_, args, context); });
  }
}

template <class Op>
std::string_view Plan<Op>::implementation() const {
  return implementation_->name;
}

template <class Op>
std::size_t Plan<Op>::workspace_bytes() const {
  return implementation_->workspace_bytes == nullptr ? 0 : implementation_->workspace_bytes(problem_, threads_);
}

template <class Op>
std::vector<Candidate> explain(const typename Op::Problem& problem, const PlanOptions& options) {
  OpTable<Op>::check_problem(problem);
  std::vector<Candidate> out;
  for (const Implementation<Op>& candidate : OpTable<Op>::implementations()) {
    std::string refusal;
    if (candidate.device != options.device) {
      refusal = "runs on " + name_of(candidate.device) + ", asked for " + name_of(options.device);
    } else if (candidate.refuse != nullptr) {
      refusal = candidate.refuse(problem, options);
    }
    const bool tells = refusal.empty() && candidate.choice != nullptr;
    Candidate seen{
        .name = std::string(candidate.name),
        .machine = std::string(candidate.machine),
        .refusal = refusal,
        .choice = tells ? candidate.choice(problem, options) : std::string()};  // nvcc loses a braced argument
    out.push_back(std::move(seen));
  }
  return out;
}

/// Instantiates what callers link against. Use once an op, after defining OpTable<Op>'s three members.
#define SMLA_DEFINE_OP(Op) \
  template class Plan<Op>; \
  template std::vector<Candidate> explain<Op>(const Op::Problem&, const PlanOptions&)

}  // namespace smla
