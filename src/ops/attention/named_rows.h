#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "ops/attention/attention_split.h"

namespace smla::attention {

/// The cache rows that the lists of a call name, each widened to fp16 once: prefill names a row many times. Everything
/// lies in the workspace. A hash table says where a slot's row is; a slot's key is its number among those of all
/// scopes, plus 1.
struct NamedRows {
  static constexpr std::size_t kRowBytes = 2 * AttentionTile::kDim;
  /// The workspace of a call, whatever the caches hold.
  static constexpr std::size_t kBytes = AttentionSplit::kScratchBytes;
  static constexpr std::uint32_t kUnfit = 1U << 31;  ///< in Place::row: fp16 cannot represent a number of the row
  /// Places that are looked at for a slot. Half of the table stays free, so that few slots need more than two looks.
  static constexpr std::uint32_t kLooks = 256;

  /// An entry of the table.
  struct Place {
    std::uint32_t key;  ///< 0: free
    std::uint32_t row;
  };

  std::uint32_t* total = nullptr;  ///< how many rows are named; they are widened where they fit
  Place* table = nullptr;          ///< [table_mask + 1]
  std::uint16_t* rows = nullptr;   ///< [capacity, 512] times kHalfUnit, or the cache's codes
  std::uint32_t first_slot[SparseAttention::kMaxScopes] = {0, 0};
  std::uint32_t table_mask = 0;  ///< a power of two less 1
  std::uint32_t capacity = 0;

  /// Bytes from `total` on that are zero before the lists are read.
  std::size_t cleared_bytes() const { return 16 + sizeof(Place) * (std::size_t{table_mask} + 1); }

  /// Where the search for a key begins, before the mask. Four slots in a row share 32 bytes of the table.
  static constexpr std::uint32_t first_look(std::uint32_t key) {
    return (((key >> 2) * 0x9E37'79B1U) >> 13) << 2 | key % 4;
  }
  /// From a look to the next.
  static constexpr std::uint32_t kStep = 4;

  /// Divides a workspace. `slots`: of each scope's cache. Without capacity where it is too small.
  static NamedRows in(void* workspace, std::size_t bytes, const std::int64_t* slots, int scopes) {
    NamedRows n;
    for (int s = 1; s < scopes; ++s) n.first_slot[s] = n.first_slot[s - 1] + static_cast<std::uint32_t>(slots[s - 1]);
    const std::size_t places = std::max(std::bit_ceil(2 * bytes / kRowBytes), std::size_t{64});
    const std::size_t fixed = 16 + sizeof(Place) * places;
    if (workspace == nullptr || bytes < fixed + kRowBytes) return n;
    n.table_mask = static_cast<std::uint32_t>(places - 1);
    n.capacity = static_cast<std::uint32_t>((bytes - fixed) / kRowBytes);
    auto* const rows = static_cast<std::uint8_t*>(workspace);
    n.rows = reinterpret_cast<std::uint16_t*>(rows);
    n.total = reinterpret_cast<std::uint32_t*>(rows + std::size_t{n.capacity} * kRowBytes);
    n.table = reinterpret_cast<Place*>(n.total + 4);
    return n;
  }
};

}  // namespace smla::attention
