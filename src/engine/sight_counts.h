#pragma once

#include <cstdint>
#include <limits>

#include "engine/lru_cache.h"

namespace smla {

/// How often keys came, of as many as are remembered: those that came longest ago are forgotten.
template <class Key>
class SightCounts {
 public:
  /// Remembers at most `max_keys` keys; a key is due when it comes after `before` times.
  SightCounts(std::int64_t max_keys, std::int64_t before)
      : counts_(max_keys, std::numeric_limits<std::int64_t>::max()), before_(before) {}

  /// A key comes. True when it came `before` times already: its count then begins anew.
  bool due(const Key& key) {
    std::int64_t* count = counts_.find(key);
    if (count == nullptr) count = &counts_.insert(key, 0);
    const bool due = *count >= before_;
    *count = due ? 0 : *count + 1;
    return due;
  }

  std::int64_t size() const { return counts_.size(); }  ///< keys that are remembered

 private:
  LruCache<Key, std::int64_t> counts_;
  std::int64_t before_;
};

}  // namespace smla
