#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>

#include "sparsemla/block_pool.h"
#include "sparsemla/device.h"
#include "sparsemla/export.h"
#include "sparsemla/kv_layout.h"

namespace SMLA_API smla {

/// The memory of the caches of a list of layers: equal blocks, cut as a layout says. BlockPool knows who holds a block.
class Slab {
 public:
  /// `num_blocks` blocks and the null block before them, in the memory of `device`: on a GPU that of the one that is
  /// current when the slab is made, and every later call comes from a thread whose current GPU that is. Blocks are
  /// zeroed on `stream`, so that work queued there later finds them so.
  /// @throws InvalidArgument for a number of blocks below 0 or above 2^31 - 2; std::bad_alloc, CudaError; Unsupported
  /// for a GPU where there is none.
  Slab(KvLayout layout, std::int64_t num_blocks, DeviceKind device = DeviceKind::kCpu, Stream stream = {});
  ~Slab();
  Slab(Slab&&) noexcept;  ///< leaves the other without memory
  Slab& operator=(Slab&&) noexcept;

  const KvLayout& layout() const { return layout_; }
  DeviceKind device() const { return device_; }
  Stream stream() const { return stream_; }  ///< the stream on which blocks are zeroed
  std::int64_t bytes() const { return (num_blocks_ + 1) * layout_.block_stride_bytes; }  ///< bytes of all blocks

  /// A layer's cache over all blocks, the null block included. @throws InvalidArgument when the layer has no such
  /// cache.
  PagedCache cache(std::int64_t layer, CacheRole role) const;
  /// Gives a layer's per-tensor rows a scale of their own in place of the layout's. @throws InvalidArgument when the
  /// layer has no such cache.
  void set_scale(std::int64_t layer, CacheRole role, float scale);

  /// Zeroes the pages that each block's group has in it, only the bytes that rows can use: other pages are left alone.
  /// On a GPU one launch for all of them.
  void zero(std::span<const GroupBlock> blocks);

 private:
  struct Memory;

  KvLayout layout_;
  std::int64_t num_blocks_;
  DeviceKind device_;
  Stream stream_;
  std::unique_ptr<Memory> memory_;
  std::map<std::pair<std::int64_t, CacheRole>, float> scales_;  ///< where they differ from the layout's
};

}  // namespace smla
