#include "sparsemla/kv_pool.h"

#include <array>

namespace smla {

namespace {

std::vector<std::string> names_of_groups(const KvLayout& layout) {
  std::vector<std::string> names;
  for (const CacheGroup& group : layout.groups) names.push_back(group.name);
  return names;
}

}  // namespace

KvPool::KvPool(KvLayout layout, std::int64_t num_blocks, DeviceKind device, Stream stream)
    : blocks_(num_blocks, names_of_groups(layout)), slab_(std::move(layout), num_blocks, device, stream) {}

std::optional<std::int32_t> KvPool::allocate(int group) {
  const std::optional<std::int32_t> block = blocks_.allocate(group);
  if (block) slab_.zero(std::array{GroupBlock{.block = *block, .group = group}});
  return block;
}

}  // namespace smla
