#pragma once

#include <cstdint>
#include <limits>

#include "sparsemla/tensor_view.h"

namespace smla {

/// A block table as read by the index builders: requests and columns outside of it, and negative entries, lead nowhere.
class BlockLookup {
 public:
  BlockLookup(const ConstTensorView& table, std::int64_t block_size)
      : table_(table.absent() ? nullptr : table.as<std::int32_t>()),
        requests_(table.absent() ? 0 : table.size(0)),
        columns_(table.absent() ? 0 : table.size(1)),
        stride_(table.stride[0]),
        block_size_(block_size) {}

  /// table[request, i / block_size] * block_size + i % block_size, or -1.
  std::int64_t slot(std::int64_t request, std::int64_t i) const {
    if (!holds(request, i)) return -1;
    const std::int64_t block = entry(request, i);
    return block < 0 ? -1 : block * block_size_ + i % block_size_;
  }

  /// The same with negative entries read as block 0 (spec 5.5: compressed slots).
  std::int64_t slot_clamped(std::int64_t request, std::int64_t i) const {
    if (!holds(request, i)) return -1;
    const std::int64_t block = entry(request, i);
    return (block < 0 ? 0 : block) * block_size_ + i % block_size_;
  }

  /// slot() for int32 index rows: a slot that int32 cannot hold lies in no cache that such a row can address.
  std::int32_t index(std::int64_t request, std::int64_t i) const {
    const std::int64_t s = slot(request, i);
    return s > std::numeric_limits<std::int32_t>::max() ? -1 : static_cast<std::int32_t>(s);
  }

 private:
  bool holds(std::int64_t request, std::int64_t i) const {
    return request >= 0 && request < requests_ && i >= 0 && i / block_size_ < columns_;
  }
  std::int64_t entry(std::int64_t request, std::int64_t i) const { return table_[request * stride_ + i / block_size_]; }

  const std::int32_t* table_;
  std::int64_t requests_;
  std::int64_t columns_;
  std::int64_t stride_;
  std::int64_t block_size_;
};

}  // namespace smla
