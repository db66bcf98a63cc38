#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "device/device_tensor.h"
#include "sparsemla/layer.h"
#include "sparsemla/weights.h"

namespace smla {

/// A rope table in the memory of the CPU or of the GPU that is current when it is made. Layers with equal RopeConfig
/// can share one.
class RopeTable {
 public:
  /// `keep_host`: a table on a GPU keeps a copy on the host, which host() needs.
  RopeTable(const RopeConfig& config, std::int64_t positions, DeviceKind device, bool keep_host = false);
  const RopeConfig& config() const { return config_; }
  ConstTensorView host() const { return host_.view(); }                                        ///< [positions, dim] F32
  ConstTensorView placed() const { return placed_.absent() ? host_.view() : placed_.view(); }  ///< where layers read it

 private:
  RopeConfig config_;
  HostTensor host_;
  DeviceTensor placed_;  ///< absent on the CPU
};

/// Where a layer comes from: a checkpoint, a host's own tensors, random numbers.
struct LayerSource {
  LayerConfig config;
  LayerWeights weights;
  bool on_device = false;  ///< the weights lie in the device's memory already; otherwise on the host
  std::optional<float> q_scale{}, kv_scale{}, compressed_kv_scale{};  ///< of a checkpoint: LayerTensors
  std::shared_ptr<const void> memory{};  ///< what the weights look into; null: the caller keeps it

  /// What a checkpoint gave.
  static LayerSource of(LayerTensors tensors);
};

/// One layer on one device: weights, rope table, layer, and the layout of its caches. Host weights of a layer on a GPU
/// are copied to the GPU that is current when the object is made, and the source's memory is let go of; forwards must
/// run with that GPU current. Two of them in one process share nothing.
class PlacedLayer {
 public:
  /// @throws what AttentionLayer throws.
  PlacedLayer(LayerSource source, LayerOptions options, std::shared_ptr<const RopeTable> rope);

  const AttentionLayer& layer() const { return *layer_; }
  const LayerConfig& config() const { return layer_->config(); }
  const LayerOptions& options() const { return layer_->options(); }
  const LayerWeights& weights() const { return source_.weights; }  ///< where the layer reads them
  const KvLayout& layout() const { return layout_; }               ///< of this layer alone
  const RopeTable& rope() const { return *rope_; }
  /// The scale of a cache's per-tensor rows: the checkpoint's, else the options'; 1 for index and state rows.
  float scale_of(CacheRole role) const;

 private:
  LayerSource source_;
  std::vector<DeviceTensor> copies_;
  std::shared_ptr<const RopeTable> rope_;
  std::optional<AttentionLayer> layer_;
  KvLayout layout_;
};

}  // namespace smla
