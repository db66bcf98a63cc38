#pragma once

#include <cstdint>

namespace smla::topk {

// The radix select of topk_cpu.cpp by one thread block, of any scores. A row that fits its registers is read once, a
// longer one once for each digit (at most three) and once for the output.

constexpr int kBits = 11;  ///< bits of a digit, at most
constexpr int kBins = 1 << kBits;
constexpr unsigned kAll = 0xFFFF'FFFFU;

/// A key in the order of the scores: larger score, larger key; -0 = +0; NaN is 0, below -inf.
__device__ inline std::uint32_t key_of(std::uint32_t score) {
  const std::uint32_t magnitude = score & 0x7FFF'FFFFU;
  const std::uint32_t ordered = (score >> 31) != 0U ? 0x8000'0000U - magnitude : 0x8000'0000U + magnitude;
  return magnitude > 0x7F80'0000U ? 0U : ordered;
}

/// A row of scores.
struct Scores {
  static constexpr std::uint32_t kNothing = 0x7FFF'FFFF;  ///< a loaded word that becomes the smallest key
  const float* scores;

  /// Hidden from the compiler, which would otherwise compute the address again for every item.
  __device__ Scores from(std::uint32_t i) const {
    const float* first = scores + i;
    asm("" : "+l"(first));
    return {first};
  }
  __device__ std::uint32_t load(std::uint32_t i) const { return __float_as_uint(__ldg(scores + i)); }
  __device__ static std::uint32_t key(std::uint32_t loaded) { return key_of(loaded); }
  __device__ std::uint32_t column(std::uint32_t i) const { return i; }
};

/// The columns of a row that can be chosen, in ascending order. Other blocks of the same kernel wrote them, so they are
/// not read through the read-only cache.
struct List {
  static constexpr std::uint32_t kNothing = 0;
  const std::uint32_t* keys;
  const std::uint32_t* columns;

  __device__ List from(std::uint32_t i) const { return {keys + i, columns + i}; }
  __device__ std::uint32_t load(std::uint32_t i) const { return __ldcg(keys + i); }
  __device__ static std::uint32_t key(std::uint32_t loaded) { return loaded; }
  __device__ std::uint32_t column(std::uint32_t i) const { return __ldcg(columns + i); }
};

/// What is chosen: all keys above `key`, and the first `ties` of those that equal it.
struct Threshold {
  std::uint32_t key;
  std::uint32_t ties;
};

/// Prefix sums over the warps of a block. Calls alternate between two rows of totals, so that one barrier a call is
/// enough.
template <int kWarps>
struct WarpSums {
  std::uint32_t totals[2][kWarps];

  /// The sum over the warps before this one, and over all of them. Contains a barrier.
  __device__ std::uint32_t before(std::uint32_t mine, int use, std::uint32_t* all) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (lane == 0) totals[use % 2][warp] = mine;
    __syncthreads();
    std::uint32_t sum = lane < kWarps ? totals[use % 2][lane] : 0U;
#pragma unroll
    for (int i = 1; i < 32; i *= 2) {
      const std::uint32_t left = __shfl_up_sync(kAll, sum, i);
      if (lane >= i) sum += left;
    }
    *all = __shfl_sync(kAll, sum, 31);
    const std::uint32_t previous = __shfl_sync(kAll, sum, warp == 0 ? 0 : warp - 1);
    return warp == 0 ? 0U : previous;
  }
};

/// A digit of the k-th largest key.
struct Digit {
  std::uint32_t bin;     ///< the digit's value
  std::uint32_t above;   ///< keys with a larger digit
  std::uint32_t inside;  ///< keys with this digit
};

template <int kThreads>
struct SelectionShared {
  alignas(16) std::uint32_t count[2][kBins];  ///< counts of one digit, and zeros for the next
  WarpSums<kThreads / 32> sums;
  Digit digit;
};

/// Selects from one row with one block. An item is a column of a row of scores, or one of a list of columns. A warp
/// holds consecutive items, a lane every 32nd of them.
template <int kThreads, int kItems, class Source>
struct Selection {
  static constexpr std::uint32_t kResident = kThreads * kItems;  ///< items that stay in registers
  static constexpr int kMine = kBins / kThreads;
  SelectionShared<kThreads>& shared;
  const Source source;
  std::uint32_t count;  ///< number of items; with one more chunk it still fits 32 bits
  std::uint32_t key[kItems];

  __device__ Selection(SelectionShared<kThreads>& memory, Source from, std::uint32_t items)
      : shared(memory), source(from), count(items) {
    clear(0);
    clear(1);
    __syncthreads();
    if (resident()) load(0);
  }
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ bool resident() const { return count <= kResident; }
  /// Calls f(first item of a chunk, number of the chunk) as long as f returns true.
  template <class F>
  __device__ void each_chunk(F&& f) {
    int number = 0;
    for (std::uint32_t base = 0; base < count; base += chunk(), ++number) {
      if (!resident()) load(base);
      if (!f(base, number)) return;
    }
  }
  /// How many items a thread has in a chunk.
  __device__ std::uint32_t items() const { return resident() ? (count + kThreads - 1) / kThreads : kItems; }
  __device__ std::uint32_t chunk() const { return items() * kThreads; }
  /// How many items this lane has in a chunk.
  __device__ std::uint32_t held(std::uint32_t first) const {
    return first < count ? min((count - first + 31) / 32, items()) : 0U;
  }
  /// This lane's first item of a chunk; its item i is 32 i further on.
  __device__ std::uint32_t first_of(std::uint32_t base) const {
    return base + threadIdx.x / 32 * (32 * items()) + threadIdx.x % 32;
  }

  __device__ void load(std::uint32_t base) {
    const std::uint32_t first = first_of(base);
    const std::uint32_t mine = held(first);
    const Source from = source.from(first);
#pragma unroll
    for (std::uint32_t i = 0; i < kItems; ++i) key[i] = i < mine ? from.load(32 * i) : Source::kNothing;
#pragma unroll
    for (std::uint32_t i = 0; i < kItems; ++i) key[i] = Source::key(key[i]);
  }

  __device__ void clear(int row) {
#pragma unroll
    for (int i = 0; i < kMine; ++i) shared.count[row][threadIdx.x + i * kThreads] = 0;
  }

  /// Counts the keys that begin with `prefix` (of `known` bits) by their next `bits` bits.
  __device__ void tally(std::uint32_t* count, int known, int bits, std::uint32_t prefix) {
    const int shift = 32 - known - bits;
    const std::uint32_t mask = (1U << bits) - 1U;
    each_chunk([&](std::uint32_t base, int) {
      const std::uint32_t mine = held(first_of(base));
#pragma unroll
      for (std::uint32_t i = 0; i < kItems; ++i) {
        if (i < mine && (known == 0 || key[i] >> (32 - known) == prefix))
          atomicAdd(&count[(key[i] >> shift) & mask], 1U);
      }
      return true;
    });
    __syncthreads();
  }

  /// The bin that holds the k-th largest of the counted keys, of which there are at least k. Contains two barriers.
  __device__ Digit find_bin(const std::uint32_t* count, std::uint32_t k, int use) {
    static_assert(kMine == 2 || kMine % 4 == 0);
    const int low = kBins - (static_cast<int>(threadIdx.x) + 1) * kMine;
    std::uint32_t bin[kMine];
    if constexpr (kMine == 2) {
      const uint2 pair = *reinterpret_cast<const uint2*>(count + low);
      bin[0] = pair.x, bin[1] = pair.y;
    } else {
#pragma unroll
      for (int i = 0; i < kMine; i += 4) {
        const uint4 four = *reinterpret_cast<const uint4*>(count + low + i);
        bin[i] = four.x, bin[i + 1] = four.y, bin[i + 2] = four.z, bin[i + 3] = four.w;
      }
    }
    std::uint32_t mine = 0;
#pragma unroll
    for (int i = 0; i < kMine; ++i) mine += bin[i];
    std::uint32_t up_to = mine;
#pragma unroll
    for (int i = 1; i < 32; i *= 2) {
      const std::uint32_t left = __shfl_up_sync(kAll, up_to, i);
      if (lane() >= i) up_to += left;
    }
    std::uint32_t all = 0;
    const std::uint32_t warp_sum = __shfl_sync(kAll, up_to, 31);
    std::uint32_t above = shared.sums.before(warp_sum, use, &all) + up_to - mine;
#pragma unroll
    for (int i = kMine - 1; i >= 0; --i) {
      if (above < k && k <= above + bin[i]) shared.digit = {static_cast<std::uint32_t>(low + i), above, bin[i]};
      above += bin[i];
    }
    __syncthreads();
    return shared.digit;
  }

  /// The k-th largest of the keys whose first `known` bits are `prefix`; there are at least k > 0.
  __device__ Threshold find_threshold(std::uint32_t k, int known, std::uint32_t prefix) {
    for (int pass = 0; known < 32; ++pass) {
      const int bits = min(32 - known, kBits);
      tally(shared.count[pass % 2], known, bits, prefix);
      const Digit digit = find_bin(shared.count[pass % 2], k, pass);
      prefix = (prefix << bits) | digit.bin;
      known += bits;
      k -= digit.above;
      // All keys that begin like this are chosen, but not all items: there is a smaller key.
      if (digit.inside == k) return {(prefix << (32 - known)) - 1, 0};
      clear(pass % 2);  // for the pass after the next; its barriers come before that
    }
    return {prefix, k};
  }

  /// Calls put(place, column) for the chosen columns: a column's place is the number of chosen ones before it.
  template <class Put>
  __device__ void write(const Threshold& t, std::uint32_t k, Put&& put) {
    static_assert(kItems <= 32 && kResident < 0x1'0000);  // one bit for an item, 16 bits for the count of a chunk
    std::uint32_t above = 0;  // keys above the threshold and equal to it in the chunks so far
    std::uint32_t equal = 0;
    const unsigned left = (1U << lane()) - 1U;
    each_chunk([&](std::uint32_t base, int use) {
      const std::uint32_t first = first_of(base);
      const std::uint32_t mine = held(first);
      std::uint32_t over = 0;
      std::uint32_t same = 0;
#pragma unroll
      for (std::uint32_t i = 0; i < kItems; ++i) over |= key[i] > t.key ? 1U << i : 0U;
      if (t.ties != 0) {
#pragma unroll
        for (std::uint32_t i = 0; i < kItems; ++i) same |= key[i] == t.key ? 1U << i : 0U;
      }
      const std::uint32_t there = mine < 32 ? (1U << mine) - 1U : kAll;
      over &= there, same &= there;
      std::uint32_t all = 0;
      const auto count = static_cast<std::uint32_t>(__popc(over)) << 16 | static_cast<std::uint32_t>(__popc(same));
      const std::uint32_t before = shared.sums.before(__reduce_add_sync(kAll, count), use, &all);
      std::uint32_t over_before = above + (before >> 16);
      std::uint32_t same_before = equal + (before & 0xFFFFU);
      // Few items of a row are chosen, so most have nothing to write.
      for (std::uint32_t some = __reduce_or_sync(kAll, over | same); some != 0; some &= some - 1) {
        const int i = __ffs(static_cast<int>(some)) - 1;
        const bool is_over = (over >> i & 1U) != 0U;
        const bool is_same = (same >> i & 1U) != 0U;
        const unsigned over_lanes = __ballot_sync(kAll, is_over);
        const unsigned same_lanes = __ballot_sync(kAll, is_same);
        const std::uint32_t over_at = over_before + static_cast<std::uint32_t>(__popc(over_lanes & left));
        const std::uint32_t same_at = same_before + static_cast<std::uint32_t>(__popc(same_lanes & left));
        if (is_over || (is_same && same_at < t.ties))
          put(over_at + min(same_at, t.ties), static_cast<std::int32_t>(source.column(first + 32 * i)));
        over_before += static_cast<std::uint32_t>(__popc(over_lanes));
        same_before += static_cast<std::uint32_t>(__popc(same_lanes));
      }
      above += all >> 16;
      equal += all & 0xFFFFU;
      return above + min(equal, t.ties) < k;
    });
  }

  /// Calls put(place, column) for the k columns of the largest scores, places and columns ascending. Needs 0 < k < n.
  template <class Put>
  __device__ void run(std::uint32_t k, Put&& put) {
    write(find_threshold(k, 0, 0), k, put);
  }
};

}  // namespace smla::topk
