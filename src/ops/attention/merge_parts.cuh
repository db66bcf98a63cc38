#pragma once

#include <cstdint>

#include "ops/attention/attention_block.cuh"

namespace smla::attention {

/// Launches the merge of the parts of `tokens` tokens from c.first_token on, where lists have several
/// (TileCall::merge_follows). It may start while the kernel ahead runs, and waits for it.
/// @throws CudaError when the launch is refused.
void launch_merge(const TileCall& c, std::int64_t tokens, cudaStream_t stream);

}  // namespace smla::attention
