#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/attention/attention_block.cuh"
#include "ops/attention/named_rows.h"

namespace smla::attention {

void attend_widened(const TileCall& c, std::uint32_t items, unsigned blocks, const NamedRows& named,
                    cudaStream_t stream);

void attend_stored(const TileCall& c, std::uint32_t items, unsigned blocks, const NamedRows& named,
                   cudaStream_t stream);

}  // namespace smla::attention
