#pragma once

#include <cstdint>

#include "ops/topk/bins_by_width.cuh"
#include "ops/topk/topk_selection.cuh"

namespace smla::topk {

// One block selects from a row of scores that its registers hold. Such a call is a chain of waits, so it has few
// barriers: what one warp could find for all of them each warp finds for itself.
//
// Scores are counted in bins of equal width. The bin of the k-th largest has few of them, which are ranked; those of
// larger bins are chosen. Of a row of more than kDirect scores a thread, the largest scores of groups are counted
// first: as k groups have one, the k-th largest of these is a bound that at least k scores reach and few others do
// (docs/kernels/topk.md).

constexpr int kCoarse = 64;                ///< runs of bins with a count of their own
constexpr int kFine = kBins / kCoarse;     ///< bins of a run
constexpr int kGroups = 4;                 ///< of a thread's scores
constexpr std::uint32_t kListed = 64;      ///< most scores in the bin of the k-th
constexpr std::uint32_t kReaching = 2048;  ///< most scores that reach the bound
static_assert(kFine == 32 && kCoarse == 64);

/// How many scores each bin has.
struct BinCounts {
  alignas(16) std::uint32_t fine[kBins];
  alignas(16) std::uint32_t coarse[kCoarse];

  __device__ void add(std::uint32_t bin) {
    atomicAdd(&fine[bin], 1U);
    atomicAdd(&coarse[bin / kFine], 1U);
  }
  /// The bin of the k-th largest, by one warp. `inside` is 0 where fewer than k were counted.
  __device__ Digit find(std::uint32_t k) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const uint2 pair = *reinterpret_cast<const uint2*>(coarse + kCoarse - 2 - 2 * lane);  // lane 0 has the top two
    const std::uint32_t above_pair = before_lane(pair.x + pair.y);
    const bool in_upper = k <= above_pair + pair.y;
    const unsigned holder = __ballot_sync(kAll, above_pair < k && k <= above_pair + pair.x + pair.y);
    if (holder == 0) return {};
    const int from = __ffs(static_cast<int>(holder)) - 1;
    const std::uint32_t above_run = __shfl_sync(kAll, in_upper ? above_pair : above_pair + pair.y, from);
    const bool upper = __shfl_sync(kAll, static_cast<int>(in_upper), from) != 0;
    const std::uint32_t run = static_cast<std::uint32_t>(kCoarse - 1 - 2 * from - (upper ? 0 : 1)) * kFine;
    const std::uint32_t own = fine[run + kFine - 1 - lane];
    const std::uint32_t above = above_run + before_lane(own);
    const unsigned in_run = __ballot_sync(kAll, above < k && k <= above + own);
    if (in_run == 0) return {};
    const int last = __ffs(static_cast<int>(in_run)) - 1;
    return {run + kFine - 1 - last, __shfl_sync(kAll, above, last), __shfl_sync(kAll, own, last)};
  }

 private:
  __device__ static std::uint32_t before_lane(std::uint32_t mine) {
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
  BinCounts counts[1 + kBounded];  ///< of scores, of groups' largest scores
  Extremes<kThreads / 32> extremes;
  std::uint32_t of_warp[2][kThreads / 32];  ///< scores of larger bins, scores that reach the bound
  std::uint32_t listed;
  uint2 list[kListed];                           ///< of the k-th score's bin: key, and number of the score
  std::uint32_t of_list[kListed];                ///< their numbers, kNone for those that are not chosen
  std::uint32_t reach[kBounded ? kThreads : 1];  ///< a bit for each column: whether its score reaches the bound
  std::uint32_t keys[kBounded ? kReaching : 1];  ///< of these, columns ascending
  std::uint32_t columns[kBounded ? kReaching : 1];
};

/// Of a row of up to kDirect scores a thread each thread has consecutive ones, of a longer row four consecutive ones of
/// each 4 kThreads.
template <int kThreads, int kItems, int kDirect>
struct RowSelection {
  static constexpr bool kBounded = kItems > kDirect;
  static_assert(kItems % 4 == 0 && kItems <= 32 && kDirect % 4 == 0 && kDirect <= kItems);
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kReach = kReaching / kThreads;  ///< of a thread
  static constexpr std::uint32_t kNone = 0xFFFF'FFFFU;

  using Shared = RowShared<kThreads, kBounded>;

  Shared& shared;
  const float* row = nullptr;
  std::uint32_t first = 0;  ///< column of this thread's first score
  std::uint32_t mine = 0;   ///< how many it has of a row that is not long
  std::uint32_t of_thread = 0;
  std::uint32_t n = 0;
  std::uint32_t key[kItems];  ///< scores until run() makes keys of them

  /// Needs no scores yet.
  __device__ explicit RowSelection(Shared& memory) : shared(memory) {
    auto* words = reinterpret_cast<uint4*>(shared.counts);
    for (int i = static_cast<int>(threadIdx.x); i < static_cast<int>(sizeof(shared.counts) / 16); i += kThreads)
      words[i] = make_uint4(0, 0, 0, 0);
    if (threadIdx.x == 0) shared.listed = 0;
    if constexpr (kBounded) shared.reach[threadIdx.x] = 0;
  }
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }

  __device__ bool long_row() const { return kBounded && of_thread > kDirect; }
  /// The column of the four scores from item i on.
  __device__ std::uint32_t column_of(std::uint32_t i) const { return first + (long_row() ? i * kThreads : i); }

  /// Loads a row of `items` scores, at most kThreads times kItems.
  __device__ void load(const float* scores, std::uint32_t items) {
    row = scores, n = items;
    of_thread = ((n + kThreads - 1) / kThreads + 3) / 4 * 4;
    first = threadIdx.x * (long_row() ? 4 : of_thread);
    mine = first < n ? min(n - first, of_thread) : 0U;
    const std::uint32_t end = long_row() ? n : first + mine;
    const bool aligned = reinterpret_cast<std::uintptr_t>(row) % 16 == 0;
#pragma unroll
    for (std::uint32_t i = 0; i < kItems; i += 4) {
      const std::uint32_t at = column_of(i);
      uint4 four = make_uint4(kNone, kNone, kNone, kNone);  // NaN
      if (aligned && at + 4 <= end) {
        four = __ldg(reinterpret_cast<const uint4*>(row + at));
      } else {
        if (at < end) four.x = __float_as_uint(__ldg(row + at));
        if (at + 1 < end) four.y = __float_as_uint(__ldg(row + at + 1));
        if (at + 2 < end) four.z = __float_as_uint(__ldg(row + at + 2));
        if (at + 3 < end) four.w = __float_as_uint(__ldg(row + at + 3));
      }
      key[i] = four.x, key[i + 1] = four.y, key[i + 2] = four.z, key[i + 3] = four.w;
    }
  }

  /// The bins between the block's smallest and largest of what its threads have. Contains a barrier.
  __device__ BinsByWidth<kBins> bins_between(std::uint32_t low, std::uint32_t high) {
    low = __reduce_min_sync(kAll, low), high = __reduce_max_sync(kAll, high);
    if (lane() == 0) shared.extremes.low[warp()] = low, shared.extremes.high[warp()] = high;
    __syncthreads();
    low = __reduce_min_sync(kAll, lane() < kWarps ? shared.extremes.low[lane()] : kNone);
    high = __reduce_max_sync(kAll, lane() < kWarps ? shared.extremes.high[lane()] : 0U);
    return {low, high};
  }
  /// How many of the warp's marked items come before this thread's, which has up to kMost. After a barrier
  /// of_warps_before() tells how many warps before this one have marked.
  template <int kMost>
  __device__ std::uint32_t before_in_warp(std::uint32_t marks, int use) {
    const auto count = static_cast<std::uint32_t>(__popc(marks));
    const unsigned left = (1U << lane()) - 1U;
    std::uint32_t before = 0;
    std::uint32_t all = 0;
#pragma unroll
    for (int bit = 0; kMost >> bit != 0; ++bit) {
      const unsigned lanes = __ballot_sync(kAll, (count >> bit & 1U) != 0U);
      before += static_cast<std::uint32_t>(__popc(lanes & left)) << bit;
      all += static_cast<std::uint32_t>(__popc(lanes)) << bit;
    }
    if (lane() == 0) shared.of_warp[use][warp()] = all;
    return before;
  }
  __device__ std::uint32_t of_warps_before(int use) const {
    return __reduce_add_sync(kAll, lane() < warp() ? shared.of_warp[use][lane()] : 0U);
  }
  __device__ std::uint32_t of_all_warps(int use) const {
    return __reduce_add_sync(kAll, lane() < kWarps ? shared.of_warp[use][lane()] : 0U);
  }

  /// Calls put(place, column) for the k columns of the largest scores, places and columns ascending; 0 < k < n. False,
  /// with nothing put, where bins do not tell: scores that are not finite or all alike, or too many in one bin. Another
  /// barrier comes before shared memory may be used for something else.
  template <class Put>
  __device__ bool run(std::uint32_t k, Put&& put) {
#pragma unroll
    for (std::uint32_t i = 0; i < kItems; ++i) key[i] = key_of(key[i]);
    if constexpr (kBounded) {
      if (of_thread > kDirect) return run_bounded(k, put);
    }
    std::uint32_t low = kNone;
    std::uint32_t high = 0;
#pragma unroll
    for (std::uint32_t i = 0; i < kDirect; ++i) {
      if (i < mine) low = min(low, key[i]), high = max(high, key[i]);
    }
    const BinsByWidth<kBins> bins = bins_between(low, high);
    if (!bins.usable()) return false;
    std::uint32_t own[kDirect];
#pragma unroll
    for (int i = 0; i < kDirect; ++i) own[i] = key[i];
    return choose(bins, own, first, mine, k,
                  [&](std::uint32_t place, std::uint32_t number) { put(place, static_cast<std::int32_t>(number)); });
  }

  /// The same of the scores that reach a bound.
  template <class Put>
  __device__ bool run_bounded(std::uint32_t k, Put&& put) {
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
    std::uint32_t largest[kGroups];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      largest[g] = key[g * kOf];
#pragma unroll
      for (int i = 1; i < kOf; ++i) largest[g] = max(largest[g], key[g * kOf + i]);
    }
    // What this thread does not have is 0, as NaN is, and so is a group without numbers.
    if (pairs) {
#pragma unroll
      for (int g = 0; g < kGroups; g += 2) largest[g] = max(largest[g], largest[g + 1]), largest[g + 1] = 0;
    }
    std::uint32_t low = kNone;
    std::uint32_t high = 0;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (largest[g] != 0) low = min(low, largest[g]);
      high = max(high, largest[g]);
    }
    const BinsByWidth<kBins> bins = bins_between(low, high);
    if (!bins.usable()) return false;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (largest[g] != 0) shared.counts[1].add(bins.of(largest[g]));
    }
    __syncthreads();
    const Digit group = shared.counts[1].find(k);
    if (group.inside == 0) return false;
    const std::uint32_t bound = key_of(__float_as_uint(bins.reached_by(group.bin)));
#pragma unroll
    for (std::uint32_t i = 0; i < kItems; i += 4) {
      std::uint32_t four = 0;
#pragma unroll
      for (std::uint32_t j = 0; j < 4; ++j) four |= key[i + j] >= bound ? 1U << j : 0U;
      const std::uint32_t at = column_of(i);
      if (four != 0) atomicOr(&shared.reach[at / 32], four << at % 32);
    }
    __syncthreads();
    std::uint32_t reach = shared.reach[threadIdx.x];
    std::uint32_t place = before_in_warp<32>(reach, 1);
    __syncthreads();
    place += of_warps_before(1);
    const std::uint32_t all = of_all_warps(1);
    if (all > kReaching || all < k) return false;
    for (; reach != 0; reach &= reach - 1, ++place) {
      const std::uint32_t column = 32 * threadIdx.x + static_cast<std::uint32_t>(__ffs(static_cast<int>(reach)) - 1);
      shared.keys[place] = key_of(__float_as_uint(__ldg(row + column)));
      shared.columns[place] = column;
    }
    __syncthreads();
    const std::uint32_t begin = threadIdx.x * kReach;
    std::uint32_t own[kReach];
#pragma unroll
    for (std::uint32_t i = 0; i < kReach; ++i) own[i] = begin + i < all ? shared.keys[begin + i] : 0U;
    const BinsByWidth<kBins> of_reaching(bound, bins.highest);
    if (!of_reaching.usable()) return false;
    return choose(
        of_reaching, own, begin, begin < all ? min(all - begin, std::uint32_t{kReach}) : 0U, k,
        [&](std::uint32_t at, std::uint32_t number) { put(at, static_cast<std::int32_t>(shared.columns[number])); });
  }

  /// Chooses k of the block's scores, of which a thread has `held` from number `begin` on. Contains three barriers.
  template <int kOwn, class Put>
  __device__ bool choose(const BinsByWidth<kBins>& bins, const std::uint32_t (&own)[kOwn], std::uint32_t begin,
                         std::uint32_t held, std::uint32_t k, Put&& put) {
    std::uint32_t bin[kOwn];
#pragma unroll
    for (std::uint32_t i = 0; i < kOwn; ++i) {
      bin[i] = i < held ? bins.of(own[i]) : 0U;
      if (i < held) shared.counts[0].add(bin[i]);
    }
    __syncthreads();
    const Digit digit = shared.counts[0].find(k);
    if (digit.inside == 0 || digit.inside > kListed) return false;
    std::uint32_t chosen = 0;
#pragma unroll
    for (std::uint32_t i = 0; i < kOwn; ++i) {
      if (i >= held) continue;
      chosen |= bin[i] > digit.bin ? 1U << i : 0U;
      if (bin[i] == digit.bin) shared.list[atomicAdd(&shared.listed, 1U)] = make_uint2(own[i], begin + i);
    }
    std::uint32_t place = before_in_warp<kOwn>(chosen, 0);
    __syncthreads();
    // Of equal scores those with the lowest numbers are chosen.
    if (threadIdx.x < digit.inside) {
      const uint2 self = shared.list[threadIdx.x];
      std::uint32_t above = digit.above;
      for (std::uint32_t i = 0; i < digit.inside; ++i) {
        const uint2 other = shared.list[i];
        above += other.x > self.x || (other.x == self.x && other.y < self.y) ? 1 : 0;
      }
      shared.of_list[threadIdx.x] = above < k ? self.y : kNone;
    }
    place += of_warps_before(0);
    __syncthreads();
    for (std::uint32_t i = 0; i < digit.inside; ++i) {
      const std::uint32_t number = shared.of_list[i];
      place += number < begin ? 1 : 0;
      chosen |= number - begin < held ? 1U << (number - begin) : 0U;
    }
    for (; chosen != 0; chosen &= chosen - 1, ++place)
      put(place, begin + static_cast<std::uint32_t>(__ffs(static_cast<int>(chosen)) - 1));
    return true;
  }
};

}  // namespace smla::topk
