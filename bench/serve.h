#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "bench/bench.h"

namespace smla::bench {

/// Seconds that the attention layers of a whole stack take for a step, by number of decoding requests and tokens of
/// each. Linear interpolation between measured points; outside of them the nearest point.
class StackTimes {
 public:
  void set(std::int64_t requests, std::int64_t context, double seconds) { points_[requests][context] = seconds; }
  /// @throws InvalidArgument without a point.
  double decode(double requests, double context) const;

  double prefill = 0;  ///< seconds of one whole prompt

 private:
  std::map<std::int64_t, std::map<std::int64_t, double>> points_;
};

/// The requests of a simulated run: `concurrent` arrive at once, another whenever one is done, `total` in all. `prompt`
/// and `output` are in tokens.
struct Load {
  std::int64_t concurrent = 1;
  std::int64_t total = 1;
  std::int64_t prompt = 8192;
  std::int64_t output = 8192;
};

/// Mean, median and 99th percentile by nearest rank, in seconds.
struct Spread {
  double mean = 0;
  double median = 0;
  double p99 = 0;
};
Spread spread_of(std::vector<double> seconds);

struct ServeResult {
  Spread ttft;         ///< from a request's arrival to its first token
  Spread tpot;         ///< time per token after the first, the average of a request
  double seconds = 0;  ///< of the whole run
};

/// Plays a load through a server whose only work is attention. A step is one whole prompt, which goes before all
/// decodes, or one token for every running request.
ServeResult simulate(const StackTimes& times, const Load& load);

/// How many layers of each compress ratio a model's decoder stack has.
std::map<int, std::int64_t> layers_by_ratio(const ModelConfig& model);

/// Where a step's time comes from: one layer of each kind, times its layers in the stack, or all layers as one graph
/// (device_stack.h). Prompts are measured by kind in either.
enum class StackMeasure { kByKind, kWhole };

/// The shortest prompt behind which steps can be measured so: a decode is the mean of several positions in turn.
std::int64_t least_prompt(StackMeasure how);

/// Measures decode steps at `batches` requests and contexts from `prompt` to `prompt` + `output`, and one prompt.
/// `emit` sees every row.
StackTimes measure_stack(const Options& options, StackMeasure how, const std::vector<std::int64_t>& batches,
                         std::int64_t prompt, std::int64_t output, const Emit& emit);

}  // namespace smla::bench
