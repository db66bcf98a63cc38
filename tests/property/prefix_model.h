// A host of a prefix cache without layers: instead of rows, each block holds a number that says what was written there.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "sparsemla/prefix_cache.h"

namespace smla::test {

/// The groups of layers of all three kinds, without memory behind their blocks.
inline KvLayout groups_alone() {
  KvLayout layout;
  layout.groups.push_back({.name = "full", .block_tokens = 256, .caches = {}});
  layout.groups.push_back({.name = "window", .block_tokens = 64, .window = 128, .caches = {}});
  layout.groups.push_back({.name = "state_c4", .block_tokens = 4, .window = 8, .read_every = 4, .caches = {}});
  layout.groups.push_back({.name = "state_c128", .block_tokens = 8, .window = 128, .read_every = 128, .caches = {}});
  return layout;
}

using Tokens = std::vector<std::int32_t>;

/// A request of the host: its tokens, how many of them are computed, its blocks.
struct HostRequest {
  HostRequest(const KvLayout& layout, Tokens all, std::int64_t prompt_tokens)
      : tokens(std::move(all)), prompt(prompt_tokens), blocks(layout) {}
  Tokens tokens;
  std::int64_t prompt;
  RequestBlocks blocks;
  PrefixKeys keys;
  std::int64_t computed = 0;
  std::int64_t lent = 0;  ///< tokens of the prefix that it began with
  std::int64_t size() const { return static_cast<std::int64_t>(tokens.size()); }
};

/// Pool, cache and what stands in each block; checks each block that a request reads.
class PrefixHost {
 public:
  PrefixHost(std::int64_t blocks, const PrefixCacheOptions& options)
      : pool_(groups_alone(), blocks), cache_(pool_.layout(), pool_.blocks(), options) {}

  KvPool& pool() { return pool_; }
  PrefixCache& cache() { return cache_; }

  /// Tokens that a cache which never forgets would lend.
  std::int64_t expected(const HostRequest& r) const {
    for (std::int64_t n = (r.size() - 1) / cache_.unit() * cache_.unit(); n > 0; n -= cache_.unit()) {
      if (kept_.contains(Tokens(r.tokens.begin(), r.tokens.begin() + n))) return n;
    }
    return 0;
  }

  /// Begins with the longest prefix; what was lent must hold what the request would have written.
  void begin(HostRequest& r) {
    extend_keys(r, r.size());
    r.lent = cache_.adopt(r.keys, r.size() - 1, r.blocks);
    r.computed = r.lent;
    check(r);
  }

  /// Room for the next positions, with `drafts` more of which none is accepted; false without enough blocks.
  bool reserve(HostRequest& r, std::int64_t tokens) {
    const std::int64_t missing = r.blocks.missing(pool_.layout(), r.computed, r.computed + tokens);
    if (missing > pool_.free_blocks()) cache_.make_room(missing);
    return r.blocks.reserve(pool_, r.computed, r.computed + tokens);
  }

  /// Computes `accepted` positions and throws `drafts` away.
  void compute(HostRequest& r, std::int64_t accepted, std::int64_t drafts) {
    check(r);
    const std::int64_t begin = r.computed;
    r.computed += accepted;
    for_columns(r, begin, r.computed + drafts, [&](std::int32_t block, std::int64_t end) {
      content_[block] = end <= r.computed ? value(r, end) : partial(r);
    });
    extend_keys(r, r.computed);
    for (std::int64_t n = begin + 1; n <= r.computed; ++n) {
      if (cache_.keeps(n, r.prompt)) kept_.insert(Tokens(r.tokens.begin(), r.tokens.begin() + n));
    }
    cache_.keep(r.keys, r.blocks, begin, r.computed, r.prompt);
    r.blocks.slide(pool_, r.computed);
  }

  void end(HostRequest& r) {
    r.blocks.clear(pool_);
    r.computed = 0;
  }

  /// Every whole block that positions from `computed` on read holds what the request's tokens make of it.
  void check(const HostRequest& r) const {
    for (std::size_t g = 0; g < pool_.layout().groups.size(); ++g) {
      const CacheGroup& group = pool_.layout().groups[g];
      const auto table = r.blocks.table(static_cast<int>(g));
      for (std::int64_t c = group.first_read(r.computed) / group.block_tokens;
           (c + 1) * group.block_tokens <= r.computed; ++c) {
        ASSERT_LT(c, std::ssize(table)) << group.name;
        const std::int32_t block = table[static_cast<std::size_t>(c)];
        ASSERT_GT(block, 0) << group.name << " column " << c << " of " << r.computed;
        ASSERT_EQ(content_.at(block), value(r, (c + 1) * group.block_tokens)) << group.name << " column " << c;
      }
    }
  }

 private:
  /// What a block that ends at position `end` holds: a number of its own for each sequence of tokens.
  std::int64_t value(const HostRequest& r, std::int64_t end) const {
    const Tokens begin(r.tokens.begin(), r.tokens.begin() + end);
    return names_.try_emplace(begin, std::ssize(names_) + 1).first->second;
  }
  /// What a block holds that is not whole: nothing that anybody else may read.
  std::int64_t partial(const HostRequest& r) const { return -1 - r.computed; }

  template <class Each>
  void for_columns(const HostRequest& r, std::int64_t begin, std::int64_t end, const Each& each) {
    for (std::size_t g = 0; g < pool_.layout().groups.size(); ++g) {
      const std::int64_t tokens = pool_.layout().groups[g].block_tokens;
      for (std::int64_t c = begin / tokens; c * tokens < end; ++c) {
        each(r.blocks.table(static_cast<int>(g))[static_cast<std::size_t>(c)], (c + 1) * tokens);
      }
    }
  }
  void extend_keys(HostRequest& r, std::int64_t tokens) {
    const std::int64_t unit = cache_.unit();
    const std::int64_t have = r.keys.blocks() * unit;
    if (tokens > have)
      r.keys.append_tokens(std::span<const std::int32_t>(r.tokens).subspan(static_cast<std::size_t>(have),
                                                                           static_cast<std::size_t>(tokens - have)),
                           unit);
  }

  KvPool pool_;
  PrefixCache cache_;
  std::map<std::int32_t, std::int64_t> content_;
  mutable std::map<Tokens, std::int64_t> names_;
  std::set<Tokens> kept_;
};

}  // namespace smla::test
