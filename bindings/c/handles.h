#pragma once

#include <atomic>
#include <optional>

#include "device/device_tensor.h"
#include "sparsemla/c_api.h"
#include "sparsemla/layer.h"
#include "sparsemla/weights.h"

/// A layer and what it needs to stay.
struct smla_layer {
  smla::LayerTensors weights;                ///< views of the caller's memory, or of the checkpoint's, which they keep
  std::vector<smla::DeviceTensor> uploaded;  ///< a checkpoint's tensors on a GPU
  smla::DeviceTensor cos_sin;
  smla::KvLayout layout;  ///< of this layer alone
  std::optional<smla::AttentionLayer> layer;
  std::uint64_t id = next_id();  ///< no other layer of the process has it: a plan says by it which layer it is for

  /// The scale of a cache's per-tensor rows: the checkpoint's, else the options'.
  float scale_of(smla::CacheRole role) const {
    const float window = weights.kv_scale.value_or(layer->options().caches.kv_scale);
    if (role == smla::CacheRole::kWindow) return window;
    return role == smla::CacheRole::kCompressed ? weights.compressed_kv_scale.value_or(window) : 1.0F;
  }

 private:
  static std::uint64_t next_id() {
    static std::atomic<std::uint64_t> next{1};
    return next.fetch_add(1);
  }
};

/// A plan of one layer.
struct smla_layer_plan {
  std::uint64_t layer_id = 0;
  smla::LayerPlan plan;
};

/// The metadata of one step, for layers whose caches look like those of the layer it was made for.
struct smla_step {
  smla_step(const smla::KvLayout& layout_in, const smla::LayerConfig& config_in, const smla::LayerOptions& options)
      : layout(layout_in),
        config(config_in),
        device(options.device),
        metadata(layout, {&config, 1}, options.front_end, options.device) {}

  smla::KvLayout layout;
  smla::LayerConfig config;
  smla::DeviceKind device;
  std::vector<smla::DeviceTensor> block_tables;  ///< copies: the metadata looks into them
  smla::StepMetadata metadata;
  bool built = false;
};
