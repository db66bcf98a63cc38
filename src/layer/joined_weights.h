#pragma once

#include <optional>

#include "sparsemla/layer_weights.h"
#include "sparsemla/model_config.h"
#include "sparsemla/ops/projection.h"

namespace smla {

/// Linear layers of one input whose weights follow one another in memory, as one: a single product instead of two to
/// four. PlacedLayer lays weights so; a host that has fused weights (wq_a with wkv, wkv with wgate) gets it, too. NVFP4
/// weights stay apart, for each has a scale of all of it.
struct JoinedWeight {
  ConstTensorView w;        ///< [outputs of all, inputs]; absent when the weights lie apart
  ConstTensorView scale{};  ///< of E4M3 weights
};

/// wq_a and wkv: outputs are the latent query, then the latent key.
JoinedWeight joined_latents(const LayerWeights& weights);

/// wkv and wgate of the compressor, then of the indexer's where the layer runs one.
JoinedWeight joined_compressors(const LayerConfig& config, const LayerWeights& weights);

}  // namespace smla
