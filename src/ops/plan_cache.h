#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

namespace smla {

/// Values by the words that they were made from (PlanKey). Finding one allocates nothing. Thread-safe. Bounded: full,
/// it forgets everything and begins anew; values that are still held stay alive.
template <class Value>
class PlanCache {
 public:
  static constexpr std::size_t kCapacity = 512;

  /// Null when there is none.
  std::shared_ptr<const Value> find(std::span<const std::uint64_t> words) const {
    const std::lock_guard lock(mutex_);
    const auto found = values_.find(words);
    return found == values_.end() ? nullptr : found->second;
  }

  void insert(std::span<const std::uint64_t> words, std::shared_ptr<const Value> value) {
    const std::lock_guard lock(mutex_);
    if (values_.size() >= kCapacity) values_.clear();
    values_.insert_or_assign(std::vector<std::uint64_t>(words.begin(), words.end()), std::move(value));
  }

  std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return values_.size();
  }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::span<const std::uint64_t> words) const {
      std::uint64_t h = words.size();
      for (const std::uint64_t word : words) {
        h = (h ^ word) * 0x9E37'79B9'7F4A'7C15U;
        h ^= h >> 32;
      }
      return h;
    }
  };
  struct Equal {
    using is_transparent = void;
    bool operator()(std::span<const std::uint64_t> a, std::span<const std::uint64_t> b) const {
      return std::ranges::equal(a, b);
    }
  };

  mutable std::mutex mutex_;
  std::unordered_map<std::vector<std::uint64_t>, std::shared_ptr<const Value>, Hash, Equal> values_;
};

}  // namespace smla
