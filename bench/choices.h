#pragma once

#include <cstdint>

#include "engine/synthetic.h"

namespace smla::bench {

/// Random permutations of [0, limit), one for each key, of which any element can be computed by itself; the same on the
/// host and in a kernel.
struct Shuffle {
  std::int64_t limit = 1;
  int bits = 1;

  constexpr explicit Shuffle(std::int64_t limit_in) : limit(limit_in) {
    while ((std::int64_t{1} << bits) < limit) ++bits;
  }
  /// Element i (below the limit) of permutation `key`.
  constexpr std::int64_t at(std::int64_t i, std::uint64_t key) const {
    const std::uint64_t mask = (std::uint64_t{1} << bits) - 1;
    auto x = static_cast<std::uint64_t>(i);
    // Each round is a permutation of [0, 2^bits). A value past the limit is permuted again until it is below.
    do {
      for (std::uint64_t round = 0; round < 3; ++round) {
        const std::uint64_t k = mix(key, round);
        x = (x * (k | 1) + (k >> 32)) & mask;
        x ^= x >> ((bits + 1) / 2);
      }
    } while (x >= static_cast<std::uint64_t>(limit));
    return static_cast<std::int64_t>(x);
  }
};

}  // namespace smla::bench
