#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "sparsemla/block_pool.h"
#include "sparsemla/export.h"
#include "sparsemla/kv_layout.h"
#include "sparsemla/kv_pool.h"
#include "sparsemla/prefix_keys.h"

namespace SMLA_API smla {

/// What of a request's prefix is kept (docs/prefix-caching.md).
struct PrefixCacheOptions {
  /// A tail is kept at each multiple of so many tokens: a multiple of the cache's unit. A request that shares n tokens
  /// with an earlier one goes on from the last tail within them.
  std::int64_t retention_interval = 512;
  /// Also at the end of a prompt, rounded down to the unit.
  bool keep_prompt_end = true;
  /// Bits of a hash that are used, 0 to 64: few make different prefixes meet, which costs time and nothing else.
  int hash_bits = 64;
};

/// Counts of a prefix cache.
struct PrefixCacheStats {
  std::int64_t lookups = 0;     ///< calls of adopt
  std::int64_t hits = 0;        ///< of them, those that found a prefix
  std::int64_t hit_tokens = 0;  ///< of the prefixes that were found
  std::int64_t kept_tails = 0;  ///< since the start
  std::int64_t evicted_tails = 0;
  std::int64_t collisions = 0;  ///< blocks of the same hash whose words or whose past differed
  std::int64_t tails = 0;       ///< that are there
  std::int64_t entries = 0;     ///< blocks of `unit` tokens that are there
  std::int64_t blocks = 0;      ///< of the pool that the cache owns, alone or with requests
};

/// Finds the blocks of prefixes that were computed before and lends them to requests.
///
/// A prefix of n tokens, n a multiple of the unit, needs its blocks of the groups that keep everything and a *tail*:
/// the blocks of the sliding groups that positions from n on read (CacheGroup::first_read). Blocks of tokens form a
/// tree; an entry is one of them behind its past. An entry is there as long as a tail at or below it is. The cache is
/// one owner of each block that it keeps, every request that uses a block another.
///
/// Tails are evicted, the one that was used longest ago first, and with them the entries that no other tail needs. One
/// of which a request holds a block goes only when there is no other; the blocks that requests hold stay theirs.
///
/// It has no memory but its own and touches no row, so it serves caches on any device. Not thread-safe.
class PrefixCache {
 public:
  /// Over the blocks of `pool`, which must outlive it.
  /// @throws InvalidArgument for an interval that is no multiple of the unit, or bits outside of 0 to 64.
  PrefixCache(KvLayout layout, BlockPool& pool, const PrefixCacheOptions& options = {});
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  /// Tokens of a block of keys: the least number that all groups' blocks and their reads divide (256; 64 for layers
  /// that have windows alone).
  static std::int64_t unit_of(const KvLayout& layout);
  std::int64_t unit() const { return unit_; }
  const PrefixCacheOptions& options() const { return options_; }

  /// Whether a tail is kept at a position of a request with such a prompt.
  bool keeps(std::int64_t position, std::int64_t prompt_tokens) const {
    return position > 0 && position % unit_ == 0 &&
           (position % options_.retention_interval == 0 ||
            (options_.keep_prompt_end && position == prompt_tokens / unit_ * unit_));
  }

  /// Tokens of the longest prefix of at most `max_tokens` tokens that is there; 0: none. Changes nothing but the count
  /// of collisions.
  std::int64_t find(const PrefixKeys& keys, std::int64_t max_tokens);
  /// Puts the blocks of that prefix into a request that holds none, with one owner more each, and makes its tail the
  /// last used. `marks`, when given, gets the prefix's marks. @return its tokens.
  /// @throws InvalidArgument for a request that holds blocks.
  std::int64_t adopt(const PrefixKeys& keys, std::int64_t max_tokens, RequestBlocks& blocks,
                     std::vector<std::uint64_t>* marks = nullptr);
  /// Takes the last adopt out of the counts: for a host that gave the blocks back at once, because the request lacked
  /// others, and will look it up again. The tail stays the last used.
  void forget_lookup();
  /// Keeps what the rule wants of positions [begin, end), whose rows are queued or written, before the request slides
  /// past them (RequestBlocks::slide).
  /// @param keys  of the request; with the blocks up to the last multiple of the unit
  /// @param blocks  of the request
  /// @param begin  the first position
  /// @param end  the position behind the last one
  /// @param prompt_tokens  length of the request's prompt
  /// @param marks  a number of the host's own for each position from 0 on, such as a digest; or none
  /// @throws InvalidArgument for too few keys or a request that lacks a block that keeps everything; then nothing of
  /// that position is kept.
  void keep(PrefixKeys& keys, const RequestBlocks& blocks, std::int64_t begin, std::int64_t end,
            std::int64_t prompt_tokens, std::span<const std::uint64_t> marks = {});
  /// Evicts until the pool has so many free blocks or nothing more can be had. @return whether it has. Evicts nothing
  /// when idle blocks are too few (BlockPool::idle_blocks).
  bool make_room(std::int64_t free_blocks);
  /// Gives everything up.
  void clear();

  PrefixCacheStats stats() const;

 private:
  struct Entry {
    std::uint64_t serial = 0;  ///< no other entry ever has it; 0: not in use
    std::uint64_t hash = 0;
    std::int32_t parent = -1;
    std::int32_t same_hash = -1;  ///< the next entry of that hash
    std::int32_t children = 0;
    std::int32_t older = -1;  ///< tail used before this one
    std::int32_t newer = -1;
    std::int64_t block = 0;  ///< place in the request, from 0
    std::vector<std::uint64_t> words{};
    std::vector<std::uint64_t> marks{};
    std::vector<std::int32_t> full{};  ///< blocks of the groups that keep everything, group by group
    std::vector<std::int32_t> tail{};  ///< blocks of the sliding groups, group by group; none: no tail
  };
  Entry& at(std::int32_t entry) { return entries_[static_cast<std::size_t>(entry)]; }
  std::int32_t child(std::int32_t parent, const PrefixKeys& keys, std::int64_t block);
  std::int32_t deepest(const PrefixKeys& keys, std::int64_t max_tokens);
  std::int32_t insert(std::int32_t parent, const PrefixKeys& keys, std::int64_t block, const RequestBlocks& blocks,
                      std::span<const std::uint64_t> marks);
  void check_full(const RequestBlocks& blocks, std::int64_t begin, std::int64_t last) const;
  bool held_columns(const RequestBlocks& blocks, std::int64_t position, std::vector<std::int32_t>& tail) const;
  void keep_tail(std::int32_t entry, std::vector<std::int32_t> tail);
  template <class Each>
  void each_block(const Entry& entry, bool tail, const Each& each) const;
  void touch(std::int32_t entry);
  void unlink(std::int32_t entry);
  void drop_tail(std::int32_t entry);
  void erase(std::int32_t entry);
  bool evict_one();

  KvLayout layout_;
  BlockPool& pool_;
  PrefixCacheOptions options_;
  std::int64_t unit_;
  std::uint64_t mask_;
  std::vector<Entry> entries_;
  std::vector<std::int32_t> unused_;
  std::unordered_map<std::uint64_t, std::int32_t> first_;  ///< by hash
  std::int32_t oldest_ = -1;
  std::int32_t newest_ = -1;
  PrefixCacheStats stats_;
  PrefixCacheStats before_lookup_;
};

}  // namespace smla
