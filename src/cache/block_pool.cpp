#include "sparsemla/block_pool.h"

#include <algorithm>
#include <utility>

#include "sparsemla/error.h"

namespace smla {

BlockPool::BlockPool(std::int64_t num_blocks, std::vector<std::string> groups)
    : groups_(std::move(groups)), held_(groups_.size(), 0), peak_(groups_.size(), 0) {
  constexpr std::int64_t kMaxBlocks = 0x7FFF'FFFE;
  if (num_blocks < 0 || num_blocks > kMaxBlocks) {
    throw InvalidArgument("kv pool: blocks: got " + std::to_string(num_blocks) + ", expected 0 to " +
                          std::to_string(kMaxBlocks));
  }
  blocks_.resize(static_cast<std::size_t>(num_blocks + 1));
  free_.reserve(static_cast<std::size_t>(num_blocks));
  for (std::int64_t b = num_blocks; b > kNullBlock; --b) free_.push_back(static_cast<std::int32_t>(b));
}

std::optional<std::int32_t> BlockPool::allocate(int group) {
  if (free_.empty()) return std::nullopt;
  const std::int32_t block = free_.back();
  free_.pop_back();
  blocks_[static_cast<std::size_t>(block)] = {.group = group, .owners = 1};
  const auto g = static_cast<std::size_t>(group);
  peak_[g] = std::max(peak_[g], ++held_[g]);
  return block;
}

/// A block that `group` has.
BlockPool::Block& BlockPool::held_block(const char* what, int group, std::int32_t block) {
  const auto fail = [&](const std::string& why) {
    throw InvalidArgument(std::string("kv pool: ") + what + ": got block " + std::to_string(block) + ", " + why +
                          ", expected one held by group " + groups_[static_cast<std::size_t>(group)]);
  };
  if (block == kNullBlock) fail("the null block");
  if (block < 0 || block > num_blocks()) fail("which is none of 1 to " + std::to_string(num_blocks()));
  Block& b = blocks_[static_cast<std::size_t>(block)];
  if (b.owners == 0) fail("which is free");
  if (b.group != group) fail("held by group " + groups_[static_cast<std::size_t>(b.group)]);
  return b;
}

void BlockPool::share(int group, std::int32_t block) { ++held_block("share", group, block).owners; }

bool BlockPool::release(int group, std::int32_t block) {
  Block& b = held_block("release", group, block);
  if (--b.owners > 0) return false;
  b.group = -1;
  --held_[static_cast<std::size_t>(group)];
  free_.push_back(block);
  return true;
}

std::int64_t BlockPool::owners(std::int32_t block) const {
  if (block <= kNullBlock || block > num_blocks()) {
    throw InvalidArgument("kv pool: owners: got block " + std::to_string(block) + ", expected 1 to " +
                          std::to_string(num_blocks()));
  }
  return blocks_[static_cast<std::size_t>(block)].owners;
}

}  // namespace smla
