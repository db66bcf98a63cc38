#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "sparsemla/engine.h"
#include "sparsemla/parallel_engine.h"

namespace smla {

/// Resident memory of this process in bytes; 0 where the system does not tell.
std::int64_t resident_bytes();

/// How long and how a soak loads an engine, and what it allows.
struct SoakOptions {
  double seconds = 60;           ///< requests come for so long; then those that are there end
  std::int64_t arrivals = 0;     ///< or until so many have come, whatever is first; 0: as many as there is time for
  double cancelled_share = 0.1;  ///< of the requests, by a seeded coin: cancelled before a random step
  /// Of the requests, by a seeded coin: they ask again what finished last, whose prefix is likely to be there.
  double repeated_share = 0.25;
  /// Memory is compared with what it was after this share of the time or of the arrivals, when all requests have ended
  /// once, and after so many steps, when what a process keeps of step shapes (decisions of plans) has been filled.
  double warm_up_share = 0.25;
  std::int64_t warm_up_steps = 1000;
  double memory_growth = 0.01;                                ///< from the end of the warm-up to the end, at most
  double stall_seconds = 300;                                 ///< the longest that a request may be there
  std::uint64_t seed = 0;                                     ///< of cancellations and repetitions
  std::function<std::int64_t()> host_bytes = resident_bytes;  ///< memory in use
  std::function<std::int64_t()> device_bytes{};               ///< memory of the GPU in use; none: not watched
};

/// Memory in use, in bytes.
struct MemoryUse {
  std::int64_t first = -1;  ///< at the end of the warm-up; -1: it was not reached
  std::int64_t last = 0;    ///< at the end
  std::int64_t most = 0;    ///< from the end of the warm-up on
  double growth() const { return first > 0 ? static_cast<double>(last) / static_cast<double>(first) - 1 : 0; }
};

/// What a soak saw, so far or at its end.
struct SoakReport {
  std::int64_t submitted = 0;
  std::int64_t finished = 0;
  std::int64_t cancelled = 0;
  std::int64_t delayed = 0;             ///< came later than in the trace: too many waited, or the same one was there
  std::vector<std::int64_t> different;  ///< ids of finished requests, each time that one's output was not its own
  double longest_seconds = 0;           ///< that a request was there
  std::string stuck;                    ///< why the soak gave up; empty: it did not
  bool interrupted = false;
  double wall_seconds = 0;
  double warm_up_seconds = -1;  ///< until memory was compared; -1: it was not
  MemoryUse host;
  MemoryUse device;
  std::int64_t lost_blocks = 0;  ///< of all ranks' pools, that neither are free nor the prefix cache's at the end
  std::int64_t most_graphs = 0;  ///< at once
  std::int64_t most_graph_bytes = 0;
  std::int64_t lone_graph_bytes =
      0;             ///< the most while there was one recording alone, which may be larger than the bound
  RunTotals totals;  ///< of rank 0
  PrefixCacheStats prefixes;
};

/// One thing that must hold after a soak.
struct SoakCheck {
  /// What came of it.
  enum class Outcome : std::uint8_t { kPass, kFail, kSkip };
  std::string name;
  Outcome outcome = Outcome::kFail;
  std::string text;  ///< what was seen, and the bound
};

/// What must hold: outputs, memory (skipped when the warm-up was not over), blocks, graphs, progress.
std::vector<SoakCheck> soak_checks(const SoakReport& report, const EngineOptions& engine, const SoakOptions& options);
/// Whether none of them failed.
bool soak_passed(const SoakReport& report, const EngineOptions& engine, const SoakOptions& options);

/// The digest of each request's output when it runs alone: one request at a time, without drafts, prefix cache or
/// planted error. Requests that can never run are not in it.
/// @param on_finish  called with the number of finished requests
std::map<std::int64_t, std::uint64_t> digests_alone(EngineOptions engine, const ParallelOptions& parallel,
                                                    const std::vector<RequestSpec>& specs,
                                                    const std::function<void(std::int64_t)>& on_finish = {});

/// Runs requests over and over, as they arrive, cancels some, and compares each one that finishes with what it gives
/// alone. The first round comes all at once, so that the largest steps belong to the warm-up; the next ones come
/// as in the trace. No more than two wait, so that what was computed last is not all evicted when it is asked for
/// again: others, and one whose id is still there, come later.
/// @param specs  in order of arrival; all of them in `alone`
/// @param on_step  called after every step; false: no more requests, what is there is cancelled
SoakReport soak(ParallelEngine& engine, const EngineOptions& engine_options, const std::vector<RequestSpec>& specs,
                const std::map<std::int64_t, std::uint64_t>& alone, const SoakOptions& options,
                const std::function<bool(const SoakReport&)>& on_step = {});

}  // namespace smla
