// Pools of blocks, the blocks of requests, and prefix caches over them.
#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "c/descriptors.h"
#include "c/handles.h"
#include "c/status.h"
#include "sparsemla/kv_pool.h"
#include "sparsemla/prefix_cache.h"

struct smla_pool {
  std::shared_ptr<smla::KvPool> pool;
};

struct smla_request {
  explicit smla_request(std::shared_ptr<smla::KvPool> of) : pool(std::move(of)), blocks(pool->layout()) {}
  ~smla_request() { blocks.clear(*pool); }
  smla_request(const smla_request&) = delete;
  smla_request& operator=(const smla_request&) = delete;

  std::shared_ptr<smla::KvPool> pool;
  smla::RequestBlocks blocks;
  smla::PrefixKeys keys;
  std::vector<std::int32_t> rest;  ///< tokens behind the last whole block of keys
};

struct smla_prefix_cache {
  smla_prefix_cache(std::shared_ptr<smla::KvPool> of, const smla::PrefixCacheOptions& options)
      : pool(std::move(of)), cache(pool->layout(), pool->blocks(), options) {}

  std::shared_ptr<smla::KvPool> pool;  ///< outlives the cache
  smla::PrefixCache cache;
};

namespace {

using namespace smla;
using namespace smla::c;

std::shared_ptr<KvPool> make_pool(const smla_layer* const* layers, std::int64_t count, std::int64_t num_blocks,
                                  Stream stream) {
  constexpr const char* kName = "smla_pool_create";
  if (count < 1)
    throw InvalidArgument("smla_pool_create: count: got " + std::to_string(count) + ", expected 1 or more");
  need_pointer(static_cast<const void*>(layers), kName, "layers");
  std::vector<LayerConfig> configs;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::string name = "layers[" + std::to_string(i) + "]";
    need_pointer(layers[i], kName, name.c_str());
    const LayerOptions& first = layers[0]->layer().options();
    const LayerOptions& own = layers[i]->layer().options();
    const auto rows = [](const LayerOptions& o) {
      return std::string(o.caches.rows->name) + " and " + std::string(o.caches.index->name) + " rows on " +
             name_of(o.device);
    };
    if (rows(own) != rows(first))
      throw InvalidArgument("smla_pool_create: " + name + ": got " + rows(own) + ", expected " + rows(first) +
                            " as in layers[0]");
    configs.push_back(layers[i]->layer().config());
  }
  const LayerOptions& options = layers[0]->layer().options();
  CacheOptions caches = options.caches;
  caches.draft_blocks = std::any_of(
      layers, layers + count, [](const smla_layer* layer) { return layer->layer().options().caches.draft_blocks; });
  auto pool = std::make_shared<KvPool>(make_kv_layout(configs, caches), num_blocks, options.device, stream);
  for (std::int64_t i = 0; i < count; ++i) {
    for (const CacheRole role : {CacheRole::kWindow, CacheRole::kCompressed}) {
      if (pool->layout().find(i, role) != nullptr) pool->set_scale(i, role, layers[i]->placed->scale_of(role));
    }
  }
  return pool;
}

void check_range(const char* function, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kMost = std::int64_t{1} << 32;
  if (begin < 0 || end < begin || end > kMost) {
    throw InvalidArgument(std::string(function) + ": positions: got " + std::to_string(begin) + " to " +
                          std::to_string(end) + ", expected 0 <= begin <= end <= 2^32");
  }
}

/// A request of another pool would get blocks that are not its own.
void check_pair(const smla_prefix_cache* cache, const smla_request* request, const char* function) {
  need_pointer(cache, function, "cache");
  need_pointer(request, function, "request");
  if (cache->pool != request->pool)
    throw InvalidArgument(std::string(function) + ": request: got one of another pool, expected one of the cache's");
}

}  // namespace

extern "C" {

smla_status smla_pool_create(const smla_layer* const* layers, int64_t count, int64_t num_blocks, void* stream,
                             smla_pool** pool) {
  return guarded([&] {
    need_pointer(static_cast<const void*>(pool), "smla_pool_create", "pool");
    *pool = nullptr;
    auto made = std::make_unique<smla_pool>();
    made->pool = make_pool(layers, count, num_blocks, {.handle = stream});
    *pool = made.release();
  });
}

void smla_pool_destroy(smla_pool* pool) { delete pool; }

smla_status smla_pool_get_info(const smla_pool* pool, smla_pool_info* info) {
  return guarded([&] {
    need_pointer(pool, "smla_pool_get_info", "pool");
    const KvPool& p = *pool->pool;
    write_struct("smla_pool_info", info,
                 smla_pool_info{.struct_size = sizeof(smla_pool_info),
                                .num_blocks = p.num_blocks(),
                                .free_blocks = p.free_blocks(),
                                .idle_blocks = p.blocks().idle_blocks(),
                                .block_bytes = p.layout().block_stride_bytes,
                                .num_groups = static_cast<std::int32_t>(p.layout().groups.size()),
                                .reserved = 0});
  });
}

smla_status smla_pool_get_cache(const smla_pool* pool, int64_t layer, int32_t role, smla_cache* cache, int32_t* group) {
  return guarded([&] {
    need_pointer(pool, "smla_pool_get_cache", "pool");
    const KvLayout& layout = pool->pool->layout();
    if (layer < 0 || layer >= layout.num_layers || role < 0 || role >= SMLA_NUM_CACHES) {
      throw InvalidArgument("smla_pool_get_cache: got layer " + std::to_string(layer) + ", role " +
                            std::to_string(role) + ", expected a layer below " + std::to_string(layout.num_layers) +
                            " and one of SMLA_CACHE_*");
    }
    const PagedCache found = pool->pool->cache(layer, static_cast<CacheRole>(role));
    smla_cache out{};
    out.format = found.format->name.data();  // of a literal, so it ends with a zero
    out.base = found.base;
    out.num_blocks = found.num_blocks;
    out.block_size = found.block_size;
    out.block_stride_bytes = found.block_stride_bytes;
    out.kv_scale = found.format->scale == ScaleKind::kPerTensor ? found.scale : 0.0F;
    write_struct("smla_cache", cache, out);
    if (group != nullptr) *group = layout.group_of(layer, static_cast<CacheRole>(role));
  });
}

smla_status smla_request_create(smla_pool* pool, smla_request** request) {
  return guarded([&] {
    need_pointer(static_cast<const void*>(request), "smla_request_create", "request");
    *request = nullptr;
    need_pointer(pool, "smla_request_create", "pool");
    *request = std::make_unique<smla_request>(pool->pool).release();
  });
}

void smla_request_destroy(smla_request* request) { delete request; }

smla_status smla_request_reserve(smla_request* request, int64_t begin, int64_t end, int32_t* reserved) {
  return guarded([&] {
    need_pointer(request, "smla_request_reserve", "request");
    need_pointer(reserved, "smla_request_reserve", "reserved");
    check_range("smla_request_reserve", begin, end);
    *reserved = request->blocks.reserve(*request->pool, begin, end) ? 1 : 0;
  });
}

smla_status smla_request_missing(const smla_request* request, int64_t begin, int64_t end, int64_t* blocks) {
  return guarded([&] {
    need_pointer(request, "smla_request_missing", "request");
    need_pointer(blocks, "smla_request_missing", "blocks");
    check_range("smla_request_missing", begin, end);
    *blocks = request->blocks.missing(request->pool->layout(), begin, end);
  });
}

smla_status smla_request_slide(smla_request* request, int64_t next_position) {
  return guarded([&] {
    need_pointer(request, "smla_request_slide", "request");
    check_range("smla_request_slide", 0, next_position);
    request->blocks.slide(*request->pool, next_position);
  });
}

smla_status smla_request_clear(smla_request* request) {
  return guarded([&] {
    need_pointer(request, "smla_request_clear", "request");
    request->blocks.clear(*request->pool);
  });
}

smla_status smla_request_table(const smla_request* request, int32_t group, const int32_t** blocks, int64_t* count) {
  return guarded([&] {
    constexpr const char* kName = "smla_request_table";
    need_pointer(request, kName, "request");
    need_pointer(static_cast<const void*>(blocks), kName, "blocks");
    need_pointer(count, kName, "count");
    if (group < 0 || group >= request->blocks.num_groups()) {
      throw InvalidArgument(std::string(kName) + ": group: got " + std::to_string(group) + ", expected 0 to " +
                            std::to_string(request->blocks.num_groups() - 1));
    }
    const auto table = request->blocks.table(group);
    *blocks = table.data();
    *count = std::ssize(table);
  });
}

smla_status smla_request_append_tokens(smla_request* request, const int32_t* tokens, int64_t count) {
  return guarded([&] {
    constexpr const char* kName = "smla_request_append_tokens";
    need_pointer(request, kName, "request");
    if (count < 0)
      throw InvalidArgument(std::string(kName) + ": count: got " + std::to_string(count) + ", expected 0 or more");
    if (count == 0) return;
    need_pointer(tokens, kName, "tokens");
    request->rest.insert(request->rest.end(), tokens, tokens + count);
    const std::int64_t unit = PrefixCache::unit_of(request->pool->layout());
    const std::int64_t whole = request->keys.append_tokens(request->rest, unit);
    request->rest.erase(request->rest.begin(), request->rest.begin() + whole * unit);
  });
}

smla_status smla_prefix_cache_create(smla_pool* pool, const smla_prefix_cache_options* options,
                                     smla_prefix_cache** cache) {
  return guarded([&] {
    need_pointer(static_cast<const void*>(cache), "smla_prefix_cache_create", "cache");
    *cache = nullptr;
    need_pointer(pool, "smla_prefix_cache_create", "pool");
    PrefixCacheOptions read;
    if (options != nullptr) {
      const smla_prefix_cache_options given = read_struct("smla_prefix_cache_options", options);
      check_reserved("smla_prefix_cache_options", given.reserved);
      if (given.retention_interval != 0) read.retention_interval = given.retention_interval;
      read.keep_prompt_end = !read_flag("no_prompt_end", given.no_prompt_end);
    }
    *cache = std::make_unique<smla_prefix_cache>(pool->pool, read).release();
  });
}

void smla_prefix_cache_destroy(smla_prefix_cache* cache) { delete cache; }

smla_status smla_prefix_find(smla_prefix_cache* cache, const smla_request* request, int64_t max_tokens,
                             int64_t* tokens) {
  return guarded([&] {
    check_pair(cache, request, "smla_prefix_find");
    need_pointer(tokens, "smla_prefix_find", "tokens");
    *tokens = cache->cache.find(request->keys, max_tokens);
  });
}

smla_status smla_prefix_adopt(smla_prefix_cache* cache, smla_request* request, int64_t max_tokens, int64_t* tokens) {
  return guarded([&] {
    check_pair(cache, request, "smla_prefix_adopt");
    need_pointer(tokens, "smla_prefix_adopt", "tokens");
    *tokens = cache->cache.adopt(request->keys, max_tokens, request->blocks);
  });
}

smla_status smla_prefix_keep(smla_prefix_cache* cache, smla_request* request, int64_t begin, int64_t end,
                             int64_t prompt_tokens) {
  return guarded([&] {
    check_pair(cache, request, "smla_prefix_keep");
    check_range("smla_prefix_keep", begin, end);
    cache->cache.keep(request->keys, request->blocks, begin, end, prompt_tokens);
  });
}

smla_status smla_prefix_make_room(smla_prefix_cache* cache, int64_t free_blocks, int32_t* made) {
  return guarded([&] {
    need_pointer(cache, "smla_prefix_make_room", "cache");
    need_pointer(made, "smla_prefix_make_room", "made");
    *made = cache->cache.make_room(free_blocks) ? 1 : 0;
  });
}

smla_status smla_prefix_get_stats(const smla_prefix_cache* cache, smla_prefix_stats* stats) {
  return guarded([&] {
    need_pointer(cache, "smla_prefix_get_stats", "cache");
    const PrefixCacheStats s = cache->cache.stats();
    write_struct("smla_prefix_stats", stats,
                 smla_prefix_stats{.struct_size = sizeof(smla_prefix_stats),
                                   .unit = cache->cache.unit(),
                                   .lookups = s.lookups,
                                   .hits = s.hits,
                                   .hit_tokens = s.hit_tokens,
                                   .kept_tails = s.kept_tails,
                                   .evicted_tails = s.evicted_tails,
                                   .tails = s.tails,
                                   .blocks = s.blocks});
  });
}

}  // extern "C"
