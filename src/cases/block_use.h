#pragma once

// Which blocks of its caches a call uses. A recorded call keeps these alone, numbered 0, 1, ... in ascending order, and
// its slots and block tables name them by their new numbers: a file is as large as what the call touches, and caches
// that share a slab do not hold each other's bytes.

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/host_tensor.h"
#include "ops/op_list.h"

namespace smla {

/// Caches of a call that number their blocks alike, and the tensors that name these blocks.
struct BlockUse {
  struct Cache {
    std::string name;
    const PagedCache* cache;
  };
  struct Tensor {
    std::string name;
    ConstTensorView view;
  };
  std::vector<Cache> caches;
  std::vector<Tensor> slots;                             ///< of slots: block * block size + row
  std::vector<Tensor> tables;                            ///< of blocks
  std::optional<std::set<std::int64_t>> table_blocks{};  ///< those of the tables that are used; absent: all
};

/// The blocks that are kept, and the numbers they get.
class BlockNumbers {
 public:
  explicit BlockNumbers(const BlockUse& use);
  /// In ascending order; block kept()[i] is number i.
  const std::vector<std::int64_t>& kept() const { return kept_; }
  /// Renames the slots or the blocks in `values`. What named no block of the cache names none afterwards.
  void rename_slots(HostTensor& values) const;
  void rename_blocks(HostTensor& values) const;

 private:
  std::int64_t number(std::int64_t block) const;

  std::int64_t num_blocks_;
  std::int64_t block_size_;
  std::vector<std::int64_t> kept_;
};

/// The caches of a call by what names their blocks; none for an op without caches.
template <class Op>
std::vector<BlockUse> block_uses(const typename Op::Problem&, const typename Op::Args&) {
  return {};
}
template <>
std::vector<BlockUse> block_uses<LatentNorms>(const LatentNorms::Problem&, const LatentNorms::Args&);
template <>
std::vector<BlockUse> block_uses<QNormRopeInsert>(const QNormRopeInsert::Problem&, const QNormRopeInsert::Args&);
template <>
std::vector<BlockUse> block_uses<InsertRows>(const InsertRows::Problem&, const InsertRows::Args&);
template <>
std::vector<BlockUse> block_uses<SaveState>(const SaveState::Problem&, const SaveState::Args&);
template <>
std::vector<BlockUse> block_uses<CompressStore>(const CompressStore::Problem&, const CompressStore::Args&);
template <>
std::vector<BlockUse> block_uses<IndexerLogits>(const IndexerLogits::Problem&, const IndexerLogits::Args&);
template <>
std::vector<BlockUse> block_uses<IndexerTopK>(const IndexerTopK::Problem&, const IndexerTopK::Args&);
template <>
std::vector<BlockUse> block_uses<GatherIndexRows>(const GatherIndexRows::Problem&, const GatherIndexRows::Args&);
template <>
std::vector<BlockUse> block_uses<GatherRows>(const GatherRows::Problem&, const GatherRows::Args&);
template <>
std::vector<BlockUse> block_uses<SparseAttention>(const SparseAttention::Problem&, const SparseAttention::Args&);

}  // namespace smla
