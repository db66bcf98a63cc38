#pragma once

#include "device/capability.h"
#include "sparsemla/c_api.h"
#include "sparsemla/layer.h"

namespace smla::c {

/// The numbers of a layer that a struct means, 0 replaced by the defaults. @throws InvalidArgument naming the number
/// that is impossible.
LayerConfig read_config(const smla_layer_config* config);
smla_layer_config write_config(const LayerConfig& config);

/// Options of a layer, and the length of its rope table.
struct Options {
  LayerOptions layer;
  std::int64_t max_position = 0;
  bool fp8_weights = false;    ///< of a checkpoint, kept
  bool nvfp4_weights = false;  ///< likewise
};

/// @param major_of compute capability (major) of a kind of device: what "auto" and FlashInfer's name depend on
/// @throws InvalidArgument naming the option that is impossible.
Options read_options(const smla_layer_options* options, int (*major_of)(DeviceKind) = device_major);

}  // namespace smla::c
