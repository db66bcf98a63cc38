#pragma once

#include "engine/synthetic.h"
#include "sparsemla/model_config.h"

namespace smla::bench {

/// Makes the weights that an FP8 checkpoint has in FP8 what they are there: E4M3 codes and the scales of their 128 x
/// 128 blocks.
void quantise(const LayerConfig& config, OwnedLayerWeights& weights);

}  // namespace smla::bench
