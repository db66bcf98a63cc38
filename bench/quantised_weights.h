#pragma once

#include <string_view>

#include "bench/bench.h"
#include "engine/synthetic.h"
#include "sparsemla/model_config.h"

namespace smla::bench {

/// Makes the weights that an FP8 checkpoint has in FP8 what `options` say: E4M3 codes and the scales of their 128 x 128
/// blocks, or NVFP4. Compressors and the indexer's weights_proj stay bf16 in both, as in public checkpoints.
void quantise(const Options& options, const LayerConfig& config, OwnedLayerWeights& weights);

/// ", fp8 weights" and the like, behind a row's shape; empty for bf16.
std::string_view weights_text(const Options& options);

}  // namespace smla::bench
