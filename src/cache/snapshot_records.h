#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "sparsemla/snapshot.h"

// The bytes of a snapshot before its blocks (docs/snapshot.md). Numbers are little-endian, as is every machine the
// library runs on.

namespace smla::snapshot_records {

inline constexpr std::int64_t kMaxTokens =
    std::int64_t{1} << 24;  ///< far past any model; a block table of so many tokens is still small

std::uint64_t checksum(std::span<const std::uint8_t> bytes);

class Writer {
 public:
  explicit Writer(std::size_t bytes) { out_.reserve(bytes); }
  template <class T>
  void put(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    append(&value, sizeof value);
  }
  void append(const void* data, std::size_t bytes) {
    const std::size_t at = out_.size();
    out_.resize(at + bytes);
    if (bytes > 0) std::memcpy(out_.data() + at, data, bytes);
  }
  std::vector<std::uint8_t> finish() {
    put(checksum(out_));
    return std::move(out_);
  }

 private:
  std::vector<std::uint8_t> out_;
};

/// Reads in order; the caller has checked that enough is there.
class Reader {
 public:
  explicit Reader(std::span<const std::uint8_t> bytes) : rest_(bytes) {}
  template <class T>
  T take() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::span<const std::uint8_t> take(std::size_t bytes) {
    const auto out = rest_.first(bytes);
    rest_ = rest_.subspan(bytes);
    return out;
  }
  std::size_t left() const { return rest_.size(); }

 private:
  std::span<const std::uint8_t> rest_;
};

/// "window cache of layer 3".
std::string cache_name(const SnapshotCache& cache);

/// Bytes of its blocks.
std::int64_t bytes_of(const SnapshotCache& cache);

/// The bytes before the blocks, into a writer with room for the whole; `caches` by layer and role.
Writer begin(std::int64_t tokens, std::int64_t num_layers, std::span<const SnapshotCache> caches,
             std::span<const std::uint8_t> note);

/// Reads and checks them; `reader`, made over all `bytes`, stands before the blocks when it returns.
SnapshotInfo take_info(std::span<const std::uint8_t> bytes, Reader& reader);

}  // namespace smla::snapshot_records
