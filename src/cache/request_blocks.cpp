#include <algorithm>

#include "sparsemla/error.h"
#include "sparsemla/kv_pool.h"

namespace smla {

bool RequestBlocks::reserve(KvPool& pool, std::int64_t begin, std::int64_t end, std::vector<GroupBlock>* fresh) {
  std::vector<std::pair<std::int64_t, std::int64_t>> columns;
  for (const CacheGroup& group : pool.layout().groups) {
    columns.emplace_back(begin / group.block_tokens, (end + group.block_tokens - 1) / group.block_tokens);
  }
  return take(pool, columns, fresh);
}

std::int64_t RequestBlocks::missing(const KvLayout& layout, std::int64_t begin, std::int64_t end) const {
  std::int64_t count = 0;
  for (std::size_t g = 0; g < tables_.size(); ++g) {
    const std::vector<std::int32_t>& table = tables_[g];
    const std::int64_t tokens = layout.groups[g].block_tokens;
    for (std::int64_t c = begin / tokens; c < (end + tokens - 1) / tokens; ++c) {
      const auto column = static_cast<std::size_t>(c);
      if (column >= table.size() || table[column] < 0) ++count;
    }
  }
  return count;
}

void RequestBlocks::adopt(BlockPool& pool, int group, std::int64_t column, std::span<const std::int32_t> blocks) {
  std::vector<std::int32_t>& table = tables_[static_cast<std::size_t>(group)];
  const auto first = static_cast<std::size_t>(column);
  for (std::size_t c = first; c < std::min(first + blocks.size(), table.size()); ++c) {
    if (table[c] >= 0) {
      throw InvalidArgument("request blocks: column " + std::to_string(c) + ": got block " + std::to_string(table[c]) +
                            " in it, expected an empty one");
    }
  }
  if (table.size() < first + blocks.size()) table.resize(first + blocks.size(), -1);
  std::size_t shared = 0;
  try {
    for (; shared < blocks.size(); ++shared) pool.share(group, blocks[shared]);
  } catch (const InvalidArgument&) {
    while (shared > 0) pool.release(group, blocks[--shared]);
    throw;
  }
  std::ranges::copy(blocks, table.begin() + column);
  ++changes_;
}

bool RequestBlocks::reserve_live(KvPool& pool, std::int64_t tokens) {
  std::vector<std::pair<std::int64_t, std::int64_t>> columns;
  for (const CacheGroup& group : pool.layout().groups) columns.push_back(group.live_columns(tokens));
  return take(pool, columns, nullptr);
}

bool RequestBlocks::take(KvPool& pool, std::span<const std::pair<std::int64_t, std::int64_t>> columns,
                         std::vector<GroupBlock>* fresh) {
  // Memory first: nothing may throw once a block is taken.
  struct Taken {
    int group;
    std::size_t column;
  };
  std::vector<Taken> taken;
  std::vector<GroupBlock> own;
  std::vector<GroupBlock>& blocks = fresh == nullptr ? own : *fresh;
  const std::size_t before = blocks.size();
  std::int64_t most = 0;
  for (std::size_t g = 0; g < columns.size(); ++g) {
    const auto end = static_cast<std::size_t>(columns[g].second);
    if (tables_[g].size() < end) tables_[g].resize(end, -1);
    most += std::max<std::int64_t>(columns[g].second - columns[g].first, 0);
  }
  taken.reserve(static_cast<std::size_t>(most));
  blocks.reserve(before + static_cast<std::size_t>(most));
  for (std::size_t g = 0; g < columns.size(); ++g) {
    const int group = static_cast<int>(g);
    std::vector<std::int32_t>& table = tables_[g];
    const auto end = static_cast<std::size_t>(columns[g].second);
    for (auto c = static_cast<std::size_t>(columns[g].first); c < end; ++c) {
      if (table[c] >= 0) continue;
      const std::optional<std::int32_t> block = pool.blocks().allocate(group);
      if (!block) {
        for (const Taken& t : taken) {
          std::int32_t& entry = tables_[static_cast<std::size_t>(t.group)][t.column];
          pool.release(t.group, entry);
          entry = -1;
        }
        blocks.resize(before);
        return false;
      }
      table[c] = *block;
      taken.push_back({.group = group, .column = c});
      blocks.push_back({.block = *block, .group = group});
    }
  }
  if (fresh == nullptr) pool.zero(own);
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
  ++changes_;
}

bool RequestBlocks::empty() const {
  return std::ranges::all_of(tables_, [](const auto& table) {
    return std::ranges::all_of(table, [](std::int32_t block) { return block < 0; });
  });
}

}  // namespace smla
