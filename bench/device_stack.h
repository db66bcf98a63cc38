#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "bench/device_layer.h"

namespace smla::bench {

/// The attention layers of a whole model in a GPU's memory, in its order, each with weights of its own. A layer finds
/// in L2 what the layers ahead of it have left there, kernels' code for one, as it does in a model.
class StackOnGpu {
 public:
  /// @param positions rows of the rope tables
  StackOnGpu(const Options& options, std::int64_t positions);

  /// Times decode steps of all layers, each step as one graph, each layer with caches of its own. Requests have up to
  /// `context` tokens, lengths that differ by up to three: a C4A layer closes a group for some of them. The row's time
  /// is the mean over LayerRun::kSteps positions in turn of what is measured at each, which its stages have. The first
  /// layer of each kind is checked as LayerRun::check does. Skipped where memory does not suffice.
  Row measure(std::int64_t requests, std::int64_t context, const DeviceTimer& timer) const;
  /// The first layer of a compress ratio, with the same layer on the host.
  const LayerOnGpu& first_of(int ratio) const { return *first_.at(ratio); }

 private:
  Options options_;
  std::deque<LayerOnGpu> layers_;
  std::map<int, const LayerOnGpu*> first_;
};

}  // namespace smla::bench
