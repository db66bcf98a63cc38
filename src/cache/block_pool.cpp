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

/// Adds to the numbers of a block's owners and keepers. @return whether it is free now.
bool BlockPool::change(Block& b, std::int32_t number, std::int32_t owners, std::int32_t keepers) {
  idle_ -= b.idle() ? 1 : 0;
  b.owners += owners;
  b.keepers += keepers;
  idle_ += b.idle() ? 1 : 0;
  if (b.owners > 0) return false;
  --held_[static_cast<std::size_t>(b.group)];
  b.group = -1;
  free_.push_back(number);
  return true;
}

void BlockPool::share(int group, std::int32_t block) { change(held_block("share", group, block), block, 1, 0); }

bool BlockPool::release(int group, std::int32_t block) {
  Block& b = held_block("release", group, block);
  if (b.idle()) {
    throw InvalidArgument("kv pool: release: got block " + std::to_string(block) +
                          ", which only keepers hold, expected one with another owner");
  }
  return change(b, block, -1, 0);
}

void BlockPool::keep(int group, std::int32_t block) { change(held_block("keep", group, block), block, 1, 1); }

bool BlockPool::let_go(int group, std::int32_t block) {
  Block& b = held_block("let_go", group, block);
  if (b.keepers == 0) {
    throw InvalidArgument("kv pool: let_go: got block " + std::to_string(block) +
                          ", which no keeper holds, expected a kept one");
  }
  return change(b, block, -1, -1);
}

const BlockPool::Block& BlockPool::known_block(const char* what, std::int32_t block) const {
  if (block <= kNullBlock || block > num_blocks()) {
    throw InvalidArgument(std::string("kv pool: ") + what + ": got block " + std::to_string(block) +
                          ", expected 1 to " + std::to_string(num_blocks()));
  }
  return blocks_[static_cast<std::size_t>(block)];
}

std::int64_t BlockPool::owners(std::int32_t block) const { return known_block("owners", block).owners; }

bool BlockPool::idle(std::int32_t block) const { return known_block("idle", block).idle(); }

}  // namespace smla
