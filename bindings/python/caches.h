#pragma once

// Pools of blocks and the blocks of a request, as Python holds them.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <string>

#include "device/memory.h"
#include "python/call.h"
#include "python/layer.h"
#include "sparsemla/kv_pool.h"

namespace smla::python {

/// A cache's role by its name. @throws InvalidArgument with the names there are.
inline CacheRole role_of(const std::string& name) {
  std::string known;
  for (const CacheRole role : kCacheRoles) {
    if (name_of(role) == name) return role;
    known += (known.empty() ? "" : ", ") + name_of(role);
  }
  throw InvalidArgument("role: got \"" + name + "\", expected one of " + known);
}

/// A pool and the place of its memory.
class Pool {
 public:
  Pool(const nb::list& layers, std::int64_t num_blocks, const Place& place, const CacheOptions& options, void* stream)
      : place_(place) {
    std::vector<LayerConfig> configs;
    for (const nb::handle layer : layers) {
      if (!nb::isinstance<nb::dict>(layer)) throw InvalidArgument("KvPool: layers: expected dicts of layers' numbers");
      configs.push_back(read_layer_config(nb::cast<nb::dict>(layer)));
      check_layer_config(configs.back());
    }
    const nb::gil_scoped_release released;
    const CurrentDevice current(place.kind, place.ordinal);
    pool_ = std::make_shared<KvPool>(make_kv_layout(configs, options), num_blocks, place.kind, Stream{stream});
  }

  KvPool& pool() const { return *pool_; }
  const std::shared_ptr<KvPool>& shared() const { return pool_; }
  const Place& place() const { return place_; }

  int group(int index) const {
    const auto groups = static_cast<int>(pool_->layout().groups.size());
    if (index < 0 || index >= groups)
      throw InvalidArgument("group: got " + std::to_string(index) + ", expected 0 to " + std::to_string(groups - 1));
    return index;
  }

  /// The layer's cache over memory that the pool keeps.
  Cache cache(std::int64_t layer, const std::string& role_name) const {
    const CacheRole role = role_of(role_name);
    const PagedCache view = pool_->cache(layer, role);
    const std::int64_t bytes =
        (view.num_blocks - 1) * view.block_stride_bytes + block_bytes(*view.format, view.block_size);
    const nb::capsule owner(new std::shared_ptr<KvPool>(pool_),
                            [](void* p) noexcept { delete static_cast<std::shared_ptr<KvPool>*>(p); });
    const auto size = static_cast<std::size_t>(bytes);
    const bool cpu = place_.kind == DeviceKind::kCpu;
    const nb::ndarray<nb::array_api> memory(view.base, 1, &size, owner, nullptr, nb::dtype<std::uint8_t>(),
                                            cpu ? nb::device::cpu::value : nb::device::cuda::value,
                                            cpu ? 0 : place_.ordinal);
    return {.tensor = nb::cast(memory),
            .format = std::string(view.format->name),
            .block_size = view.block_size,
            .block_stride_bytes = view.block_stride_bytes,
            .kv_scale = view.scale};
  }

 private:
  Place place_;
  std::shared_ptr<KvPool> pool_;
};

/// A request's blocks and the pool that they are of.
class Blocks {
 public:
  explicit Blocks(const Pool& pool) : pool_(pool), blocks_(pool.pool().layout()) {}
  ~Blocks() {
    try {
      const CurrentDevice current(pool_.place().kind, pool_.place().ordinal);
      blocks_.clear(pool_.pool());
    } catch (const std::exception&) {
      // Blocks of a pool whose GPU is gone have nobody to be given back to.
    }
  }
  Blocks(const Blocks&) = delete;
  Blocks& operator=(const Blocks&) = delete;

  template <class Body>
  auto with(const Body& body) {
    const nb::gil_scoped_release released;
    const CurrentDevice current(pool_.place().kind, pool_.place().ordinal);
    return body(pool_.pool(), blocks_);
  }
  const Pool& pool() const { return pool_; }
  const RequestBlocks& blocks() const { return blocks_; }

 private:
  Pool pool_;
  RequestBlocks blocks_;
};

/// @throws InvalidArgument unless 0 <= begin <= end.
inline void check_range(std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  if (begin < 0 || end < begin || end > kMost)
    throw InvalidArgument("RequestBlocks: positions: got " + std::to_string(begin) + " to " + std::to_string(end) +
                          ", expected 0 <= begin <= end");
}

}  // namespace smla::python
