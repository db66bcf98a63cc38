#include "sparsemla/prefix_cache.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <string>
#include <utility>

#include "sparsemla/error.h"

namespace smla {

namespace {

/// Columns [first, second) that the tail at `position` needs of a sliding group.
std::pair<std::int64_t, std::int64_t> tail_columns(const CacheGroup& group, std::int64_t position) {
  return {group.first_read(position) / group.block_tokens, position / group.block_tokens};
}

/// Serials are of the process, so that a request that moves from one cache to another is not taken for somebody else.
std::uint64_t next_serial() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace

std::int64_t PrefixCache::unit_of(const KvLayout& layout) {
  std::int64_t unit = 1;
  for (const CacheGroup& group : layout.groups) unit = std::lcm(unit, std::lcm(group.block_tokens, group.read_every));
  return unit;
}

PrefixCache::PrefixCache(KvLayout layout, BlockPool& pool, const PrefixCacheOptions& options)
    : layout_(std::move(layout)),
      pool_(pool),
      options_(options),
      unit_(unit_of(layout_)),
      mask_(options.hash_bits >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << std::max(options.hash_bits, 0)) - 1) {
  if (options.retention_interval < 1 || options.retention_interval % unit_ != 0) {
    throw InvalidArgument("prefix cache: retention_interval: got " + std::to_string(options.retention_interval) +
                          ", expected a multiple of " + std::to_string(unit_) + ", the unit of these layers' blocks");
  }
  if (options.hash_bits < 0 || options.hash_bits > 64) {
    throw InvalidArgument("prefix cache: hash_bits: got " + std::to_string(options.hash_bits) + ", expected 0 to 64");
  }
}

PrefixCache::~PrefixCache() { clear(); }

/// The entry of a request's block below `parent`; -1: there is none.
std::int32_t PrefixCache::child(std::int32_t parent, const PrefixKeys& keys, std::int64_t block) {
  const auto found = first_.find(keys.hash(block) & mask_);
  if (found == first_.end()) return -1;
  for (std::int32_t e = found->second; e >= 0; e = at(e).same_hash) {
    if (at(e).parent == parent && std::ranges::equal(at(e).words, keys.words(block))) return e;
    ++stats_.collisions;
  }
  return -1;
}

/// The last entry with a tail on the request's way, within `max_tokens`.
std::int32_t PrefixCache::deepest(const PrefixKeys& keys, std::int64_t max_tokens) {
  const std::int64_t blocks = std::min(keys.blocks(), max_tokens / unit_);
  std::int32_t best = -1;
  std::int32_t entry = -1;
  for (std::int64_t b = 0; b < blocks; ++b) {
    entry = child(entry, keys, b);
    if (entry < 0) break;
    if (!at(entry).tail.empty()) best = entry;
  }
  return best;
}

std::int64_t PrefixCache::find(const PrefixKeys& keys, std::int64_t max_tokens) {
  const std::int32_t entry = deepest(keys, max_tokens);
  return entry < 0 ? 0 : (at(entry).block + 1) * unit_;
}

std::int64_t PrefixCache::adopt(const PrefixKeys& keys, std::int64_t max_tokens, RequestBlocks& blocks,
                                std::vector<std::uint64_t>* marks) {
  if (!blocks.empty()) throw InvalidArgument("prefix cache: blocks: got a request that holds some, expected none");
  before_lookup_ = stats_;
  ++stats_.lookups;
  if (marks != nullptr) marks->clear();
  const std::int32_t last = deepest(keys, max_tokens);
  if (last < 0) return 0;
  const std::int64_t tokens = (at(last).block + 1) * unit_;
  std::vector<std::int32_t> path(static_cast<std::size_t>(at(last).block + 1));
  for (std::int32_t e = last; e >= 0; e = at(e).parent) path[static_cast<std::size_t>(at(e).block)] = e;

  std::size_t in_full = 0;
  std::size_t in_tail = 0;
  std::vector<std::int32_t> lent;
  for (std::size_t g = 0; g < layout_.groups.size(); ++g) {
    const CacheGroup& group = layout_.groups[g];
    lent.clear();
    std::int64_t column = 0;
    if (group.sliding()) {
      const auto [first, end] = tail_columns(group, tokens);
      const auto count = static_cast<std::size_t>(end - first);
      const auto tail = std::span<const std::int32_t>(at(last).tail).subspan(in_tail, count);
      lent.assign(tail.begin(), tail.end());
      in_tail += count;
      column = first;
    } else {
      const auto each = static_cast<std::size_t>(unit_ / group.block_tokens);
      for (const std::int32_t e : path) {
        const auto full = std::span<const std::int32_t>(at(e).full).subspan(in_full, each);
        lent.insert(lent.end(), full.begin(), full.end());
      }
      in_full += each;
    }
    blocks.adopt(pool_, static_cast<int>(g), column, lent);
  }
  if (marks != nullptr) {
    marks->reserve(static_cast<std::size_t>(tokens));
    for (const std::int32_t e : path) {
      marks->insert(marks->end(), at(e).marks.begin(), at(e).marks.end());
      marks->resize(static_cast<std::size_t>((at(e).block + 1) * unit_), 0);
    }
  }
  touch(last);
  ++stats_.hits;
  stats_.hit_tokens += tokens;
  return tokens;
}

void PrefixCache::forget_lookup() {
  stats_.lookups = before_lookup_.lookups;
  stats_.hits = before_lookup_.hits;
  stats_.hit_tokens = before_lookup_.hit_tokens;
  stats_.collisions = before_lookup_.collisions;
}

void PrefixCache::keep(PrefixKeys& keys, const RequestBlocks& blocks, std::int64_t begin, std::int64_t end,
                       std::int64_t prompt_tokens, std::span<const std::uint64_t> marks) {
  for (std::int64_t position = (begin / unit_ + 1) * unit_; position <= end; position += unit_) {
    if (!keeps(position, prompt_tokens)) continue;
    const std::int64_t last = position / unit_ - 1;
    if (last >= keys.blocks()) {
      throw InvalidArgument("prefix cache: keys: got " + std::to_string(keys.blocks()) + " blocks, expected " +
                            std::to_string(last + 1) + " for position " + std::to_string(position));
    }
    std::vector<std::int32_t> tail;
    if (!held_columns(blocks, position, tail)) continue;
    PrefixKeys::Place& place = keys.place_;
    const bool known = place.entry >= 0 && place.block <= last &&
                       place.entry < static_cast<std::int32_t>(entries_.size()) &&
                       at(place.entry).serial == place.serial;
    std::int32_t entry = known ? place.entry : -1;
    std::int64_t b = known ? place.block + 1 : 0;
    for (std::int32_t next = entry; b <= last; ++b) {
      next = child(entry, keys, b);
      if (next < 0) break;
      entry = next;
    }
    check_full(blocks, b, last);
    for (; b <= last; ++b) entry = insert(entry, keys, b, blocks, marks);
    place = {.entry = entry, .serial = at(entry).serial, .block = last};
    if (at(entry).tail.empty()) keep_tail(entry, std::move(tail));
    touch(entry);
  }
}

/// The blocks of the tail at `position`; false when the request lacks one.
bool PrefixCache::held_columns(const RequestBlocks& blocks, std::int64_t position,
                               std::vector<std::int32_t>& tail) const {
  for (std::size_t g = 0; g < layout_.groups.size(); ++g) {
    const CacheGroup& group = layout_.groups[g];
    if (!group.sliding()) continue;
    const auto table = blocks.table(static_cast<int>(g));
    const auto [first, end] = tail_columns(group, position);
    for (std::int64_t c = first; c < end; ++c) {
      if (c >= static_cast<std::int64_t>(table.size()) || table[static_cast<std::size_t>(c)] < 0) return false;
      tail.push_back(table[static_cast<std::size_t>(c)]);
    }
  }
  return !tail.empty();
}

/// Blocks [begin, last] of a request must be there in the groups that keep everything, before any of them is inserted.
void PrefixCache::check_full(const RequestBlocks& blocks, std::int64_t begin, std::int64_t last) const {
  for (std::size_t g = 0; g < layout_.groups.size(); ++g) {
    const CacheGroup& group = layout_.groups[g];
    if (group.sliding()) continue;
    const auto table = blocks.table(static_cast<int>(g));
    for (std::int64_t c = begin * unit_ / group.block_tokens; c < (last + 1) * unit_ / group.block_tokens; ++c) {
      if (c < std::ssize(table) && table[static_cast<std::size_t>(c)] >= 0) continue;
      throw InvalidArgument("prefix cache: blocks: got a request without column " + std::to_string(c) + " of group " +
                            group.name + ", expected all that are computed");
    }
  }
}

/// A new entry with the request's own blocks of the groups that keep everything.
std::int32_t PrefixCache::insert(std::int32_t parent, const PrefixKeys& keys, std::int64_t block,
                                 const RequestBlocks& blocks, std::span<const std::uint64_t> marks) {
  Entry made{.serial = next_serial(), .hash = keys.hash(block) & mask_, .parent = parent, .block = block};
  const auto words = keys.words(block);
  made.words.assign(words.begin(), words.end());
  const auto unit = static_cast<std::size_t>(unit_);
  const std::size_t first_mark = static_cast<std::size_t>(block) * unit;
  if (marks.size() >= first_mark + unit) {
    const auto own = marks.subspan(first_mark, unit);
    made.marks.assign(own.begin(), own.end());
  }
  for (std::size_t g = 0; g < layout_.groups.size(); ++g) {
    const CacheGroup& group = layout_.groups[g];
    if (group.sliding()) continue;
    const std::int64_t each = unit_ / group.block_tokens;
    const auto own = blocks.table(static_cast<int>(g))
                         .subspan(static_cast<std::size_t>(block * each), static_cast<std::size_t>(each));
    for (const std::int32_t b : own) pool_.keep(static_cast<int>(g), b);
    made.full.insert(made.full.end(), own.begin(), own.end());
  }
  stats_.blocks += static_cast<std::int64_t>(made.full.size());

  std::int32_t entry = static_cast<std::int32_t>(entries_.size());
  if (unused_.empty()) {
    entries_.emplace_back();
  } else {
    entry = unused_.back();
    unused_.pop_back();
  }
  const auto [first, fresh] = first_.try_emplace(made.hash, entry);
  if (!fresh) made.same_hash = std::exchange(first->second, entry);
  at(entry) = std::move(made);
  if (parent >= 0) ++at(parent).children;
  ++stats_.entries;
  return entry;
}

/// Calls each(group, block) for an entry's blocks of one kind.
template <class Each>
void PrefixCache::each_block(const Entry& entry, bool tail, const Each& each) const {
  std::size_t next = 0;
  for (std::size_t g = 0; g < layout_.groups.size(); ++g) {
    const CacheGroup& group = layout_.groups[g];
    if (group.sliding() != tail) continue;
    const auto [first, end] = tail ? tail_columns(group, (entry.block + 1) * unit_)
                                   : std::pair<std::int64_t, std::int64_t>(0, unit_ / group.block_tokens);
    for (std::int64_t c = first; c < end; ++c) each(static_cast<int>(g), (tail ? entry.tail : entry.full)[next++]);
  }
}

void PrefixCache::keep_tail(std::int32_t entry, std::vector<std::int32_t> tail) {
  at(entry).tail = std::move(tail);
  each_block(at(entry), true, [&](int group, std::int32_t block) { pool_.keep(group, block); });
  stats_.blocks += static_cast<std::int64_t>(at(entry).tail.size());
  ++stats_.tails;
  ++stats_.kept_tails;
}

/// Takes a tail out of the order of use.
void PrefixCache::unlink(std::int32_t entry) {
  Entry& e = at(entry);
  if (e.older >= 0) at(e.older).newer = e.newer;
  if (e.newer >= 0) at(e.newer).older = e.older;
  if (oldest_ == entry) oldest_ = e.newer;
  if (newest_ == entry) newest_ = e.older;
  e.older = e.newer = -1;
}

/// Makes a tail the last used.
void PrefixCache::touch(std::int32_t entry) {
  if (newest_ == entry) return;
  unlink(entry);
  at(entry).older = newest_;
  if (newest_ >= 0) at(newest_).newer = entry;
  newest_ = entry;
  if (oldest_ < 0) oldest_ = entry;
}

/// Gives up a tail and the entries above it that nothing else needs.
void PrefixCache::drop_tail(std::int32_t entry) {
  unlink(entry);
  each_block(at(entry), true, [&](int group, std::int32_t block) { pool_.let_go(group, block); });
  stats_.blocks -= static_cast<std::int64_t>(at(entry).tail.size());
  at(entry).tail.clear();
  --stats_.tails;
  while (entry >= 0 && at(entry).children == 0 && at(entry).tail.empty()) {
    const std::int32_t parent = at(entry).parent;
    erase(entry);
    if (parent >= 0) --at(parent).children;
    entry = parent;
  }
}

void PrefixCache::erase(std::int32_t entry) {
  Entry& e = at(entry);
  each_block(e, false, [&](int group, std::int32_t block) { pool_.let_go(group, block); });
  stats_.blocks -= static_cast<std::int64_t>(e.full.size());
  const auto first = first_.find(e.hash);
  if (first->second == entry) {
    if (e.same_hash < 0) {
      first_.erase(first);
    } else {
      first->second = e.same_hash;
    }
  } else {
    std::int32_t before = first->second;
    while (at(before).same_hash != entry) before = at(before).same_hash;
    at(before).same_hash = e.same_hash;
  }
  e = Entry{};
  unused_.push_back(entry);
  --stats_.entries;
}

/// The tail that was used longest ago and of which no request holds a block; else one of which some are free to go.
bool PrefixCache::evict_one() {
  for (const bool whole : {true, false}) {
    for (std::int32_t entry = oldest_; entry >= 0; entry = at(entry).newer) {
      const std::vector<std::int32_t>& tail = at(entry).tail;
      const auto idle = std::ranges::count_if(tail, [&](std::int32_t block) { return pool_.idle(block); });
      if (whole ? idle < std::ssize(tail) : idle == 0) continue;
      drop_tail(entry);
      ++stats_.evicted_tails;
      return true;
    }
  }
  return false;
}

bool PrefixCache::make_room(std::int64_t free_blocks) {
  if (pool_.free_blocks() + pool_.idle_blocks() < free_blocks) return false;
  while (pool_.free_blocks() < free_blocks) {
    if (!evict_one()) return false;
  }
  return true;
}

void PrefixCache::clear() {
  while (newest_ >= 0) drop_tail(newest_);
}

PrefixCacheStats PrefixCache::stats() const { return stats_; }

}  // namespace smla
