#include "bench/serve.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "bench/device_layer.h"
#include "bench/device_stack.h"
#include "sparsemla/error.h"

namespace smla::bench {

namespace {

/// The value at x of a line through points, constant outside of them.
double at(const std::map<std::int64_t, double>& points, double x) {
  const auto above = std::ranges::find_if(points, [&](const auto& p) { return static_cast<double>(p.first) >= x; });
  if (above == points.end()) return points.rbegin()->second;
  if (above == points.begin()) return above->second;
  const auto below = std::prev(above);
  const double share = (x - static_cast<double>(below->first)) / static_cast<double>(above->first - below->first);
  return below->second + share * (above->second - below->second);
}

struct Request {
  double arrival = 0;
  double first = 0;
  double last = 0;
  std::int64_t made = 0;
};

constexpr int kContextPoints = 5;

}  // namespace

double StackTimes::decode(double requests, double context) const {
  if (points_.empty()) throw InvalidArgument("bench serve: got no measured steps, expected at least one");
  std::map<std::int64_t, double> line;
  for (const auto& [count, by_context] : points_) line[count] = at(by_context, context);
  return at(line, requests);
}

Spread spread_of(std::vector<double> seconds) {
  if (seconds.empty()) return {};
  std::ranges::sort(seconds);
  const auto rank = [&](double share) {
    const auto n = static_cast<double>(seconds.size());
    return seconds[static_cast<std::size_t>(std::max(0.0, std::ceil(share * n) - 1))];
  };
  return {.mean = std::accumulate(seconds.begin(), seconds.end(), 0.0) / static_cast<double>(seconds.size()),
          .median = rank(0.5),
          .p99 = rank(0.99)};
}

ServeResult simulate(const StackTimes& times, const Load& load) {
  if (load.concurrent < 1 || load.total < 1 || load.prompt < 1 || load.output < 1) {
    throw InvalidArgument("bench serve: got a load without requests or tokens, expected at least one of each");
  }
  std::vector<Request> waiting(static_cast<std::size_t>(std::min(load.concurrent, load.total)));
  std::ranges::reverse(waiting);
  std::vector<Request> running;
  std::vector<double> ttft;
  std::vector<double> tpot;
  auto left = load.total - static_cast<std::int64_t>(waiting.size());
  double now = 0;
  const auto finish = [&](const Request& r) {
    ttft.push_back(r.first - r.arrival);
    if (load.output > 1) tpot.push_back((r.last - r.first) / static_cast<double>(load.output - 1));
    if (left-- > 0) waiting.insert(waiting.begin(), Request{.arrival = now});
  };
  while (!waiting.empty() || !running.empty()) {
    if (!waiting.empty()) {
      Request next = waiting.back();
      waiting.pop_back();
      now += times.prefill;
      next.first = next.last = now;
      next.made = 1;
      if (load.output == 1) {
        finish(next);
      } else {
        running.push_back(next);
      }
      continue;
    }
    double context = 0;
    for (const Request& r : running) context += static_cast<double>(load.prompt + r.made);
    now += times.decode(static_cast<double>(running.size()), context / static_cast<double>(running.size()));
    std::vector<Request> going;
    for (Request& r : running) {
      ++r.made;
      r.last = now;
      r.made == load.output ? finish(r) : going.push_back(r);
    }
    running = std::move(going);
  }
  return {.ttft = spread_of(std::move(ttft)), .tpot = spread_of(std::move(tpot)), .seconds = now};
}

std::map<int, std::int64_t> layers_by_ratio(const ModelConfig& model) {
  std::map<int, std::int64_t> out;
  for (std::int64_t i = 0; i < model.num_layers; ++i) ++out[model.layer(i).compress_ratio];
  return out;
}

std::int64_t least_prompt(StackMeasure how) { return LayerRun::least_length(1, how == StackMeasure::kWhole); }

StackTimes measure_stack(const Options& options, StackMeasure how, const std::vector<std::int64_t>& batches,
                         std::int64_t prompt, std::int64_t output, const Emit& emit) {
  const DeviceTimer timer;
  std::map<std::pair<std::int64_t, std::int64_t>, double> sums;
  StackTimes out;
  const auto time_of = [&](const Row& row) {
    emit(row);
    if (!row.skipped.empty()) throw Unsupported("bench serve: " + row.shape + ": " + row.skipped);
    if (!row.check.failure.empty()) throw Error("bench serve: " + row.shape + ": WRONG: " + row.check.failure);
    return row.time.median;
  };
  const auto context_at = [&](int point) { return prompt + output * point / (kContextPoints - 1); };
  const auto add_prompt = [&](const LayerOnGpu& layer, std::int64_t layers) {
    out.prefill += static_cast<double>(layers) *
                   time_of(measure_layer(options, layer,
                                         {.requests = 1, .tokens = prompt, .length = prompt, .prefill = true}, timer));
  };
  const std::map<int, std::int64_t> kinds = layers_by_ratio(options.model);
  if (how == StackMeasure::kWhole) {
    const StackOnGpu stack(options, prompt + output);
    for (const auto& [ratio, layers] : kinds) add_prompt(stack.first_of(ratio), layers);
    for (const std::int64_t batch : batches) {
      for (int i = 0; i < kContextPoints; ++i)
        sums[{batch, context_at(i)}] = time_of(stack.measure(batch, context_at(i), timer));
    }
  } else {
    for (const auto& [ratio, layers] : kinds) {
      const LayerOnGpu layer(options, slice_of_layer(options, ratio, options.heads), prompt + output);
      add_prompt(layer, layers);
      for (const std::int64_t batch : batches) {
        double window = 0;
        for (int i = 0; i < kContextPoints; ++i) {
          // A window-only layer does the same at every length past its window.
          const bool again = ratio == 1 && i > 0;
          const LayerShape shape{.requests = batch, .tokens = 1, .length = context_at(i)};
          const double seconds =
              again ? window : static_cast<double>(layers) * time_of(measure_layer(options, layer, shape, timer));
          window = seconds;
          sums[{batch, context_at(i)}] += seconds;
        }
      }
    }
  }
  for (const auto& [point, seconds] : sums) out.set(point.first, point.second, seconds);
  return out;
}

}  // namespace smla::bench
