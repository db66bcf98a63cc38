#pragma once

#include <cstdint>

#include "ops/topk/bins_by_width.cuh"
#include "ops/topk/topk_selection.cuh"

namespace smla::topk {

// One block selects from a row of scores that its registers hold (docs/kernels/topk.md).
//
// Candidates are counted in bins of equal width. The bin of the k-th largest mostly has a few, which are ranked; those
// of larger bins are chosen. Of a row of up to kDirect scores a thread every score is a candidate. Of a longer one
// groups of scores are looked at first: where k groups have a score that reaches a bound, so do at least k scores, and
// few others. Chosen columns become bits of shared memory, by which they are written in ascending order.

constexpr int kRuns = 64;                  ///< runs of bins, each with a count of its own
constexpr int kOfRun = kBins / kRuns;      ///< bins of a run
constexpr int kGroups = 4;                 ///< of a thread's scores
constexpr std::uint32_t kListed = 64;      ///< most candidates in the bin of the k-th
constexpr std::uint32_t kReaching = 2048;  ///< most scores that reach the bound
static_assert(kOfRun == 32 && kRuns == 64);

/// How many candidates each bin has.
struct BinCounts {
  alignas(16) std::uint32_t bin[kBins];
  alignas(16) std::uint32_t run[kRuns];

  __device__ void add(std::uint32_t number) {
    atomicAdd(&bin[number], 1U);
    atomicAdd(&run[number / kOfRun], 1U);
  }
  /// The bin of the k-th largest, by one warp. `inside` is 0 where fewer than k were counted.
  __device__ Digit find(std::uint32_t k) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const uint2 pair = *reinterpret_cast<const uint2*>(run + kRuns - 2 - 2 * lane);  // lane 0 has the top two
    const std::uint32_t above_pair = of_lanes_before(pair.x + pair.y);
    const std::uint32_t above_low = above_pair + pair.y;
    const unsigned holders = __ballot_sync(kAll, above_pair < k && k <= above_low + pair.x);
    if (holders == 0) return {};
    const int from = __ffs(static_cast<int>(holders)) - 1;
    const bool low = __shfl_sync(kAll, static_cast<int>(above_low < k), from) != 0;
    const std::uint32_t above_run = __shfl_sync(kAll, low ? above_low : above_pair, from);
    const auto first = static_cast<std::uint32_t>(kRuns - 1 - 2 * from - (low ? 1 : 0)) * kOfRun;
    const std::uint32_t own = bin[first + kOfRun - 1 - lane];
    const std::uint32_t above = above_run + of_lanes_before(own);
    const int last = __ffs(static_cast<int>(__ballot_sync(kAll, above < k && k <= above + own))) - 1;
    return {first + kOfRun - 1 - last, __shfl_sync(kAll, above, last), __shfl_sync(kAll, own, last)};
  }

 private:
  __device__ static std::uint32_t of_lanes_before(std::uint32_t mine) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    std::uint32_t sum = mine;
#pragma unroll
    for (int i = 1; i < 32; i *= 2) {
      const std::uint32_t left = __shfl_up_sync(kAll, sum, i);
      if (lane >= i) sum += left;
    }
    return sum - mine;
  }
};

/// kBounded: rows may be so long that a bound is looked for.
template <int kThreads, bool kBounded>
struct RowShared {
  static constexpr std::uint32_t kRoom = kBounded ? kReaching : 1;
  BinCounts counts[1 + kBounded];              ///< of candidates, of groups' largest scores
  alignas(16) std::uint32_t chosen[kThreads];  ///< a bit for each column
  Extremes<kThreads / 32> extremes;
  std::uint32_t of_warp[kThreads / 32];  ///< chosen columns
  std::uint32_t listed;
  std::uint32_t reaching;
  Digit found;
  float list[kListed];  ///< scores of the k-th one's bin
  std::uint32_t list_columns[kListed];
  float scores[kRoom];  ///< that reach the bound, in any order
  std::uint32_t columns[kRoom];
};

/// Of a row of up to kDirect scores a thread each thread has consecutive ones, of a longer row four consecutive ones of
/// each 4 kThreads.
template <int kThreads, int kItems, int kDirect>
struct RowSelection {
  static constexpr bool kBounded = kItems > kDirect;
  static_assert(kItems % 4 == 0 && kItems <= 32 && kDirect % 4 == 0 && kDirect <= kItems);
  static constexpr int kWarps = kThreads / 32;
  static constexpr std::uint32_t kNothing = 0xFFFF'FFFFU;  ///< above every key
  using Shared = RowShared<kThreads, kBounded>;
  using Bins = BinsByWidth<kBins>;

  Shared& shared;
  const float* row = nullptr;
  std::uint32_t n = 0;
  std::uint32_t first = 0;      ///< column of this thread's first score
  std::uint32_t of_thread = 0;  ///< columns of a thread, at least
  float score[kItems];          ///< NaN behind the row

  /// Needs no scores yet.
  __device__ explicit RowSelection(Shared& memory) : shared(memory) {
    clear(shared.counts);
    clear(shared.chosen);
    if (threadIdx.x == 0) shared.listed = 0, shared.reaching = 0;
  }
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }
  template <class T>
  __device__ static void clear(T& memory) {
    static_assert(sizeof(T) % 16 == 0);
    auto* const words = reinterpret_cast<uint4*>(&memory);
    for (auto i = threadIdx.x; i < sizeof(T) / 16; i += kThreads) words[i] = make_uint4(0, 0, 0, 0);
  }

  __device__ bool is_long() const { return kBounded && of_thread > kDirect; }
  /// The column of the four scores from item i on.
  __device__ std::uint32_t column_of(std::uint32_t i) const { return first + (is_long() ? i * kThreads : i); }

  /// Loads a row of `columns` scores, at most kThreads times kItems.
  __device__ void load(const float* scores, std::uint32_t columns) {
    row = scores, n = columns;
    of_thread = ((n + kThreads - 1) / kThreads + 3) / 4 * 4;
    first = threadIdx.x * (is_long() ? 4 : of_thread);
    const std::uint32_t end = is_long() ? n : min(n, first + of_thread);
    const bool aligned = reinterpret_cast<std::uintptr_t>(row) % 16 == 0;
#pragma unroll
    for (std::uint32_t i = 0; i < kItems; i += 4) {
      const std::uint32_t at = column_of(i);
      float4 four = make_float4(NAN, NAN, NAN, NAN);
      if (aligned && at + 4 <= end) {
        four = __ldg(reinterpret_cast<const float4*>(row + at));
      } else {
        if (at < end) four.x = __ldg(row + at);
        if (at + 1 < end) four.y = __ldg(row + at + 1);
        if (at + 2 < end) four.z = __ldg(row + at + 2);
        if (at + 3 < end) four.w = __ldg(row + at + 3);
      }
      score[i] = four.x, score[i + 1] = four.y, score[i + 2] = four.z, score[i + 3] = four.w;
    }
  }

  /// The bins between the smallest and the largest of what the block's threads have. Contains a barrier.
  __device__ Bins bins_between(float smallest, float largest) {
    const std::uint32_t low = __reduce_min_sync(kAll, key_of(__float_as_uint(smallest)));
    const std::uint32_t high = __reduce_max_sync(kAll, key_of(__float_as_uint(largest)));
    if (lane() == 0) shared.extremes.low[warp()] = low, shared.extremes.high[warp()] = high;
    __syncthreads();
    return {__reduce_min_sync(kAll, lane() < kWarps ? shared.extremes.low[lane()] : kNothing),
            __reduce_max_sync(kAll, lane() < kWarps ? shared.extremes.high[lane()] : 0U)};
  }
  /// The bin of the k-th largest that was counted. Contains two barriers.
  __device__ Digit find(const BinCounts& counts, std::uint32_t k) {
    __syncthreads();
    if (warp() == 0) {
      const Digit digit = counts.find(k);
      if (lane() == 0) shared.found = digit;
    }
    __syncthreads();
    return shared.found;
  }

  /// Calls put(place, column) for the k columns of the largest scores, places and columns ascending; 0 < k < n. False,
  /// with nothing put, where bins do not tell: scores that are not finite or all alike, or too many in one bin. Another
  /// barrier comes before shared memory may be used for something else.
  template <class Put>
  __device__ bool run(std::uint32_t k, Put&& put) {
    if constexpr (kBounded) {
      if (is_long()) {
        if (!mark_bounded(k)) return false;
        write(put);
        return true;
      }
    }
    float low = INFINITY;
    float high = -INFINITY;
    float own[kDirect];
#pragma unroll
    for (int i = 0; i < kDirect; ++i) own[i] = score[i], low = fminf(low, own[i]), high = fmaxf(high, own[i]);
    if (!mark(
            bins_between(low, high), own, [&](std::uint32_t i) { return first + i; }, k))
      return false;
    write(put);
    return true;
  }

  /// Marks the columns of the k largest among the scores that reach a bound.
  __device__ bool mark_bounded(std::uint32_t k) {
    constexpr int kOf = kItems / kGroups;
    // How many groups and pairs of groups have scores, those of fewer than four not counted.
    const std::uint32_t rounds = n / (4 * kThreads);
    const std::uint32_t further = n % (4 * kThreads) / 4;  // threads that have four more
    const auto groups_of = [](std::uint32_t fours) { return (4 * fours + kOf - 1) / kOf; };
    const auto all_have = [&](std::uint32_t before, std::uint32_t behind) {
      return before * kThreads + (behind - before) * further;
    };
    const std::uint32_t before = groups_of(rounds);
    const std::uint32_t behind = groups_of(rounds + 1);
    const bool pairs = 2 * k <= all_have((before + 1) / 2, (behind + 1) / 2);
    if (!pairs && 2 * k > all_have(before, behind)) return false;
    float largest[kGroups];  // -inf of a group without finite scores
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      largest[g] = -INFINITY;
#pragma unroll
      for (int i = 0; i < kOf; ++i) largest[g] = fmaxf(largest[g], score[g * kOf + i]);
    }
    if (pairs) {
#pragma unroll
      for (int g = 0; g < kGroups; g += 2) largest[g] = fmaxf(largest[g], largest[g + 1]), largest[g + 1] = -INFINITY;
    }
    float low = INFINITY;
    float high = -INFINITY;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (largest[g] > -INFINITY) low = fminf(low, largest[g]);
      high = fmaxf(high, largest[g]);
    }
    const Bins bins = bins_between(low, high);
    if (!bins.usable()) return false;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (largest[g] > -INFINITY) shared.counts[1].add(bins.of(largest[g]));
    }
    const Digit group = find(shared.counts[1], k);
    if (group.inside == 0) return false;
    const float bound = bins.reached_by(group.bin);
    std::uint32_t reach = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) reach |= score[i] >= bound ? 1U << i : 0U;
    for (std::uint32_t place = place_of(reach); reach != 0 && place < kReaching; reach &= reach - 1, ++place) {
      const auto i = static_cast<std::uint32_t>(__ffs(static_cast<int>(reach)) - 1);
      const std::uint32_t column = column_of(i / 4 * 4) + i % 4;
      shared.scores[place] = __ldg(row + column);
      shared.columns[place] = column;
    }
    __syncthreads();
    const std::uint32_t all = shared.reaching;
    if (all > kReaching || all < k) return false;
    constexpr int kReach = kReaching / kThreads;
    float own[kReach];
#pragma unroll
    for (int i = 0; i < kReach; ++i) {
      const std::uint32_t at = threadIdx.x + i * kThreads;
      own[i] = at < all ? shared.scores[at] : NAN;
    }
    return mark(
        {key_of(__float_as_uint(bound)), bins.highest}, own,
        [&](std::uint32_t i) { return shared.columns[threadIdx.x + i * kThreads]; }, k);
  }
  /// A place among the scores that reach the bound for the first of those that this thread has marked.
  __device__ std::uint32_t place_of(std::uint32_t marks) {
    const auto count = static_cast<std::uint32_t>(__popc(marks));
    std::uint32_t all = 0;
    std::uint32_t place = before_in_warp(count, &all);
    std::uint32_t begin = 0;
    if (lane() == 0) begin = atomicAdd(&shared.reaching, all);
    return place + __shfl_sync(kAll, begin, 0);
  }
  /// The sum of the counts, up to 32 each, of the lanes before this one, and of all.
  __device__ static std::uint32_t before_in_warp(std::uint32_t count, std::uint32_t* all) {
    const unsigned left = (1U << lane()) - 1U;
    const unsigned bits = __reduce_or_sync(kAll, count);
    std::uint32_t before = 0;
    *all = 0;
    for (int bit = 0; bits >> bit != 0; ++bit) {
      const unsigned lanes = __ballot_sync(kAll, (count >> bit & 1U) != 0U);
      before += static_cast<std::uint32_t>(__popc(lanes & left)) << bit;
      *all += static_cast<std::uint32_t>(__popc(lanes)) << bit;
    }
    return before;
  }

  /// Marks the columns of the k largest candidates; what is NaN is none. column(i): of this thread's i-th. Of equal
  /// scores those with the lowest columns. Ends with a barrier.
  template <int kCandidates, class Column>
  __device__ bool mark(const Bins& bins, const float (&own)[kCandidates], Column&& column, std::uint32_t k) {
    if (!bins.usable()) return false;
    std::uint32_t bin[kCandidates];
#pragma unroll
    for (int i = 0; i < kCandidates; ++i) {
      bin[i] = bins.of(own[i]);
      if (own[i] == own[i]) shared.counts[0].add(bin[i]);
    }
    const Digit digit = find(shared.counts[0], k);
    if (digit.inside == 0 || digit.inside > kListed) return false;
#pragma unroll
    for (int i = 0; i < kCandidates; ++i) {
      if (own[i] != own[i] || bin[i] < digit.bin) continue;
      const std::uint32_t of = column(i);
      if (bin[i] > digit.bin) {
        choose(of);
      } else {
        const std::uint32_t at = atomicAdd(&shared.listed, 1U);
        shared.list[at] = own[i];
        shared.list_columns[at] = of;
      }
    }
    __syncthreads();
    if (threadIdx.x < digit.inside) {
      const float self = shared.list[threadIdx.x];
      const std::uint32_t of = shared.list_columns[threadIdx.x];
      std::uint32_t above = digit.above;
      for (std::uint32_t i = 0; i < digit.inside; ++i) {
        const float other = shared.list[i];
        above += other > self || (other == self && shared.list_columns[i] < of) ? 1 : 0;
      }
      if (above < k) choose(of);
    }
    __syncthreads();
    return true;
  }
  __device__ void choose(std::uint32_t column) { atomicOr(&shared.chosen[column / 32], 1U << column % 32); }

  /// Puts the marked columns. Contains a barrier.
  template <class Put>
  __device__ void write(Put&& put) {
    const int log = of_thread <= 4 ? 2 : of_thread <= 8 ? 3 : of_thread <= 16 ? 4 : 5;
    const std::uint32_t begin = threadIdx.x << log;
    std::uint32_t marks = begin < n ? shared.chosen[begin / 32] >> begin % 32 : 0U;
    if (log < 5) marks &= (1U << (1 << log)) - 1U;
    std::uint32_t all = 0;
    std::uint32_t place = before_in_warp(static_cast<std::uint32_t>(__popc(marks)), &all);
    if (lane() == 0) shared.of_warp[warp()] = all;
    __syncthreads();
    place += __reduce_add_sync(kAll, lane() < warp() ? shared.of_warp[lane()] : 0U);
    for (; marks != 0; marks &= marks - 1, ++place)
      put(place, static_cast<std::int32_t>(begin + static_cast<std::uint32_t>(__ffs(static_cast<int>(marks)) - 1)));
  }
};

}  // namespace smla::topk
