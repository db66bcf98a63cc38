#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "sparsemla/engine.h"
#include "sparsemla/export.h"

namespace SMLA_API smla {

/// The ranks of a parallel engine: tensor * context of them, a thread each.
struct ParallelOptions {
  int tensor = 1;              ///< ranks that share out heads; must divide the model's heads and o_groups
  int context = 1;             ///< ranks that share out compressed and index rows
  std::vector<int> gpus{};     ///< of a layer device of kCuda: the GPU of each rank; empty: 0, 1, 2, ...
  double timeout_seconds = 8;  ///< CommunicatorOptions::timeout_seconds
  int ranks() const { return tensor * context; }
};

/// An engine on several ranks of this process: every rank schedules the same requests and computes its part of each
/// step (docs/parallel.md). Rank r is context rank r % context and tensor rank r / context. Results are those of one
/// rank but for the rounding of sums over ranks. With one rank nothing is started and it is an Engine.
///
/// After an exception from step the group has ended: every later step throws.
class SMLA_API ParallelEngine {
 public:
  /// `options` are of the whole: communicators are made here, and CPU threads are shared out to the ranks. `observer`
  /// is shown what rank 0 computes, on rank 0's thread.
  /// @throws InvalidArgument for ranks below 1, heads that do not divide, or gpus of another count; what Engine throws.
  ParallelEngine(const EngineOptions& options, const ParallelOptions& parallel, EngineObserver* observer = nullptr);
  ~ParallelEngine();
  ParallelEngine(const ParallelEngine&) = delete;
  ParallelEngine& operator=(const ParallelEngine&) = delete;

  /// Engine::submit, on every rank.
  void submit(const RequestSpec& request);
  /// Engine::step, on every rank at once. @throws the first rank's own exception, or CommunicatorError.
  bool step(const std::function<double()>& now);
  /// Engine::cancel, on every rank.
  void cancel(std::int64_t id);
  /// Engine::take_ended, on every rank. @return rank 0's.
  std::vector<RequestResult> take_ended();
  bool idle() const;  ///< whether nothing is left to do

  int ranks() const;                         ///< how many
  const Engine& engine(int rank = 0) const;  ///< to look at between two calls

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace smla
