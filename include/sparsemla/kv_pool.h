#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sparsemla/device.h"
#include "sparsemla/export.h"
#include "sparsemla/kv_format.h"
#include "sparsemla/model_config.h"
#include "sparsemla/tensor_view.h"

namespace smla {
class DeviceMemory;
}

namespace SMLA_API smla {

/// What a cache of a layer holds (spec 5.4).
enum class CacheRole : std::uint8_t { kWindow, kCompressed, kIndex, kState, kIndexState };
inline constexpr int kNumCacheRoles = 5;
/// Every role, in order.
inline constexpr std::array<CacheRole, kNumCacheRoles> kCacheRoles{
    CacheRole::kWindow, CacheRole::kCompressed, CacheRole::kIndex, CacheRole::kState, CacheRole::kIndexState};
/// "window", "compressed", "index", "state", "index_state".
std::string name_of(CacheRole role);

/// Formats and scales of a model's caches.
struct CacheOptions {
  const RowFormat* rows = &fp8_ds_mla_rows();  ///< window and compressed rows
  const RowFormat* index = &index_fp8_rows();  ///< index rows
  float kv_scale = 1.0F;                       ///< per-tensor rows
};

/// One cache of one layer inside its group's blocks.
struct LayerCache {
  std::int64_t layer = 0;               ///< position in the list of layers the layout was made for
  CacheRole role = CacheRole::kWindow;  ///< what it holds
  const RowFormat* format = nullptr;    ///< how rows are stored
  std::int64_t block_size = 0;          ///< rows in a block
  std::int64_t page_bytes = 0;          ///< bytes a block takes for this cache, padding included
  std::int64_t offset_bytes = 0;        ///< from the block's start
};

/// Caches that share one block table per request.
struct CacheGroup {
  std::string name;                ///< "full", "window", "state_c4", "state_c128", with "/i" where a set is split
  std::int64_t block_tokens = 0;   ///< source tokens a block covers
  std::int64_t window = 0;         ///< tokens that must be kept; 0: all of them
  std::vector<LayerCache> caches;  ///< in order of their offsets
  std::int64_t page_bytes = 0;     ///< sum over its caches
  bool sliding() const { return window > 0; }  ///< whether old blocks are given back
  /// The first position whose rows a query at `next_position` or later can still need.
  std::int64_t first_kept(std::int64_t next_position) const {
    return sliding() && next_position >= window ? next_position - window + 1 : 0;
  }
  /// Table columns [first, second) that a request of `tokens` computed positions needs to go on.
  std::pair<std::int64_t, std::int64_t> live_columns(std::int64_t tokens) const {
    return {first_kept(tokens) / block_tokens, (tokens + block_tokens - 1) / block_tokens};
  }
};

/// How the caches of a list of layers share one slab of blocks (spec 5.4).
///
/// Group "full" (first, when there is one) holds every compressed and index cache, 256 tokens a block. Sliding caches
/// are grouped by (block tokens, window): (64, 128), (4, 8), (8, 128); a set whose pages add up to more than the full
/// group's is split over its layers into sub-groups of about that size. A block belongs to one group at a time;
/// block_stride is the largest group's page sum.
struct KvLayout {
  std::vector<CacheGroup> groups;       ///< "full" first when there is one
  std::int64_t block_stride_bytes = 0;  ///< from one block to the next
  std::int64_t num_layers = 0;          ///< how many layers share it
  float kv_scale = 1.0F;                ///< of per-tensor rows

  /// Group and cache of a layer's role; nullptr / -1 when the layer has none.
  const LayerCache* find(std::int64_t layer, CacheRole role) const;
  int group_of(std::int64_t layer, CacheRole role) const;  ///< -1: none
};

/// @throws InvalidArgument for an empty list or a layer with another window than 128's group allows.
KvLayout make_kv_layout(std::span<const LayerConfig> layers, const CacheOptions& options);

/// Blocks that a request of `tokens` tokens, fed in chunks of at most `chunk`, can hold at once in a group.
std::int64_t max_blocks(const CacheGroup& group, std::int64_t tokens, std::int64_t chunk);

/// One slab of `num_blocks` blocks, its free list, and what each group holds.
class KvPool {
 public:
  /// In the memory of `device`; blocks are zeroed on `stream`, so that work queued there later finds them so.
  /// @throws InvalidArgument for a negative number of blocks; std::bad_alloc, CudaError; Unsupported for a GPU where
  /// there is none.
  KvPool(KvLayout layout, std::int64_t num_blocks, DeviceKind device = DeviceKind::kCpu, Stream stream = {});
  ~KvPool();
  KvPool(const KvPool&) = delete;
  KvPool& operator=(const KvPool&) = delete;

  const KvLayout& layout() const { return layout_; }                                    ///< as given
  DeviceKind device() const { return device_; }                                         ///< whose memory it is
  Stream stream() const { return stream_; }                                             ///< on which blocks are zeroed
  std::int64_t num_blocks() const { return num_blocks_; }                               ///< of the slab
  std::int64_t free_blocks() const { return static_cast<std::int64_t>(free_.size()); }  ///< blocks that nobody holds

  /// A block for `group`, its pages zeroed (only the bytes rows can use: neighbours are left alone); nothing when none
  /// is free.
  std::optional<std::int32_t> allocate(int group);
  /// Takes a block back. @throws InvalidArgument for a block that is not held by `group`.
  void release(int group, std::int32_t block);

  /// A layer's cache over the whole slab. @throws InvalidArgument when the layer has no such cache.
  PagedCache cache(std::int64_t layer, CacheRole role) const;
  /// Gives a layer's per-tensor rows a scale of their own in place of the layout's. @throws InvalidArgument when the
  /// layer has no such cache.
  void set_scale(std::int64_t layer, CacheRole role, float scale);

  std::int64_t held(int group) const { return held_[static_cast<std::size_t>(group)]; }  ///< blocks that a group holds
  std::int64_t peak(int group) const { return peak_[static_cast<std::size_t>(group)]; }  ///< the most it held

 private:
  KvLayout layout_;
  std::int64_t num_blocks_;
  DeviceKind device_;
  Stream stream_;
  std::unique_ptr<DeviceMemory> memory_;
  std::uint8_t* slab_;
  std::vector<std::int32_t> free_;
  std::vector<std::int32_t> owner_;  ///< group of each block, -1 free
  std::vector<std::int64_t> held_;
  std::vector<std::int64_t> peak_;
  std::map<std::pair<std::int64_t, CacheRole>, float> scales_;  ///< where they differ from the layout's
};

/// The blocks of one request: a table a group, -1 where a block was never needed or has slid out of the window.
class RequestBlocks {
 public:
  explicit RequestBlocks(const KvLayout& layout) : tables_(layout.groups.size()) {}  ///< holds no block yet

  /// Makes room for positions [begin, end) in every group. All or nothing: returns false, holding what it held, when
  /// the pool is too small.
  bool reserve(KvPool& pool, std::int64_t begin, std::int64_t end);
  /// Makes room for what a request of `tokens` computed positions needs to go on: its live columns in every group. All
  /// or nothing, as above.
  bool reserve_live(KvPool& pool, std::int64_t tokens);
  /// Gives back what no query at `next_position` or later can see.
  void slide(KvPool& pool, std::int64_t next_position);
  /// Gives everything back.
  void clear(KvPool& pool);

  /// Block numbers, -1 where there is none.
  std::span<const std::int32_t> table(int group) const { return tables_[static_cast<std::size_t>(group)]; }
  /// Groups it was made for.
  int num_groups() const { return static_cast<int>(tables_.size()); }
  /// Holds no block.
  bool empty() const;

 private:
  bool take(KvPool& pool, std::span<const std::pair<std::int64_t, std::int64_t>> columns);

  std::vector<std::vector<std::int32_t>> tables_;
};

}  // namespace smla
