#pragma once

#include <any>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "device/gpu.h"
#include "sparsemla/op.h"

namespace smla {

/// What implementations decide for: the processor, the threads a run may use on it, and the GPU.
struct Machine {
  const CpuFeatures* cpu = &cpu_features();
  int threads = 1;
  device::Gpu gpu;  ///< not present() for a plan on the CPU
};

/// Threads a plan with these options uses on this machine.
int resolve_threads(int requested);

/// This machine as a plan with these options sees it: its current GPU where the plan is for one.
Machine machine_for(const PlanOptions& options);

/// An implementation's answer to a problem: a refusal, or how it would compute it. The same problem, options and
/// machine give the same decision, so a plan is decided once and run() only takes what was decided.
struct Decision {
  std::string refusal;              ///< why it does not take the problem here; empty: it does
  std::size_t workspace_bytes = 0;  ///< that a run needs
  std::string words;                ///< how it cuts the problem, for people; empty where it has no choice
  std::any choice;                  ///< the same for its run(): RunContext::choice()
};

inline Decision refused(std::string why) {
  Decision decision;
  decision.refusal = std::move(why);
  return decision;
}

/// What an implementation is told beside the tensors.
struct RunContext {
  Workspace workspace;
  Stream stream;
  int threads = 1;  ///< CPU threads to use
  bool deterministic = false;
  const Decision* decision = nullptr;  ///< what decide() answered

  /// What decide() put into Decision::choice.
  template <class Choice>
  const Choice& choice() const {
    return std::any_cast<const Choice&>(decision->choice);
  }
};

/// One way to compute `Op`: a row of the op's table. Plain functions.
template <class Op>
struct Implementation {
  std::string_view name;     ///< file suffix: "ref", "cpu", "avx2", "avx512", "onednn", "cuda", "cuda_simt", "sm90"
  std::string_view machine;  ///< what it needs, for people
  DeviceKind device = DeviceKind::kCpu;
  /// Its answer to a problem; null: it takes every problem, without a workspace.
  Decision (*decide)(const typename Op::Problem& problem, const PlanOptions& options, const Machine& machine) = nullptr;
  void (*run)(const typename Op::Problem& problem, const typename Op::Args& args, const RunContext& context) = nullptr;
};

// decide() of implementations that take every problem where the machine has what they need.

/// What a machine lacks, in words; empty: nothing.
using Need = std::string (*)(const Machine&);
inline std::string needs_nothing(const Machine& /*machine*/) { return {}; }
std::string needs_avx2(const Machine& machine);
std::string needs_avx512(const Machine& machine);
std::string needs_avx512_bf16(const Machine& machine);
inline std::string needs_gpu(const Machine& machine) { return device::needs_gpu(machine.gpu); }
std::string needs_sm90(const Machine& machine);

/// .decide = take_all<Op, needs_avx2>, and with a workspace take_all<Op, needs_avx2, bytes_function>, where
/// bytes_function(problem, threads) says how large.
template <class Op, Need kNeed, auto kBytes = nullptr>
Decision take_all(const typename Op::Problem& problem, const PlanOptions& /*options*/, const Machine& machine) {
  Decision decision = refused(kNeed(machine));
  if constexpr (!std::is_null_pointer_v<decltype(kBytes)>) {
    if (decision.refusal.empty()) decision.workspace_bytes = kBytes(problem, machine.threads);
  }
  return decision;
}

}  // namespace smla
