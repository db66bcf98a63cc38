#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "bench/device_inputs.h"
#include "bench/device_timer.h"
#include "device/device_tensor.h"
#include "engine/synthetic.h"
#include "layer/placed_layer.h"
#include "sparsemla/layer.h"
#include "sparsemla/step_metadata.h"

namespace smla::bench {

/// The config of a layer of this compress ratio with `heads` query heads (0: all): a tensor-parallel rank's share has
/// the groups of the output projection that belong to its heads.
LayerConfig slice_of_layer(const Options& options, int ratio, std::int64_t heads);

/// Cache formats, device and implementations of a layer on a GPU.
LayerOptions layer_options(const Options& options);

/// A layer with random weights in a GPU's memory, in FP8 or NVFP4 where Options say so, and the same layer on the host,
/// with which its results are compared.
class LayerOnGpu {
 public:
  /// @param positions rows of its rope table
  LayerOnGpu(const Options& options, const LayerConfig& config, std::int64_t positions);
  /// Another layer of the same numbers, in memory of its own on the GPU; none on the host.
  LayerOnGpu(const Options& options, const LayerOnGpu& like);
  LayerConfig config;
  LayerWeights views;  ///< views of the weights on the GPU
  std::optional<AttentionLayer> layer;
  std::optional<AttentionLayer> on_host;
  std::optional<AttentionLayer> on_host_rounding;  ///< the inputs of FP8 weights, as the GPU does in long steps

 private:
  void place(const Options& options);

  std::shared_ptr<const OwnedLayerWeights> host_weights_;
  std::shared_ptr<const RopeTable> rope_;
  std::optional<PlacedLayer> placed_;
};

/// The shape of the steps that are measured together.
struct LayerShape {
  std::int64_t requests = 1;
  std::int64_t tokens = 1;  ///< tokens of a request in a step
  std::int64_t length = 0;  ///< tokens of a request after the step; of decodes after the last step
  bool prefill = false;
  bool staggered = false;  ///< the lengths of decodes differ by up to three tokens, as of requests that came in turn
};

/// A layer's caches and several steps over them, each with block tables, positions and hidden states of its own.
class LayerRun {
 public:
  LayerRun(const Options& options, const LayerOnGpu& layer, const LayerShape& shape, const DeviceTimer& timer);
  ~LayerRun();
  static double bytes_of(const Options& options, const LayerConfig& config, const LayerShape& shape);

  /// Decodes are of so many positions in turn: a C4A layer closes a group at one of them.
  static constexpr std::int64_t kSteps = 4;
  /// The shortest context of a decode of so many tokens a request: at its first position all of them are there.
  /// `staggered`: LayerShape's.
  static constexpr std::int64_t least_length(std::int64_t tokens, bool staggered) {
    return tokens + (kSteps - 1) * (staggered ? 2 : 1);
  }
  std::vector<std::function<void()>> calls();
  std::string implementation() const;
  bool rounds_inputs() const;  ///< whether inputs of FP8 weights are rounded to FP8
  /// Poisons the outputs, replays the last call and checks them. All must equal, bit for bit, those of the same step
  /// computed as ops one after the other on one stream. Those of the last request (of a prompt its last token) are
  /// compared with the layer on the host over copies of that request's blocks; the host first checks the entries that
  /// the GPU chose and then attends to them.
  Check check(const std::function<void()>& replay);

 private:
  /// The caches of one cache group of a layer and the blocks in them.
  struct GroupCaches {
    std::int64_t first_column = 0;
    std::int64_t columns = 0;  ///< block-table columns of a request that the steps use
    std::vector<CacheRole> roles;
    std::deque<DeviceCache> caches;
  };
  /// One step, ready to run.
  struct Step {
    std::vector<std::int32_t> host_starts;
    std::vector<std::int32_t> host_lens;
    std::vector<HostTensor> host_tables;
    DeviceTensor starts;
    DeviceTensor lens;
    DeviceTensor positions;
    std::vector<DeviceTensor> tables;
    std::unique_ptr<StepMetadata> metadata;
    std::optional<LayerPlan> plan;
    DeviceTensor hidden;
  };
  void make_step(std::int64_t index);
  void forward(const Step& step, LayerObserver* observer);
  Check check_on_host(const Step& step, const HostTensor& got, const HostTensor& chosen) const;

  const LayerOnGpu& layer_;
  LayerShape shape_;
  Stream stream_;
  KvLayout layout_;
  std::deque<GroupCaches> groups_;
  LayerCaches caches_;
  std::vector<std::unique_ptr<Step>> steps_;
  DeviceMemory workspace_;
  DeviceTensor output_;
};

Row measure_layer(const Options& options, const LayerOnGpu& layer, const LayerShape& shape, const DeviceTimer& timer);

}  // namespace smla::bench
