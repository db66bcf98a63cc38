#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace smla::device {

inline std::uint64_t address_bits(std::int64_t n) { return static_cast<std::uint64_t>(n); }
inline std::uint64_t address_bits(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

/// The widest word, of 1 to 16 bytes, to which all these addresses and byte counts are aligned. (Strides are arbitrary,
/// and a misaligned load is an error.)
template <class... Number>
int common_word(Number... numbers) {
  const std::uint64_t bits = (std::uint64_t{16} | ... | address_bits(numbers));
  return static_cast<int>(bits & (~bits + 1));
}

template <class Word>
__device__ void copy_words(std::uint8_t* to, const std::uint8_t* from, std::int64_t bytes, int first, int step) {
  constexpr auto kSize = static_cast<std::int64_t>(sizeof(Word));
  for (std::int64_t i = first; i < bytes / kSize; i += step)
    reinterpret_cast<Word*>(to)[i] = from == nullptr ? Word{} : reinterpret_cast<const Word*>(from)[i];
}

/// Copies `bytes` bytes, or writes zeros when `from` is null, as thread `first` of `step`. Addresses and bytes are
/// multiples of `word`.
__device__ inline void copy_row(std::uint8_t* to, const std::uint8_t* from, std::int64_t bytes, int word, int first,
                                int step) {
  switch (word) {
    case 16: return copy_words<uint4>(to, from, bytes, first, step);
    case 8: return copy_words<uint2>(to, from, bytes, first, step);
    case 4: return copy_words<std::uint32_t>(to, from, bytes, first, step);
    case 2: return copy_words<std::uint16_t>(to, from, bytes, first, step);
    default: return copy_words<std::uint8_t>(to, from, bytes, first, step);
  }
}

}  // namespace smla::device
