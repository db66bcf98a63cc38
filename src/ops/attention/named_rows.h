#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ops/attention/attention_split.h"

namespace smla::attention {

/// The cache rows that the lists of a call name, each widened to fp16 once: prefill names a row many times. Everything
/// lies in the workspace. A scope's slots are bits of words from first_word[scope] on.
struct NamedRows {
  static constexpr std::size_t kRowBytes = 2 * AttentionTile::kDim;
  static constexpr std::uint32_t kScanWords = 1024;  ///< words that a block counts
  /// The workspace of a call. A pool of 16 million slots takes 6 MiB of it for its bits.
  static constexpr std::size_t kBytes = AttentionSplit::kScratchBytes;
  static constexpr std::int64_t kMostSlots = std::int64_t{1} << 24;

  std::uint32_t* total = nullptr;       ///< how many rows are named; they are widened where they fit
  std::uint32_t* bits = nullptr;        ///< [words] which slots are named
  std::uint32_t* unfit = nullptr;       ///< [words] of which fp16 cannot represent a number
  std::uint32_t* rank = nullptr;        ///< [words] how many are named before a word's
  std::uint32_t* block_rank = nullptr;  ///< [words / kScanWords, rounded up]
  std::uint32_t* slots = nullptr;       ///< [capacity] bit of the i-th
  std::uint16_t* rows = nullptr;        ///< [capacity, 512] times kHalfUnit, or the cache's codes
  std::uint32_t first_word[SparseAttention::kMaxScopes] = {0, 0};
  std::uint32_t words = 0;
  std::uint32_t capacity = 0;

  std::uint32_t blocks() const { return (words + kScanWords - 1) / kScanWords; }
  /// Bytes from `total` on that are zero before the lists are read.
  std::size_t cleared_bytes() const { return 16 + 8 * std::size_t{words}; }

  /// Divides a workspace. `slots`: of each scope's cache. Without capacity where they are too many.
  static NamedRows in(void* workspace, std::size_t bytes, const std::int64_t* slots, int scopes) {
    NamedRows n;
    std::int64_t words = 0;
    for (int s = 0; s < scopes; ++s) {
      if (slots[s] > kMostSlots) return n;
      n.first_word[s] = static_cast<std::uint32_t>(words);
      words += (slots[s] + 31) / 32;
    }
    n.words = static_cast<std::uint32_t>(words);
    const std::size_t fixed = 16 + 12 * std::size_t{n.words} + 4 * std::size_t{n.blocks()} + 16;
    if (workspace == nullptr || bytes < fixed) return n;
    n.capacity = static_cast<std::uint32_t>((bytes - fixed) / (kRowBytes + 4));
    auto* const rows = static_cast<std::uint8_t*>(workspace);
    n.rows = reinterpret_cast<std::uint16_t*>(rows);
    n.total = reinterpret_cast<std::uint32_t*>(rows + std::size_t{n.capacity} * kRowBytes);
    n.bits = n.total + 4;
    n.unfit = n.bits + n.words;
    n.rank = n.unfit + n.words;
    n.block_rank = n.rank + n.words;
    n.slots = n.block_rank + n.blocks();
    return n;
  }
};

}  // namespace smla::attention
