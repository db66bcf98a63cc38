#pragma once

#include <atomic>
#include <optional>

#include "device/device_tensor.h"
#include "layer/placed_layer.h"
#include "sparsemla/c_api.h"
#include "sparsemla/layer.h"

/// A layer and what it needs to stay.
struct smla_layer {
  std::optional<smla::PlacedLayer> placed;  ///< keeps a checkpoint's weights; a caller's weights are the caller's
  std::uint64_t id = next_id();  ///< no other layer of the process has it: a plan says by it which layer it is for

  const smla::AttentionLayer& layer() const { return placed->layer(); }
  const smla::KvLayout& layout() const { return placed->layout(); }

 private:
  static std::uint64_t next_id() {
    static std::atomic<std::uint64_t> next{1};
    return next.fetch_add(1);
  }
};

/// A plan of one layer.
struct smla_layer_plan {
  std::uint64_t layer_id = 0;
  smla::StepShape shape;
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
