#include "sparsemla/kv_pool.h"

#include <algorithm>
#include <utility>

#include "device/memory.h"
#include "sparsemla/error.h"

namespace smla {

KvPool::KvPool(KvLayout layout, std::int64_t num_blocks, DeviceKind device, Stream stream)
    : layout_(std::move(layout)),
      num_blocks_(num_blocks),
      device_(device),
      stream_(stream),
      slab_(nullptr),
      held_(layout_.groups.size(), 0),
      peak_(layout_.groups.size(), 0) {
  constexpr std::int64_t kMaxBlocks = 0x7FFF'FFFF;  // block ids are int32
  if (num_blocks < 0 || num_blocks > kMaxBlocks) {
    throw InvalidArgument("kv pool: blocks: got " + std::to_string(num_blocks) + ", expected 0 to " +
                          std::to_string(kMaxBlocks));
  }
  memory_ =
      std::make_unique<DeviceMemory>(device, static_cast<std::size_t>(num_blocks * layout_.block_stride_bytes), false);
  slab_ = static_cast<std::uint8_t*>(memory_->data());
  owner_.assign(static_cast<std::size_t>(num_blocks), -1);
  free_.reserve(static_cast<std::size_t>(num_blocks));
  for (std::int64_t b = num_blocks - 1; b >= 0; --b) free_.push_back(static_cast<std::int32_t>(b));
}

KvPool::~KvPool() = default;

std::optional<std::int32_t> KvPool::allocate(int group) {
  if (free_.empty()) return std::nullopt;
  const std::int32_t block = free_.back();
  free_.pop_back();
  owner_[static_cast<std::size_t>(block)] = group;
  const auto g = static_cast<std::size_t>(group);
  peak_[g] = std::max(peak_[g], ++held_[g]);
  std::uint8_t* start = slab_ + block * layout_.block_stride_bytes;
  for (const LayerCache& c : layout_.groups[g].caches) {
    fill_bytes(device_, start + c.offset_bytes, 0, static_cast<std::size_t>(block_bytes(*c.format, c.block_size)),
               stream_);
  }
  return block;
}

void KvPool::release(int group, std::int32_t block) {
  if (block < 0 || block >= num_blocks_ || owner_[static_cast<std::size_t>(block)] != group) {
    throw InvalidArgument("kv pool: release: got block " + std::to_string(block) + ", expected one held by group " +
                          layout_.groups[static_cast<std::size_t>(group)].name);
  }
  owner_[static_cast<std::size_t>(block)] = -1;
  --held_[static_cast<std::size_t>(group)];
  free_.push_back(block);
}

PagedCache KvPool::cache(std::int64_t layer, CacheRole role) const {
  const LayerCache* c = layout_.find(layer, role);
  if (c == nullptr) {
    throw InvalidArgument("kv pool: got role " + name_of(role) + " of layer " + std::to_string(layer) +
                          ", expected a cache that this layer has");
  }
  const auto scale = scales_.find({layer, role});
  return {.format = c->format,
          .base = slab_ + c->offset_bytes,
          .num_blocks = num_blocks_,
          .block_size = c->block_size,
          .block_stride_bytes = layout_.block_stride_bytes,
          .scale = scale == scales_.end() ? layout_.kv_scale : scale->second};
}

void KvPool::set_scale(std::int64_t layer, CacheRole role, float scale) {
  (void)cache(layer, role);  // must exist
  scales_.insert_or_assign({layer, role}, scale);
}

bool RequestBlocks::reserve(KvPool& pool, std::int64_t begin, std::int64_t end) {
  std::vector<std::pair<std::int64_t, std::int64_t>> columns;
  for (const CacheGroup& group : pool.layout().groups) {
    columns.emplace_back(begin / group.block_tokens, (end + group.block_tokens - 1) / group.block_tokens);
  }
  return take(pool, columns);
}

bool RequestBlocks::reserve_live(KvPool& pool, std::int64_t tokens) {
  std::vector<std::pair<std::int64_t, std::int64_t>> columns;
  for (const CacheGroup& group : pool.layout().groups) columns.push_back(group.live_columns(tokens));
  return take(pool, columns);
}

bool RequestBlocks::take(KvPool& pool, std::span<const std::pair<std::int64_t, std::int64_t>> columns) {
  // Memory first: nothing may throw once a block is taken.
  std::vector<std::pair<int, std::size_t>> taken;
  std::int64_t most = 0;
  for (std::size_t g = 0; g < columns.size(); ++g) {
    const auto end = static_cast<std::size_t>(columns[g].second);
    if (tables_[g].size() < end) tables_[g].resize(end, -1);
    most += columns[g].second - columns[g].first;
  }
  taken.reserve(static_cast<std::size_t>(std::max<std::int64_t>(most, 0)));
  for (std::size_t g = 0; g < columns.size(); ++g) {
    std::vector<std::int32_t>& table = tables_[g];
    const auto end = static_cast<std::size_t>(columns[g].second);
    for (auto c = static_cast<std::size_t>(columns[g].first); c < end; ++c) {
      if (table[c] >= 0) continue;
      const std::optional<std::int32_t> block = pool.allocate(static_cast<int>(g));
      if (!block) {
        for (const auto& [group, column] : taken) {
          pool.release(group, tables_[static_cast<std::size_t>(group)][column]);
          tables_[static_cast<std::size_t>(group)][column] = -1;
        }
        return false;
      }
      table[c] = *block;
      taken.emplace_back(static_cast<int>(g), c);
    }
  }
  return true;
}

void RequestBlocks::slide(KvPool& pool, std::int64_t next_position) {
  const KvLayout& layout = pool.layout();
  for (std::size_t g = 0; g < layout.groups.size(); ++g) {
    const CacheGroup& group = layout.groups[g];
    if (!group.sliding()) continue;
    const std::int64_t last = std::min<std::int64_t>(group.first_kept(next_position) / group.block_tokens,
                                                     static_cast<std::int64_t>(tables_[g].size()));
    // Columns before the first needed one were given back by earlier calls, down to the first -1.
    for (std::int64_t c = last - 1; c >= 0 && tables_[g][static_cast<std::size_t>(c)] >= 0; --c) {
      pool.release(static_cast<int>(g), tables_[g][static_cast<std::size_t>(c)]);
      tables_[g][static_cast<std::size_t>(c)] = -1;
    }
  }
}

void RequestBlocks::clear(KvPool& pool) {
  for (std::size_t g = 0; g < tables_.size(); ++g) {
    for (const std::int32_t block : tables_[g]) {
      if (block >= 0) pool.release(static_cast<int>(g), block);
    }
    tables_[g].clear();
  }
}

bool RequestBlocks::empty() const {
  return std::ranges::all_of(tables_, [](const auto& table) {
    return std::ranges::all_of(table, [](std::int32_t block) { return block < 0; });
  });
}

}  // namespace smla
