#include "bench/device_stack.h"

#include <fmt/format.h>

#include <functional>
#include <utility>

#include "bench/quantised_weights.h"

namespace smla::bench {

StackOnGpu::StackOnGpu(const Options& options, std::int64_t positions) : options_(options) {
  for (std::int64_t i = 0; i < options.model.num_layers; ++i) {
    const int ratio = options.model.layer(i).compress_ratio;
    if (const auto first = first_.find(ratio); first != first_.end()) {
      layers_.emplace_back(options, *first->second);
    } else {
      first_[ratio] = &layers_.emplace_back(options, slice_of_layer(options, ratio, options.heads), positions);
    }
  }
}

Row StackOnGpu::measure(std::int64_t requests, std::int64_t context, const DeviceTimer& timer) const {
  const LayerShape shape{.requests = requests, .tokens = 1, .length = context, .staggered = true};
  Row row;
  row.group = "stack";
  row.name = "stack decode";
  row.shape =
      fmt::format("requests {}, context {}, {} {} layers, {}, {}{}", shape.requests, shape.length, layers_.size(),
                  options_.model.name, options_.rows->name, options_.index_rows->name, weights_text(options_));
  for (const LayerOnGpu& layer : layers_)
    add_layer_floor(layer.config, options_, layer.views, requests, context - 1, 1, row);
  const auto bytes = [&](std::int64_t /*sets*/) {
    double all = 0;
    for (const LayerOnGpu& layer : layers_) all += LayerRun::bytes_of(options_, layer.config, shape);
    return all;
  };
  if (fitting_sets(1, bytes, row) == 0) return row;
  std::deque<LayerRun> runs;
  std::vector<std::vector<std::function<void()>>> calls;
  for (const LayerOnGpu& layer : layers_) calls.push_back(runs.emplace_back(options_, layer, shape, timer).calls());
  std::vector<std::function<void()>> steps;
  for (std::size_t i = 0; i < LayerRun::kSteps; ++i) {
    steps.emplace_back([&calls, i] {
      for (const auto& layer : calls) layer[i]();
    });
  }
  const std::vector<GpuRecording> recordings = timer.record(steps);
  constexpr double kShare = 1.0 / LayerRun::kSteps;
  for (const GpuRecording& recording : recordings) {
    const Timing one = timer.time(options_.measure, std::span(&recording, 1));
    row.time.runs += one.runs;
    row.time.median += kShare * one.median;
    row.time.p10 += kShare * one.p10;
    row.time.p90 += kShare * one.p90;
    row.time.best += kShare * one.best;
    row.stages.emplace_back(fmt::format("position_{}_us", row.stages.size()), one.median * 1e6);
  }
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (!layers_[i].on_host) continue;
    const Check check = runs[i].check([&] { timer.replay(recordings.back()); });
    row.check = row.check.done ? worse(row.check, check) : check;
  }
  return row;
}

}  // namespace smla::bench
