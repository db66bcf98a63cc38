#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sparsemla/entry_share.h"
#include "sparsemla/export.h"
#include "sparsemla/kv_format.h"
#include "sparsemla/model_config.h"

namespace SMLA_API smla {

/// The caches that a layer may have, by what they hold (spec 5.4).
enum class CacheRole : std::uint8_t { kWindow, kCompressed, kIndex, kState, kIndexState };
inline constexpr int kNumCacheRoles = 5;
/// Every role, in order.
inline constexpr std::array<CacheRole, kNumCacheRoles> kCacheRoles{
    CacheRole::kWindow, CacheRole::kCompressed, CacheRole::kIndex, CacheRole::kState, CacheRole::kIndexState};
/// The name of a role: "window", "compressed", "index", "state" or "index_state".
std::string name_of(CacheRole role);

/// Formats and scales of a model's caches.
struct CacheOptions {
  const RowFormat* rows = &fp8_ds_mla_rows();  ///< window and compressed rows
  const RowFormat* index = &index_fp8_rows();  ///< index rows
  float kv_scale = 1.0F;                       ///< kPerTensor rows: number = e4m3 * kv_scale
  /// DSpark draft blocks read windows (spec 6.3): they see `window` tokens before their first, one more than a token
  /// sees before itself, and windows keep it.
  bool draft_blocks = false;
  int context_rank = 0;   ///< of context_ranks
  int context_ranks = 1;  ///< ranks to which blocks of compressed and index rows are dealt out in turn
};

/// The entries of `ratio` tokens that caches with these options hold: runs of one block of 256 tokens.
EntryShare entry_share(const CacheOptions& options, int ratio);

/// One cache of one layer inside its group's blocks.
struct LayerCache {
  std::int64_t layer = 0;               ///< position in the list of layers the layout was made for
  CacheRole role = CacheRole::kWindow;  ///< which of the layer's caches it is
  const RowFormat* format = nullptr;    ///< how rows are stored
  std::int64_t block_size = 0;          ///< rows in a block
  std::int64_t page_bytes = 0;          ///< bytes a block takes for this cache, padding included
  std::int64_t offset_bytes = 0;        ///< offset of the cache's page from the block's start
};

/// Caches that share one block table per request.
struct CacheGroup {
  std::string name;               ///< "full", "window", "state_c4", "state_c128", with "/i" where a set is split
  std::int64_t block_tokens = 0;  ///< source tokens a block covers
  std::int64_t window = 0;        ///< tokens that a query sees, itself included; 0: all of them
  /// Positions p with (p + 1) % read_every == 0 read the rows of the last `window` tokens, others read none: 1 for
  /// windows, the compression ratio for states.
  std::int64_t read_every = 1;
  bool draft_blocks = false;                   ///< windows: DSpark's draft blocks read them, too
  std::vector<LayerCache> caches;              ///< in order of their offsets
  std::int64_t page_bytes = 0;                 ///< sum over the group's caches
  bool sliding() const { return window > 0; }  ///< whether old blocks are given back
  /// Tokens that must be kept, that of the next query included; 0: all of them.
  std::int64_t kept() const { return sliding() && draft_blocks ? window + 1 : window; }
  /// The first position whose rows a query at `next_position` or later can still need.
  std::int64_t first_kept(std::int64_t next_position) const {
    return sliding() && next_position >= kept() ? next_position - kept() + 1 : 0;
  }
  /// The first position whose rows a query at `next_position` or later does read: first_kept of the first one that
  /// reads. From a multiple of 128 on, a C128A state needs nothing that was before.
  std::int64_t first_read(std::int64_t next_position) const {
    return first_kept((next_position / read_every + 1) * read_every - 1);
  }
  /// Table columns [first, second) that a request of `tokens` computed positions needs to go on.
  std::pair<std::int64_t, std::int64_t> live_columns(std::int64_t tokens) const {
    return {first_kept(tokens) / block_tokens, (tokens + block_tokens - 1) / block_tokens};
  }
};

/// How the caches of a list of layers share one slab of blocks (spec 5.4).
///
/// Group "full" (first, when there is one) holds every compressed and index cache, 256 tokens a block; a block of one
/// of N context-parallel ranks stands for 256 * N tokens, of whose entries it has the rank's. Sliding caches are
/// grouped by (block tokens, window): (64, 128), (4, 8), (8, 128); a set whose pages add up to more than the full
/// group's is split over its layers into sub-groups of about that size. A block belongs to one group at a time;
/// block_stride is the largest group's page sum.
struct KvLayout {
  std::vector<CacheGroup> groups;       ///< "full" first when there is one
  std::int64_t block_stride_bytes = 0;  ///< from one block to the next
  std::int64_t num_layers = 0;          ///< how many layers share it
  float kv_scale = 1.0F;                ///< kPerTensor rows: number = e4m3 * kv_scale
  int context_rank = 0;                 ///< CacheOptions::context_rank
  int context_ranks = 1;                ///< CacheOptions::context_ranks

  /// The entries of `ratio` tokens that the caches hold.
  EntryShare share(int ratio) const;
  /// Group and cache of a layer's role; nullptr / -1 when the layer has none.
  const LayerCache* find(std::int64_t layer, CacheRole role) const;
  int group_of(std::int64_t layer, CacheRole role) const;  ///< -1: none
};

/// The layout of the caches of a list of layers. @throws InvalidArgument for an empty list or a layer whose window is
/// not that of the window group.
KvLayout make_kv_layout(std::span<const LayerConfig> layers, const CacheOptions& options);

/// Blocks that a request of `tokens` tokens, fed in chunks of at most `chunk`, can hold at once in a group.
std::int64_t max_blocks(const CacheGroup& group, std::int64_t tokens, std::int64_t chunk);

}  // namespace smla
