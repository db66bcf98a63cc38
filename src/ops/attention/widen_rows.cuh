#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/attention/attention_block.cuh"
#include "ops/attention/named_rows.h"

namespace smla::attention {

/// Queues what finds the rows that the lists of `tokens` tokens from c.first_token on name, and widens them
/// (widen_rows_cuda.cu). They are not widened where there are more than n.capacity.
void widen_named_rows(const TileCall& c, const NamedRows& n, std::int64_t tokens, std::int64_t multiprocessors,
                      cudaStream_t stream);

}  // namespace smla::attention
