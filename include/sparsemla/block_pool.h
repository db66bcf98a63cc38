#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sparsemla/export.h"

namespace SMLA_API smla {

/// A block that no request ever holds. Ops read a negative number of a block table as block 0 where they look up
/// compressed slots and compressor states (spec 5.5), so block 0 is never handed out.
inline constexpr std::int32_t kNullBlock = 0;

/// A block and the cache group that it belongs to.
struct GroupBlock {
  std::int32_t block = kNullBlock;  ///< number of the block
  int group = 0;                    ///< the group's place in KvLayout::groups
  friend bool operator==(const GroupBlock&, const GroupBlock&) = default;
};

/// Keeps account of a slab's blocks: which are free, and the group and the number of owners of each other block. Some
/// owners are keepers: they hold a block for whoever may want it, as a prefix cache does. It has no memory of its own.
/// Blocks are 1 to num_blocks(); block 0 is the null block.
class BlockPool {
 public:
  /// @throws InvalidArgument for fewer than 0 blocks or more than 2^31 - 2: block numbers are int32.
  BlockPool(std::int64_t num_blocks, std::vector<std::string> groups);

  std::int64_t num_blocks() const {
    return static_cast<std::int64_t>(blocks_.size()) - 1;
  }                                                                                     ///< the null block left out
  std::int64_t free_blocks() const { return static_cast<std::int64_t>(free_.size()); }  ///< blocks without an owner

  /// Takes a free block, which then has one owner; nothing when none is free.
  std::optional<std::int32_t> allocate(int group);
  /// Adds an owner. @throws InvalidArgument naming a block that `group` does not have.
  void share(int group, std::int32_t block);
  /// Removes an owner; without owners the block is free. @return whether it is free now.
  /// @throws InvalidArgument naming a block that `group` does not have: it was never taken, or released too often.
  bool release(int group, std::int32_t block);

  /// Adds an owner that is a keeper. @throws as share.
  void keep(int group, std::int32_t block);
  /// Removes a keeper. @return whether the block is free now. @throws InvalidArgument naming a block without keepers.
  bool let_go(int group, std::int32_t block);
  /// Blocks that have no owners but keepers.
  std::int64_t idle_blocks() const { return idle_; }
  /// Whether a block has owners and all of them are keepers. @throws InvalidArgument for a number that no block has.
  bool idle(std::int32_t block) const;

  /// The number of a block's owners; 0: it is free. @throws InvalidArgument for a number that no block has.
  std::int64_t owners(std::int32_t block) const;
  std::int64_t held(int group) const { return held_[static_cast<std::size_t>(group)]; }  ///< blocks that a group has
  std::int64_t peak(int group) const {
    return peak_[static_cast<std::size_t>(group)];
  }  ///< the most blocks that a group had at once

 private:
  struct Block {
    std::int32_t group = -1;
    std::int32_t owners = 0;
    std::int32_t keepers = 0;  ///< of the owners
    bool idle() const { return owners > 0 && owners == keepers; }
  };
  Block& held_block(const char* what, int group, std::int32_t block);
  const Block& known_block(const char* what, std::int32_t block) const;
  bool change(Block& block, std::int32_t number, std::int32_t owners, std::int32_t keepers);

  std::vector<std::string> groups_;
  std::vector<Block> blocks_;       ///< by number, the null block first
  std::vector<std::int32_t> free_;  ///< the next one last
  std::vector<std::int64_t> held_;
  std::vector<std::int64_t> peak_;
  std::int64_t idle_ = 0;
};

}  // namespace smla
