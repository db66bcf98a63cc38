#pragma once

// What the fuzz targets share: a reader of the fuzzer's bytes, matrices with canaries around every row, files in
// memory.

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "sparsemla/tensor_view.h"

namespace smla::fuzz {

/// Ends the run: libFuzzer keeps the input and prints `text` with the stack.
[[noreturn]] void fail(const std::string& text);
inline void require(bool ok, const char* text) {
  if (!ok) fail(text);
}

/// Numbers out of the fuzzer's bytes, in order; zeros when they are used up.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : bytes_(data, size) {}

  std::uint8_t byte() {
    if (bytes_.empty()) return 0;
    const std::uint8_t b = bytes_[0];
    bytes_ = bytes_.subspan(1);
    return b;
  }
  bool flag() { return (byte() & 1) != 0; }
  template <class T>
  T raw() {
    T value{};
    auto* to = reinterpret_cast<std::uint8_t*>(&value);
    for (std::size_t i = 0; i < sizeof(T); ++i) to[i] = byte();
    return value;
  }
  /// One of lo..hi, at most 256 apart.
  std::int64_t range(std::int64_t lo, std::int64_t hi) { return lo + byte() % (hi - lo + 1); }
  template <class T, std::size_t N>
  T choice(const T (&all)[N]) {
    return all[byte() % N];
  }
  /// Mostly one of -2..limit+2; sometimes a number at the end of the type, or any.
  std::int64_t hostile(std::int64_t limit, bool wide = false);
  std::int32_t hostile32(std::int64_t limit) { return static_cast<std::int32_t>(hostile(limit)); }
  std::vector<std::int32_t> hostile_list(std::int64_t count, std::int64_t limit);
  std::vector<std::int64_t> hostile_longs(std::int64_t count, std::int64_t limit);
  /// What is left.
  std::string rest();

 private:
  std::span<const std::uint8_t> bytes_;
};

/// [rows, columns] full of poison, `gap` elements between two rows and before the first and after the last that nobody
/// may write.
template <class T>
class Guarded {
 public:
  static constexpr std::uint8_t kPoison = 0xA5;
  Guarded(std::int64_t rows, std::int64_t columns, std::int64_t gap)
      : rows_(rows),
        columns_(columns),
        stride_(columns + gap),
        gap_(gap),
        memory_(static_cast<std::size_t>(gap + rows * (columns + gap))) {
    if (!memory_.empty()) std::memset(memory_.data(), kPoison, memory_.size() * sizeof(T));
  }
  T* row(std::int64_t r) { return memory_.data() + gap_ + r * stride_; }
  const T* row(std::int64_t r) const { return memory_.data() + gap_ + r * stride_; }
  T at(std::int64_t r, std::int64_t c) const { return row(r)[c]; }
  bool poisoned(std::int64_t r, std::int64_t c) const { return is_poison(row(r) + c, 1); }
  bool poisoned(std::int64_t r) const { return is_poison(row(r), columns_); }
  TensorView view(DType dtype) {
    TensorView v(row(0), dtype, {rows_, columns_});
    v.stride[0] = stride_;
    return v;
  }
  /// Fails when a canary is gone.
  void check(const char* text) const {
    require(is_poison(memory_.data(), gap_), text);
    for (std::int64_t r = 0; r < rows_; ++r) require(is_poison(row(r) + columns_, gap_), text);
  }
  bool operator==(const Guarded& other) const {
    return memory_.size() == other.memory_.size() &&
           (memory_.empty() || std::memcmp(memory_.data(), other.memory_.data(), memory_.size() * sizeof(T)) == 0);
  }

 private:
  static bool is_poison(const T* p, std::int64_t n) {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(p);
    const auto size = static_cast<std::size_t>(n) * sizeof(T);
    return size == 0 || (bytes[0] == kPoison && std::memcmp(bytes, bytes + 1, size - 1) == 0);
  }
  std::int64_t rows_, columns_, stride_, gap_;
  std::vector<T> memory_;
};

/// A file that has a name but no disk.
class MemoryFile {
 public:
  MemoryFile();
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  void write(std::string_view bytes) const;
  void truncate(std::int64_t bytes) const;
  const std::string& path() const { return path_; }

 private:
  int file_;
  std::string path_;
};

/// A safetensors file: prefix, header text, and as many data bytes as the header's largest data_offsets ask for (at
/// most 1 MiB), taken from `pool` again and again. `extra`: data bytes more or fewer than that.
std::string safetensors_bytes(const std::string& header, const std::string& pool, int extra = 0);

/// Prints an error that was caught, where the environment has SMLA_FUZZ_VERBOSE: shows what a seed does.
void tell(const char* text);

/// Runs what may throw the library's own errors; anything else ends the run.
template <class F>
bool survives(F&& f);

}  // namespace smla::fuzz

#include <new>

#include "sparsemla/error.h"

namespace smla::fuzz {

template <class F>
bool survives(F&& f) {
  try {
    f();
    return true;
  } catch (const Error& e) {
    require(e.what()[0] != '\0', "an error without a text");
    tell(e.what());
    return false;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

}  // namespace smla::fuzz
