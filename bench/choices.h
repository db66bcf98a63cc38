#pragma once

#include <cstdint>

#include "engine/synthetic.h"

namespace smla::bench {

/// Random orders of [0, limit), each number of them at once: the same on the host and in a kernel.
struct Shuffle {
  std::int64_t limit = 1;
  int bits = 1;

  constexpr explicit Shuffle(std::int64_t limit_in) : limit(limit_in) {
    while ((std::int64_t{1} << bits) < limit) ++bits;
  }
  /// Number i, below the limit, of order `key`.
  constexpr std::int64_t at(std::int64_t i, std::uint64_t key) const {
    const std::uint64_t mask = (std::uint64_t{1} << bits) - 1;
    auto x = static_cast<std::uint64_t>(i);
    // Each step is one to one over the powers of two; what lands past the limit goes on until it is back below.
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
