#include "sparsemla/slab.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cache/zero_pages.h"
#include "device/memory.h"
#include "sparsemla/error.h"

namespace smla {

struct Slab::Memory {
  DeviceMemory bytes;
  int ordinal = 0;  ///< of the GPU that it is of
  PagesOfGroups pages;
  PagesOnDevice on_device;
  std::uint8_t* data() const { return static_cast<std::uint8_t*>(bytes.data()); }
};

Slab::Slab(KvLayout layout, std::int64_t num_blocks, DeviceKind device, Stream stream)
    : layout_(std::move(layout)),
      num_blocks_(num_blocks),
      device_(device),
      stream_(stream),
      memory_(std::make_unique<Memory>()) {
  memory_->ordinal = current_device(device);
  memory_->bytes = DeviceMemory(device, static_cast<std::size_t>(bytes()), false);
  PagesOfGroups& pages = memory_->pages;
  for (const CacheGroup& group : layout_.groups) {
    pages.first.push_back(static_cast<std::int32_t>(pages.pages.size()));
    for (const LayerCache& c : group.caches)
      pages.pages.push_back({.offset = c.offset_bytes, .bytes = block_bytes(*c.format, c.block_size)});
    pages.most = std::max(pages.most, static_cast<std::int64_t>(group.caches.size()));
  }
  pages.first.push_back(static_cast<std::int32_t>(pages.pages.size()));
  fill_bytes(device, memory_->data(), 0, static_cast<std::size_t>(layout_.block_stride_bytes), stream);
}

Slab::~Slab() = default;
Slab::Slab(Slab&&) noexcept = default;
Slab& Slab::operator=(Slab&&) noexcept = default;

PagedCache Slab::cache(std::int64_t layer, CacheRole role) const {
  const LayerCache* c = layout_.find(layer, role);
  if (c == nullptr) {
    throw InvalidArgument("kv pool: got role " + name_of(role) + " of layer " + std::to_string(layer) +
                          ", expected a cache that this layer has");
  }
  const auto scale = scales_.find({layer, role});
  return {.format = c->format,
          .base = memory_->data() + c->offset_bytes,
          .num_blocks = num_blocks_ + 1,
          .block_size = c->block_size,
          .block_stride_bytes = layout_.block_stride_bytes,
          .scale = scale == scales_.end() ? layout_.kv_scale : scale->second};
}

void Slab::set_scale(std::int64_t layer, CacheRole role, float scale) {
  (void)cache(layer, role);  // must exist
  scales_.insert_or_assign({layer, role}, scale);
}

void Slab::zero(std::span<const GroupBlock> blocks) {
  const PagesOfGroups& pages = memory_->pages;
  if (device_ != DeviceKind::kCpu) {
    check_current_device("kv pool", device_, memory_->ordinal);
    cuda_zero_pages(memory_->data(), layout_.block_stride_bytes, pages, blocks, memory_->on_device, stream_);
    return;
  }
  for (const GroupBlock& item : blocks) {
    const auto group = static_cast<std::size_t>(item.group);
    for (auto p = static_cast<std::size_t>(pages.first[group]); p < static_cast<std::size_t>(pages.first[group + 1]);
         ++p) {
      std::memset(memory_->data() + item.block * layout_.block_stride_bytes + pages.pages[p].offset, 0,
                  static_cast<std::size_t>(pages.pages[p].bytes));
    }
  }
}

}  // namespace smla
