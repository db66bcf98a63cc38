#include "sparsemla/kv_layout.h"

#include <algorithm>
#include <array>

#include "sparsemla/error.h"

namespace smla {

namespace {

// Source tokens a block covers and tokens kept, per set of caches (spec 3 and 5.4).
constexpr std::int64_t kFullBlockTokens = 256;
constexpr std::int64_t kWindowBlockTokens = 64;
constexpr std::int64_t kStateC4BlockTokens = 4;
constexpr std::int64_t kStateC128BlockTokens = 8;

struct Set {
  const char* name;
  std::int64_t block_tokens;
  std::int64_t window;
  std::int64_t read_every;
  bool draft_blocks;
  std::vector<LayerCache> caches;
};

std::int64_t round_up(std::int64_t value, std::int64_t step) { return (value + step - 1) / step * step; }

std::int64_t pages(std::span<const LayerCache> caches) {
  std::int64_t sum = 0;
  for (const LayerCache& c : caches) sum += c.page_bytes;
  return sum;
}

CacheGroup make_group(const std::string& name, const Set& set, std::span<const LayerCache> caches) {
  CacheGroup group{.name = name,
                   .block_tokens = set.block_tokens,
                   .window = set.window,
                   .read_every = set.read_every,
                   .draft_blocks = set.draft_blocks,
                   .caches = {caches.begin(), caches.end()},
                   .page_bytes = 0};
  for (LayerCache& c : group.caches) {
    c.offset_bytes = group.page_bytes;
    group.page_bytes += c.page_bytes;
  }
  return group;
}

}  // namespace

std::string name_of(CacheRole role) {
  constexpr std::array<const char*, kNumCacheRoles> kNames{"window", "compressed", "index", "state", "index_state"};
  return kNames[static_cast<std::size_t>(role)];
}

const LayerCache* KvLayout::find(std::int64_t layer, CacheRole role) const {
  for (const CacheGroup& group : groups) {
    for (const LayerCache& c : group.caches) {
      if (c.layer == layer && c.role == role) return &c;
    }
  }
  return nullptr;
}

int KvLayout::group_of(std::int64_t layer, CacheRole role) const {
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (const LayerCache& c : groups[g].caches) {
      if (c.layer == layer && c.role == role) return static_cast<int>(g);
    }
  }
  return -1;
}

EntryShare entry_share(const CacheOptions& options, int ratio) {
  return {.rank = options.context_rank, .ranks = options.context_ranks, .interleave = kFullBlockTokens / ratio};
}

EntryShare KvLayout::share(int ratio) const {
  return entry_share({.context_rank = context_rank, .context_ranks = context_ranks}, ratio);
}

KvLayout make_kv_layout(std::span<const LayerConfig> layers, const CacheOptions& options) {
  check_entry_share(entry_share(options, 1));
  if (layers.empty()) throw InvalidArgument("kv layout: layers: got none, expected at least 1");
  const std::int64_t alignment = options.rows->page_alignment;
  const std::int64_t window = layers.front().window;

  Set full{"full", kFullBlockTokens * options.context_ranks, 0, 1, false, {}};
  Set rows{"window", kWindowBlockTokens, window, 1, options.draft_blocks, {}};
  Set state_c4{"state_c4", kStateC4BlockTokens, 8, 4, false, {}};
  Set state_c128{"state_c128", kStateC128BlockTokens, 128, 128, false, {}};
  const auto add = [&](Set& set, std::int64_t layer, CacheRole role, const RowFormat& format, std::int64_t block_size) {
    set.caches.push_back({.layer = layer,
                          .role = role,
                          .format = &format,
                          .block_size = block_size,
                          .page_bytes = round_up(block_bytes(format, block_size), alignment),
                          .offset_bytes = 0});
  };
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const LayerConfig& config = layers[i];
    const auto layer = static_cast<std::int64_t>(i);
    if (config.window != window) {
      throw InvalidArgument("kv layout: window of layer " + std::to_string(i) + ": got " +
                            std::to_string(config.window) + ", expected " + std::to_string(window) + " as in layer 0");
    }
    add(rows, layer, CacheRole::kWindow, *options.rows, kWindowBlockTokens);
    const LayerRoles roles = config.roles();
    if (!roles.owns_entries) continue;
    const std::int64_t entries = kFullBlockTokens / config.compress_ratio;
    add(full, layer, CacheRole::kCompressed, *options.rows, entries);
    if (config.has_indexer()) {
      if (roles.owns_index_keys) add(full, layer, CacheRole::kIndex, *options.index, entries);
      add(state_c4, layer, CacheRole::kState, state_rows(config.head_dim, 2), kStateC4BlockTokens);
      if (roles.owns_index_keys)
        add(state_c4, layer, CacheRole::kIndexState, state_rows(config.index_head_dim, 2), kStateC4BlockTokens);
    } else {
      add(state_c128, layer, CacheRole::kState, state_rows(config.head_dim, 1), kStateC128BlockTokens);
    }
  }

  KvLayout layout{.groups = {},
                  .block_stride_bytes = 0,
                  .num_layers = static_cast<std::int64_t>(layers.size()),
                  .kv_scale = options.kv_scale,
                  .context_rank = options.context_rank,
                  .context_ranks = options.context_ranks};
  if (!full.caches.empty()) layout.groups.push_back(make_group(full.name, full, full.caches));
  const std::int64_t target = pages(full.caches);
  for (const Set* set : {&rows, &state_c4, &state_c128}) {
    if (set->caches.empty()) continue;
    const auto count = static_cast<std::int64_t>(set->caches.size());
    const std::int64_t parts = target == 0 ? 1 : std::clamp<std::int64_t>(pages(set->caches) / target, 1, count);
    for (std::int64_t p = 0; p < parts; ++p) {
      const std::int64_t begin = count * p / parts;
      const std::int64_t end = count * (p + 1) / parts;
      const std::string name = parts == 1 ? set->name : set->name + ("/" + std::to_string(p));
      layout.groups.push_back(make_group(
          name, *set,
          std::span(set->caches).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin))));
    }
  }
  for (const CacheGroup& group : layout.groups)
    layout.block_stride_bytes = std::max(layout.block_stride_bytes, group.page_bytes);
  return layout;
}

std::int64_t max_blocks(const CacheGroup& group, std::int64_t tokens, std::int64_t chunk) {
  const auto blocks = [&](std::int64_t n) { return (n + group.block_tokens - 1) / group.block_tokens; };
  if (!group.sliding()) return blocks(tokens);
  // The window before the chunk and the chunk, whatever their offset in a block.
  const std::int64_t held = std::min(group.kept() - 1 + chunk, tokens);
  return std::min(blocks(tokens), blocks(held) + 1);
}

}  // namespace smla
