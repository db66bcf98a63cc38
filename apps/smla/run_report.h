#pragma once

#include <string>
#include <vector>

#include "sparsemla/engine.h"
#include "sparsemla/parallel_engine.h"
#include "sparsemla/prefix_cache.h"
#include "sparsemla/run_check.h"

namespace smla {

/// Everything that a run ends with.
struct RunReport {
  EngineOptions options;
  ParallelOptions parallel;
  std::string model;  ///< its name, or the path of its config.json
  std::string trace;  ///< where the requests came from
  double scale_lengths = 1;
  double arrival_speed = 0;
  bool cpu_clock = false;  ///< times are of the CPU, not of the wall
  bool interrupted = false;
  double wall_seconds = 0;
  double setup_seconds = 0;
  std::vector<RequestResult> results;
  RunTotals totals;
  KvLayout layout;
  std::vector<std::int64_t> peak_blocks;  ///< a group
  std::string implementations;            ///< of all steps
  PrefixCacheStats prefixes;
  bool compared = false;               ///< the trace was also replayed without the prefix cache
  std::vector<RequestResult> without;  ///< the results of that
  double without_seconds = 0;
  bool checked = false;
  CheckReport check;
};

/// "4 layers 0-3 (1 window, 2 C4A, 1 C128A)", and which layers draft.
std::string layers_text(const EngineOptions& options);
/// A line: how many drafts were verified and rejected, and what computed them.
std::string drafts_text(const EngineOptions& options, const RunTotals& totals);
/// Adds to `all` ("attention avx512, topk cpu") what of `more` is not in it yet.
void merge_implementations(std::string& all, const std::string& more);
/// The report for people.
std::string report_text(const RunReport& report);
/// The report as JSON (schema "smla-run/1").
std::string report_json(const RunReport& report);

}  // namespace smla
