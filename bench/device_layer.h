#pragma once

#include <deque>
#include <memory>
#include <optional>

#include "bench/bench.h"
#include "bench/device_timer.h"
#include "device/device_tensor.h"
#include "sparsemla/layer.h"

namespace smla::bench {

/// The config of a layer of this kind, or a tensor-parallel rank's share of it: as many heads (0: all), and as many groups of the output projection as
/// belong to them.
LayerConfig slice_of_layer(const Options& options, int ratio, std::int64_t heads);

/// A layer with random weights in a GPU's memory.
class LayerOnGpu {
 public:
  /// @param positions rows of its rope table
  LayerOnGpu(const Options& options, const LayerConfig& config, std::int64_t positions);
  LayerConfig config;
  LayerWeights views;  ///< of its weights
  std::optional<AttentionLayer> layer;

 private:
  std::deque<DeviceTensor> storage_;
  DeviceTensor rope_;
};

/// Steps that are measured together.
struct LayerShape {
  std::int64_t requests = 1;
  std::int64_t tokens = 1;  ///< of a request
  std::int64_t length = 0;  ///< of a request with its tokens, decodes: at most
  bool prefill = false;
};

/// A layer's caches and several steps over them, each with block tables, positions and hidden states of its own.
class LayerRun {
 public:
  LayerRun(const Options& options, const LayerOnGpu& layer, const LayerShape& shape, const DeviceTimer& timer);
  ~LayerRun();
  static double bytes_of(const Options& options, const LayerConfig& config, const LayerShape& shape);

  std::vector<std::function<void()>> calls();
  std::string implementation() const;
  /// Whether a replay of the last call writes every output, and numbers. Their values are the tests' matter.
  Check check(const std::function<void()>& replay);

 private:
  struct GroupCaches;
  struct Step;
  void make_step(const KvLayout& layout, std::int64_t index);

  const LayerOnGpu& layer_;
  LayerShape shape_;
  Stream stream_;
  std::deque<GroupCaches> groups_;
  LayerCaches caches_;
  std::vector<std::unique_ptr<Step>> steps_;
  DeviceMemory workspace_;
  DeviceTensor output_;
};

Row measure_layer(const Options& options, const LayerOnGpu& layer, const LayerShape& shape, const DeviceTimer& timer);

}  // namespace smla::bench
