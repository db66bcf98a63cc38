#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "sparsemla/block_pool.h"
#include "sparsemla/export.h"
#include "sparsemla/kv_layout.h"
#include "sparsemla/slab.h"

namespace SMLA_API smla {

/// A slab and the pool of its blocks.
class KvPool {
 public:
  /// `num_blocks` blocks that can be held; the slab has one more, the null block. Memory and errors as of Slab.
  KvPool(KvLayout layout, std::int64_t num_blocks, DeviceKind device = DeviceKind::kCpu, Stream stream = {});
  KvPool(const KvPool&) = delete;
  KvPool& operator=(const KvPool&) = delete;

  const KvLayout& layout() const { return slab_.layout(); }
  DeviceKind device() const { return slab_.device(); }
  Stream stream() const { return slab_.stream(); }                    ///< on which blocks are zeroed
  std::int64_t num_blocks() const { return blocks_.num_blocks(); }    ///< that can be held
  std::int64_t free_blocks() const { return blocks_.free_blocks(); }  ///< that nobody holds
  std::int64_t held(int group) const { return blocks_.held(group); }  ///< blocks that a group has
  std::int64_t peak(int group) const { return blocks_.peak(group); }  ///< the most it had
  const Slab& slab() const { return slab_; }                          ///< the memory
  const BlockPool& blocks() const { return blocks_; }                 ///< who has which block
  BlockPool& blocks() { return blocks_; }  ///< for those who zero what they take themselves, with zero()

  /// A block for `group` with one owner, its pages zeroed (Slab::zero); nothing when none is free.
  std::optional<std::int32_t> allocate(int group);
  /// One owner more of a block (BlockPool::share).
  void share(int group, std::int32_t block) { blocks_.share(group, block); }
  /// One owner less of a block (BlockPool::release).
  void release(int group, std::int32_t block) { blocks_.release(group, block); }
  /// Slab::zero.
  void zero(std::span<const GroupBlock> blocks) { slab_.zero(blocks); }

  /// Slab::cache.
  PagedCache cache(std::int64_t layer, CacheRole role) const { return slab_.cache(layer, role); }
  /// Slab::set_scale.
  void set_scale(std::int64_t layer, CacheRole role, float scale) { slab_.set_scale(layer, role, scale); }

 private:
  BlockPool blocks_;  ///< first: it checks how many there are
  Slab slab_;
};

/// The blocks of one request: a table a group, -1 where a block was never needed or has slid out of the window.
class RequestBlocks {
 public:
  explicit RequestBlocks(const KvLayout& layout) : tables_(layout.groups.size()) {}  ///< holds no block yet

  /// Makes room for positions [begin, end) in every group. All or nothing: returns false, holding what it held, when
  /// the pool is too small. New blocks are zeroed; with `fresh` they are appended there instead, for the caller to zero
  /// them together (KvPool::zero) before anything is queued that reads them.
  bool reserve(KvPool& pool, std::int64_t begin, std::int64_t end, std::vector<GroupBlock>* fresh = nullptr);
  /// The number of blocks that reserve(begin, end) takes.
  std::int64_t missing(const KvLayout& layout, std::int64_t begin, std::int64_t end) const;
  /// Puts blocks that somebody else holds into a group's columns from `column` on, with one owner more each.
  /// @throws InvalidArgument when one of these columns has a block, or for a block that the group does not have; then
  /// nothing has changed.
  void adopt(BlockPool& pool, int group, std::int64_t column, std::span<const std::int32_t> blocks);
  /// Makes room for what a request of `tokens` computed positions needs to go on: its live columns in every group. All
  /// or nothing, as above; new blocks are zeroed.
  bool reserve_live(KvPool& pool, std::int64_t tokens);
  /// Gives back what no query at `next_position` or later can see.
  void slide(KvPool& pool, std::int64_t next_position);
  /// Gives everything back.
  void clear(KvPool& pool);

  /// Block numbers, -1 where there is none.
  std::span<const std::int32_t> table(int group) const { return tables_[static_cast<std::size_t>(group)]; }
  /// Changes whenever a column may get another block than it had: a copy of the tables with the same number of changes
  /// only lacks columns at their ends.
  std::uint64_t changes() const { return changes_; }
  /// Groups it was made for.
  int num_groups() const { return static_cast<int>(tables_.size()); }
  /// Holds no block.
  bool empty() const;

 private:
  bool take(KvPool& pool, std::span<const std::pair<std::int64_t, std::int64_t>> columns,
            std::vector<GroupBlock>* fresh);

  std::vector<std::vector<std::int32_t>> tables_;
  std::uint64_t changes_ = 0;
};

}  // namespace smla
