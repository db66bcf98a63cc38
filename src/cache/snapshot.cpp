// Saving and loading the state of a request; docs/snapshot.md has the layout.
#include "sparsemla/snapshot.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "cache/convert_rows.h"
#include "cache/snapshot_records.h"
#include "device/memory.h"
#include "sparsemla/error.h"

namespace smla {

namespace {

using snapshot_records::cache_name;

[[noreturn]] void refuse(const std::string& what, const std::string& got, const std::string& expected) {
  throw InvalidArgument("snapshot: " + what + ": got " + got + ", expected " + expected);
}

std::string describe(const SnapshotCache& c) {
  std::string out = std::to_string(c.block_size) + " " + std::string(c.format->name) + " rows of " +
                    std::to_string(c.block_tokens) + " tokens a block";
  out += c.window > 0 ? ", window " + std::to_string(c.window) : ", all kept";
  if (c.format->scale == ScaleKind::kPerTensor) out += ", scale " + std::to_string(c.scale);
  return out;
}

/// Whether a pool's cache can take the rows of a snapshot's.
bool fits(const SnapshotCache& a, const SnapshotCache& b) {
  const bool scaled = a.format->scale == ScaleKind::kPerTensor;
  return converts(*a.format, *b.format) && a.block_size == b.block_size && a.block_tokens == b.block_tokens &&
         a.window == b.window &&
         (!scaled || std::bit_cast<std::uint32_t>(a.scale) == std::bit_cast<std::uint32_t>(b.scale));
}

/// Every cache of a layout with the blocks that `tokens` positions need, by layer and role.
std::vector<SnapshotCache> live_caches(const KvPool& pool, std::int64_t tokens) {
  std::vector<SnapshotCache> out;
  for (const CacheGroup& group : pool.layout().groups) {
    const auto [first, end] = group.live_columns(tokens);
    for (const LayerCache& c : group.caches) {
      out.push_back({.layer = c.layer,
                     .role = c.role,
                     .format = c.format,
                     .scale = pool.cache(c.layer, c.role).scale,
                     .block_size = c.block_size,
                     .block_tokens = group.block_tokens,
                     .window = group.kept(),
                     .first_block = first,
                     .blocks = end - first});
    }
  }
  std::ranges::sort(out, {}, [](const SnapshotCache& c) { return std::pair(c.layer, c.role); });
  return out;
}

/// A block as it is saved: rows outside of [first, end) are zeros. Without such rows it need not be there.
void copy_block(const KvPool& pool, const PagedCache& cache, std::int32_t block, std::int64_t first, std::int64_t end,
                std::vector<std::uint8_t>& page) {
  const RowFormat& f = *cache.format;
  if (first >= end) {
    std::ranges::fill(page, std::uint8_t{0});
    return;
  }
  copy_bytes(pool.device(), page.data(), cache.block(block), page.size(), pool.stream());
  const std::int64_t scales = cache.block_size * f.data_bytes;
  const auto clear = [&](std::int64_t from, std::int64_t to) {
    std::fill(page.begin() + from, page.begin() + to, std::uint8_t{0});
  };
  clear(0, first * f.data_bytes);
  clear(end * f.data_bytes, scales);
  clear(scales, scales + first * f.scale_bytes);
  clear(scales + end * f.scale_bytes, static_cast<std::int64_t>(page.size()));
}

void check_layout(const SnapshotInfo& info, const KvPool& pool) {
  if (info.num_layers != pool.layout().num_layers)
    refuse("layers", std::to_string(info.num_layers), std::to_string(pool.layout().num_layers));
  const std::vector<SnapshotCache> expected = live_caches(pool, info.tokens);
  for (std::size_t i = 0; i < std::max(info.caches.size(), expected.size()); ++i) {
    const bool got_more = i < info.caches.size();
    const bool wants_more = i < expected.size();
    const auto key = [](const SnapshotCache& c) { return std::pair(c.layer, c.role); };
    if (got_more && wants_more && key(info.caches[i]) == key(expected[i])) {
      if (!fits(info.caches[i], expected[i])) {
        refuse(cache_name(expected[i]), describe(info.caches[i]), describe(expected[i]));
      }
      continue;
    }
    if (got_more && (!wants_more || key(info.caches[i]) < key(expected[i]))) {
      refuse(cache_name(info.caches[i]), describe(info.caches[i]), "none");
    }
    refuse(cache_name(expected[i]), "none", describe(expected[i]));
  }
}

/// Rows of block `b` of a cache that a snapshot of `tokens` tokens holds: [first, second) of the block.
std::pair<std::int64_t, std::int64_t> saved_rows(const KvLayout& layout, const SnapshotCache& c, std::int64_t tokens,
                                                 std::int64_t b) {
  const CacheGroup& group = layout.groups[static_cast<std::size_t>(layout.group_of(c.layer, c.role))];
  const std::int64_t row_tokens = c.block_tokens / c.block_size;
  const auto in_block = [&](std::int64_t row) {
    return std::clamp<std::int64_t>(row - b * c.block_size, 0, c.block_size);
  };
  return {in_block(group.first_read(tokens) / row_tokens), in_block(tokens / row_tokens)};
}

/// Calls each(cache, block, page) for the blocks behind a snapshot's head, as the pool stores them; `page` is
/// read-only.
/// @throws InvalidArgument naming a row that the pool's format cannot hold.
template <class Each>
void each_page(const SnapshotInfo& info, const KvPool& pool, snapshot_records::Reader blocks, const Each& each) {
  std::vector<std::uint8_t> converted;
  for (const SnapshotCache& c : info.caches) {
    const RowFormat& to = *pool.layout().find(c.layer, c.role)->format;
    for (std::int64_t b = c.first_block; b < c.first_block + c.blocks; ++b) {
      const auto page = blocks.take(static_cast<std::size_t>(block_bytes(*c.format, c.block_size)));
      if (*c.format == to) {
        each(c, b, page);
        continue;
      }
      converted.assign(page.begin(), page.end());
      const auto [first, end] = saved_rows(pool.layout(), c, info.tokens, b);
      const std::string problem = convert_rows(*c.format, to, c.block_size, first, end, converted);
      if (!problem.empty()) {
        throw InvalidArgument("snapshot: " + cache_name(c) + ": block " + std::to_string(b) + ", " + problem + " for " +
                              std::string(to.name) + " rows");
      }
      each(c, b, std::span<const std::uint8_t>(converted));
    }
  }
}

}  // namespace

namespace {

/// A snapshot has all rows of a request.
void check_whole(const KvLayout& layout) {
  if (layout.context_ranks > 1)
    refuse("caches", "those of one of " + std::to_string(layout.context_ranks) + " context-parallel ranks",
           "whole ones");
}

}  // namespace

std::vector<std::uint8_t> save_snapshot(const KvPool& pool, const RequestBlocks& blocks, std::int64_t tokens,
                                        std::span<const std::uint8_t> note) {
  check_whole(pool.layout());
  if (tokens < 0 || tokens > snapshot_records::kMaxTokens)
    refuse("tokens", std::to_string(tokens), "0 to " + std::to_string(snapshot_records::kMaxTokens));
  const KvLayout& layout = pool.layout();
  if (blocks.num_groups() != static_cast<int>(layout.groups.size())) {
    refuse("blocks", std::to_string(blocks.num_groups()) + " groups",
           std::to_string(layout.groups.size()) + ", the pool's");
  }
  for (std::size_t g = 0; g < layout.groups.size(); ++g) {
    const auto table = blocks.table(static_cast<int>(g));
    const std::int64_t first = layout.groups[g].first_read(tokens) / layout.groups[g].block_tokens;
    for (std::int64_t c = first; c < layout.groups[g].live_columns(tokens).second; ++c) {
      const bool held = c < static_cast<std::int64_t>(table.size()) && table[static_cast<std::size_t>(c)] >= 0;
      if (!held)
        refuse("blocks of group " + layout.groups[g].name, "none in column " + std::to_string(c),
               "one, for " + std::to_string(tokens) + " tokens");
    }
  }
  const std::vector<SnapshotCache> caches = live_caches(pool, tokens);
  snapshot_records::Writer w = snapshot_records::begin(tokens, layout.num_layers, caches, note);
  std::vector<std::uint8_t> page;
  for (const SnapshotCache& c : caches) {
    const PagedCache cache = pool.cache(c.layer, c.role);
    const int group = layout.group_of(c.layer, c.role);
    const auto table = blocks.table(group);
    page.resize(static_cast<std::size_t>(block_bytes(*c.format, c.block_size)));
    for (std::int64_t b = c.first_block; b < c.first_block + c.blocks; ++b) {
      const auto [first, end] = saved_rows(layout, c, tokens, b);
      copy_block(pool, cache, table[static_cast<std::size_t>(b)], first, end, page);
      w.append(page.data(), page.size());
    }
  }
  return w.finish();
}

SnapshotInfo inspect_snapshot(std::span<const std::uint8_t> bytes) {
  snapshot_records::Reader r(bytes);
  return snapshot_records::take_info(bytes, r);
}

SnapshotInfo load_snapshot(std::span<const std::uint8_t> bytes, KvPool& pool, RequestBlocks& blocks) {
  snapshot_records::Reader r(bytes);
  SnapshotInfo info = snapshot_records::take_info(bytes, r);
  check_layout(info, pool);
  const KvLayout& layout = pool.layout();
  check_whole(layout);
  if (blocks.num_groups() != static_cast<int>(layout.groups.size()) || !blocks.empty()) {
    refuse("blocks", blocks.empty() ? std::to_string(blocks.num_groups()) + " groups" : "a request that holds some",
           "an empty table for each of the pool's " + std::to_string(layout.groups.size()) + " groups");
  }
  const bool same = std::ranges::all_of(
      info.caches, [&](const SnapshotCache& c) { return *c.format == *layout.find(c.layer, c.role)->format; });
  if (!same) each_page(info, pool, r, [](const SnapshotCache&, std::int64_t, auto) {});  // before anything is taken
  std::int64_t needed = 0;
  for (const CacheGroup& group : layout.groups)
    needed += group.live_columns(info.tokens).second - group.live_columns(info.tokens).first;
  if (needed > pool.free_blocks() || !blocks.reserve_live(pool, info.tokens)) {
    refuse("pool", std::to_string(pool.free_blocks()) + " free blocks", "at least " + std::to_string(needed));
  }
  each_page(info, pool, r, [&](const SnapshotCache& c, std::int64_t b, std::span<const std::uint8_t> page) {
    const std::int32_t block = blocks.table(layout.group_of(c.layer, c.role))[static_cast<std::size_t>(b)];
    copy_bytes(pool.device(), pool.cache(c.layer, c.role).block(block), page.data(), page.size(), pool.stream());
  });
  return info;
}

}  // namespace smla
