#pragma once

#include <cstdint>
#include <span>

#include "device/device_tensor.h"
#include "sparsemla/block_pool.h"

namespace smla {

/// Bytes of a page in a block of its group that rows can use.
struct UsedBytes {
  std::int64_t offset = 0;  ///< from the block's start
  std::int64_t bytes = 0;
};

/// What a kernel needs to zero blocks: the pages of every group, group after group.
struct PagesOfGroups {
  std::vector<UsedBytes> pages;
  std::vector<std::int32_t> first;  ///< of each group in `pages`, and their end
  std::int64_t most = 0;            ///< pages of the largest group
};

/// The same in a GPU's memory, with the blocks of a call.
struct PagesOnDevice {
  DeviceTensor pages;
  DeviceTensor first;
  DeviceTensor blocks;
};

/// Zeroes the pages of `blocks`, blocks of `stride` bytes from `slab` on, by one kernel on `stream`. `place` keeps its
/// memory from call to call. @throws Unsupported without CUDA; CudaError.
void cuda_zero_pages(std::uint8_t* slab, std::int64_t stride, const PagesOfGroups& pages,
                     std::span<const GroupBlock> blocks, PagesOnDevice& place, Stream stream);

}  // namespace smla
