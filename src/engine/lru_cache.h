#pragma once

#include <cstdint>
#include <list>
#include <utility>

namespace smla {

/// Values by key, bounded in number and in bytes: those that were asked for longest ago go first. Few at a time: a
/// search looks at each of them.
template <class Key, class Value>
class LruCache {
 public:
  /// At most `max_entries` values of together at most `max_bytes` bytes; the newest stays, however large it is.
  LruCache(std::int64_t max_entries, std::int64_t max_bytes) : max_entries_(max_entries), max_bytes_(max_bytes) {}

  /// The value of `key`, now the last that was asked for; null when there is none.
  Value* find(const Key& key) {
    for (auto at = entries_.begin(); at != entries_.end(); ++at) {
      if (!(at->key == key)) continue;
      entries_.splice(entries_.begin(), entries_, at);
      return &at->value;
    }
    return nullptr;
  }
  /// A new value, the last that was asked for; its key must not be there. Others go until the bounds hold again.
  Value& insert(Key key, Value value) {
    entries_.push_front({.key = std::move(key), .value = std::move(value)});
    ++inserted_;
    evict();
    return entries_.front().value;
  }
  /// Says how many bytes the value asked for last takes. Others go until the bounds hold again.
  void charge(std::int64_t bytes) {
    bytes_ += bytes - entries_.front().bytes;
    entries_.front().bytes = bytes;
    evict();
  }
  /// Gives up everything, as void: nothing of it counts as evicted.
  void clear() {
    entries_.clear();
    bytes_ = 0;
  }

  std::int64_t size() const { return static_cast<std::int64_t>(entries_.size()); }  ///< values that are there
  std::int64_t bytes() const { return bytes_; }                                     ///< that they take
  std::int64_t inserted() const { return inserted_; }                               ///< since the start
  std::int64_t evicted() const { return evicted_; }                                 ///< for a bound's sake

 private:
  struct Entry {
    Key key;
    Value value;
    std::int64_t bytes = 0;
  };
  void evict() {
    while (entries_.size() > 1 && (size() > max_entries_ || bytes_ > max_bytes_)) {
      bytes_ -= entries_.back().bytes;
      entries_.pop_back();
      ++evicted_;
    }
  }

  std::int64_t max_entries_;
  std::int64_t max_bytes_;
  std::list<Entry> entries_;  ///< the last asked for first
  std::int64_t bytes_ = 0;
  std::int64_t inserted_ = 0;
  std::int64_t evicted_ = 0;
};

}  // namespace smla
