#pragma once

#include <cstdint>

#include "device/ptx/cluster_sm90.cuh"
#include "device/ptx/shared.cuh"
#include "ops/topk/topk_call.cuh"
#include "ops/topk/topk_selection.cuh"

namespace smla::topk::sm90 {

// Exact top-k of a few rows by a cluster of blocks: a block has consecutive columns of all of them, as keys (topk's
// key_of()) in its shared memory. The k-th largest key is found digit by digit. For each digit a block counts its own
// keys; then, in all blocks alike, a warp adds up what every block counted, first of groups of bins, then of the bins
// of one group. So a digit takes one barrier of the cluster, and all rows share it.

constexpr int kMostTogether = 16;  ///< blocks of a cluster
constexpr int kSelectRows = 4;     ///< rows of a cluster
constexpr int kBinGroup = 32;      ///< bins of a group
constexpr int kBinGroups = kBins / kBinGroup;
constexpr int kMostChosen = kBins;  ///< columns that a block can choose of a row: what fits where its counters were
constexpr int kDigits = 4;          ///< at most

/// The first digit of a key: of magnitudes from 2^-16 to 2^16 the exponent and five bits of the fraction; smaller ones
/// share a bin of each sign, larger ones likewise. Scores are seldom outside, and eight times as many bins as the
/// leading bits would give keep atomics off each other.
struct FirstDigit {
  static constexpr int kShift = 18;  ///< bits of a magnitude that are left out
  static constexpr std::uint32_t kLowest = (127 - 16) << (23 - kShift);
  static constexpr std::uint32_t kHalf = kBins / 2;
  static constexpr std::uint32_t kZero = 0x8000'0000U;  ///< the key of 0; those above are of positive scores

  __device__ static std::uint32_t bin(std::uint32_t key) {
    const bool positive = key >= kZero;
    const std::uint32_t magnitude = (positive ? key - kZero : kZero - key) >> kShift;
    const std::uint32_t at = min(magnitude - min(magnitude, kLowest), kHalf - 1);
    return positive ? kHalf + at : kHalf - 1 - at;
  }
  /// The smallest key of a bin.
  __device__ static std::uint32_t first_key(std::uint32_t bin) {
    if (bin == kHalf) return kZero;
    if (bin > kHalf) return kZero + ((bin - kHalf + kLowest) << kShift);
    return bin == 0 ? 0U : kZero - ((kHalf - bin + kLowest) << kShift) + 1;
  }
};

/// A row on the way to its k-th largest key.
struct RowSearch {
  std::uint32_t length;  ///< columns
  std::uint32_t low;     ///< the k-th key is one of those from `low` to low + more
  std::uint32_t more;
  std::uint32_t left;    ///< how many of these are chosen
  std::uint32_t key;     ///< when it is done: keys above it are chosen,
  std::uint32_t ties;    ///< and so many of those that equal it, lower columns first
  std::uint32_t before;  ///< keys that equal it in the blocks before this one
  bool all;              ///< every column is chosen
  bool done;
};

/// What blocks tell each other, and warps of a block.
struct SelectShared {
  RowSearch row[kSelectRows];
  std::int32_t slot_request[kSelectRows];            ///< by whose table a row's slots are found
  std::uint32_t groups[2][kSelectRows][kBinGroups];  ///< counts of bins' groups, of two digits; read by other blocks
  std::uint32_t chosen[kMostTogether][kSelectRows];  ///< by block: columns chosen, and in the upper half their slots
  std::uint32_t over[32], same[32], slots[32];       ///< by warp
};

/// Chooses from the rows of a cluster with a block of kThreads in each of its blocks. All of them must have started.
template <int kThreads>
struct ClusterSelect {
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kMine = kBins / kThreads;  ///< bins of a thread
  static_assert(kMine == 4, "a thread reads its bins at once, and eight have a group");

  SelectShared& s;
  std::uint32_t* counts;  ///< [2][rows][kBins] of two digits; then a row's chosen columns in one of the two
  std::uint32_t* keys;    ///< [rows][capacity]; then the slots of the chosen columns
  std::uint32_t capacity;
  std::uint32_t begin;  ///< the block's first column
  std::uint32_t span;   ///< its columns, less where a row ends
  int rows;
  int rank;
  int together;

  __device__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }
  __device__ static unsigned lane() { return threadIdx.x % 32; }
  /// Columns of a row that the block has.
  __device__ std::uint32_t mine(int row) const {
    const std::uint32_t length = s.row[row].length;
    return length > begin ? min(length - begin, span) : 0U;
  }
  __device__ std::uint32_t* row_counts(int digit, int row) const { return counts + (digit % 2 * rows + row) * kBins; }

  /// Sets counters to zero; a barrier must follow.
  __device__ void clear(int digit) const {
    for (int i = static_cast<int>(threadIdx.x) * 4; i < rows * kBins; i += kThreads * 4)
      *reinterpret_cast<uint4*>(row_counts(digit, 0) + i) = uint4{};
  }

  /// Finds every row's k-th largest key. Returns the number of the last digit that was counted.
  __device__ int search() const {
    for (int digit = 0;; ++digit) {
      bool more = false;
      for (int r = 0; r < rows; ++r) {
        if (s.row[r].done) continue;
        more = true;
        tally(digit, r);
      }
      if (!more) return max(digit - 1, 0);
      __syncthreads();
      for (int r = 0; r < rows; ++r) {
        if (!s.row[r].done) add_groups(digit, r);
      }
      device::cluster_arrive();
      device::cluster_wait();
      if (warp() < rows && !s.row[warp()].done) find(digit, warp());
      // The other blocks have read the counters of the digit before: they have arrived at a barrier since.
      if (digit > 0) clear(digit - 1);
      __syncthreads();
      if (digit == kDigits - 1) return digit;
    }
  }

  /// How far keys are shifted to tell the bins of a digit that splits `more` + 1 keys.
  __device__ static int shift_of(std::uint32_t more) { return max(32 - kBits - __clz(static_cast<int>(more)), 0); }

  /// Counts the next digit of those of the block's keys that may be the k-th.
  __device__ void tally(int digit, int row) const {
    const std::uint32_t low = s.row[row].low;
    const std::uint32_t more = s.row[row].more;
    const int shift = shift_of(more);
    const std::uint32_t* from = keys + row * capacity;
    std::uint32_t* to = row_counts(digit, row);
    const std::uint32_t n = mine(row);
    for (std::uint32_t i = threadIdx.x; i < n; i += kThreads) {
      const std::uint32_t key = from[i];
      if (digit == 0) {
        atomicAdd(to + FirstDigit::bin(key), 1U);
      } else if (key - low <= more) {
        atomicAdd(to + (key - low >> shift), 1U);
      }
    }
  }

  __device__ void add_groups(int digit, int row) const {
    const uint4 four = *reinterpret_cast<const uint4*>(row_counts(digit, row) + 4 * threadIdx.x);
    std::uint32_t sum = four.x + four.y + four.z + four.w;
#pragma unroll
    for (int i = 1; i < kBinGroup / kMine; i *= 2) sum += __shfl_xor_sync(kAll, sum, i);
    if (lane() % (kBinGroup / kMine) == 0) s.groups[digit % 2][row][threadIdx.x / (kBinGroup / kMine)] = sum;
  }

  /// The sum over the lanes above this one.
  __device__ static std::uint32_t above(std::uint32_t mine) {
    std::uint32_t sum = mine;
#pragma unroll
    for (int i = 1; i < 32; i *= 2) {
      const std::uint32_t right = __shfl_down_sync(kAll, sum, i);
      if (lane() + i < 32) sum += right;
    }
    return sum - mine;
  }

  /// Takes a row's next digit from what all blocks have counted, with one warp.
  __device__ void find(int digit, int row) const {
    RowSearch& search = s.row[row];
    const std::uint32_t left = search.left;
    // All loads before the first sum: each takes a way to another multiprocessor and back.
    const std::uint32_t groups = device::shared_address(&s.groups[digit % 2][row][2 * lane()]);
    uint2 pairs[kMostTogether];  // groups 2 lane and 2 lane + 1
#pragma unroll
    for (int b = 0; b < kMostTogether; ++b)
      pairs[b] = b < together ? device::ld_shared_cluster_v2(device::place_in_block(groups, b)) : uint2{};
    uint2 pair{};
#pragma unroll
    for (const uint2& more : pairs) pair.x += more.x, pair.y += more.y;
    const std::uint32_t over_pair = above(pair.x + pair.y);
    const bool upper = over_pair < left && left <= over_pair + pair.y;
    const bool lower = over_pair + pair.y < left && left <= over_pair + pair.y + pair.x;
    const int found = __ffs(static_cast<int>(__ballot_sync(kAll, upper || lower))) - 1;
    const std::uint32_t group = __shfl_sync(kAll, 2 * lane() + (upper ? 1 : 0), found);
    const std::uint32_t over_group = __shfl_sync(kAll, over_pair + (lower ? pair.y : 0), found);

    const std::uint32_t bins = device::shared_address(row_counts(digit, row) + group * kBinGroup + lane());
    std::uint32_t counted[kMostTogether];
#pragma unroll
    for (int b = 0; b < kMostTogether; ++b)
      counted[b] = b < together ? device::ld_shared_cluster_u32(device::place_in_block(bins, b)) : 0U;
    std::uint32_t count = 0;
    std::uint32_t before = 0;
#pragma unroll
    for (int b = 0; b < kMostTogether; ++b) {
      before += b < rank ? counted[b] : 0U;
      count += counted[b];
    }
    const std::uint32_t over = over_group + above(count);
    if (over < left && left <= over + count) {  // one lane
      const std::uint32_t bin = group * kBinGroup + lane();
      const int shift = shift_of(search.more);
      std::uint32_t low = search.low + (bin << shift);
      std::uint32_t more = min((1U << shift) - 1, search.more - (bin << shift));
      if (digit == 0) {
        low = FirstDigit::first_key(bin);
        more = bin == kBins - 1 ? 0xFFFF'FFFFU - low : FirstDigit::first_key(bin + 1) - 1 - low;
      }
      search.low = low;
      search.more = more;
      search.left = left - over;
      if (count == left - over) {
        search.key = low - 1;  // all of these are chosen, but not all columns: there is a smaller key
        search.ties = 0;
        search.done = true;
      } else if (more == 0) {
        search.key = low;
        search.ties = left - over;
        search.before = before;
        search.done = true;
      }
    }
  }

  /// A row's warps: how many there are, and the number of the calling one.
  struct Team {
    int row;
    int warps;
    int warp;
    __device__ int first() const { return row * warps; }
    /// The items of the calling warp, of n that lie in one order.
    __device__ uint2 share(std::uint32_t n) const {
      const std::uint32_t each = (n + 32 * warps - 1) / (32 * warps) * 32;
      const std::uint32_t begin = min(each * warp, n);
      return {begin, min(begin + each, n)};
    }
  };
  __device__ Team team() const {
    const int warps = rows == 1 ? kWarps : rows == 2 ? kWarps / 2 : kWarps / kSelectRows;
    return {warp() / warps, warps, warp() % warps};
  }
  static constexpr int kBatch = 8;  ///< keys that a lane loads at once
  /// Which of a lane's keys are chosen for certain, and which while there are ties left: a bit for each of a batch.
  struct KeyBits {
    std::uint32_t over = 0;
    std::uint32_t same = 0;
  };
  /// Of the keys `first`, first + 32, ... below `end`.
  __device__ static KeyBits key_bits(const RowSearch& row, const std::uint32_t* row_keys, std::uint32_t first,
                                     std::uint32_t end) {
    KeyBits bits;
    std::uint32_t key[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) key[i] = !row.all && first + 32 * i < end ? row_keys[first + 32 * i] : 0U;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const bool there = first + 32 * i < end;
      bits.over |= there && (row.all || key[i] > row.key) ? 1U << i : 0U;
      bits.same |= there && !row.all && row.ties != 0 && key[i] == row.key ? 1U << i : 0U;
    }
    return bits;
  }

  /// Writes the chosen columns of all rows, and their slots: `first`: its first row in the call. `digit`: what
  /// search() returned.
  __device__ void write(const TopkCall& c, std::int64_t first, int digit) const {
    const Team t = team();
    const bool works = t.row < rows;
    const RowSearch row = s.row[works ? t.row : 0];
    const std::uint32_t* row_keys = keys + (works ? t.row : 0) * capacity;
    const uint2 mine_of = t.share(works ? mine(t.row) : 0U);
    std::uint32_t over = 0;
    std::uint32_t same = 0;
    for (std::uint32_t base = mine_of.x; base < mine_of.y; base += 32 * kBatch) {
      const KeyBits bits = key_bits(row, row_keys, base + lane(), mine_of.y);
      over += __popc(bits.over);
      same += __popc(bits.same);
    }
    over = __reduce_add_sync(kAll, over);
    same = __reduce_add_sync(kAll, same);
    if (lane() == 0) s.over[warp()] = over, s.same[warp()] = same;
    __syncthreads();

    // The block's list of chosen columns, in the counters that no other block reads any more.
    std::uint32_t* list = row_counts(digit + 1, works ? t.row : 0);
    const std::uint32_t ties = row.ties > row.before ? row.ties - row.before : 0U;
    std::uint32_t over_at = 0;
    std::uint32_t same_at = 0;
    std::uint32_t chosen = 0;
    if (works) {
      const bool there = lane() < static_cast<unsigned>(t.warps);
      const bool before = lane() < static_cast<unsigned>(t.warp);
      const std::uint32_t warp_over = there ? s.over[t.first() + lane()] : 0U;
      const std::uint32_t warp_same = there ? s.same[t.first() + lane()] : 0U;
      over_at = __reduce_add_sync(kAll, before ? warp_over : 0U);
      same_at = __reduce_add_sync(kAll, before ? warp_same : 0U);
      const std::uint32_t all_over = __reduce_add_sync(kAll, warp_over);
      const std::uint32_t all_same = __reduce_add_sync(kAll, warp_same);
      chosen = all_over + min(all_same, ties);
    }
    const unsigned lower = (1U << lane()) - 1;
    for (std::uint32_t base = mine_of.x; base < mine_of.y; base += 32 * kBatch) {
      const KeyBits bits = key_bits(row, row_keys, base + lane(), mine_of.y);
      // Few columns are chosen, so most lanes have nothing to write.
      for (std::uint32_t some = __reduce_or_sync(kAll, bits.over | bits.same); some != 0; some &= some - 1) {
        const int i = __ffs(static_cast<int>(some)) - 1;
        const bool one_over = (bits.over >> i & 1) != 0;
        const bool one_same = (bits.same >> i & 1) != 0;
        const unsigned overs = __ballot_sync(kAll, one_over);
        const unsigned sames = __ballot_sync(kAll, one_same);
        const std::uint32_t same_here = same_at + __popc(sames & lower);
        if (one_over || (one_same && same_here < ties))
          list[over_at + __popc(overs & lower) + min(same_here, ties)] = begin + base + 32 * i + lane();
        over_at += __popc(overs);
        same_at += __popc(sames);
      }
    }
    __syncthreads();

    // Slots of the list's columns, where the keys were.
    const bool slots = c.slots.lens != nullptr;
    std::uint32_t* slot_of = keys + (works ? t.row : 0) * capacity;
    const uint2 list_of = t.share(chosen);
    std::uint32_t alive = 0;
    if (slots && works) {
      const std::int32_t* blocks = c.slots.table.row(s.slot_request[t.row]);
      for (std::uint32_t i = list_of.x + lane(); i < list_of.y; i += 32) {
        const auto column = static_cast<std::int32_t>(list[i]);
        const std::int32_t slot = c.slots.table.index_in(c.slots.table.block_of(blocks, column), column);
        slot_of[i] = static_cast<std::uint32_t>(slot);
        alive += slot >= 0 ? 1 : 0;
      }
    }
    alive = __reduce_add_sync(kAll, alive);
    if (lane() == 0) s.slots[warp()] = alive;
    __syncthreads();
    const bool there = works && lane() < static_cast<unsigned>(t.warps);
    const std::uint32_t warp_slots = there ? s.slots[t.first() + lane()] : 0U;
    std::uint32_t slot_at = __reduce_add_sync(kAll, lane() < static_cast<unsigned>(t.warp) ? warp_slots : 0U);
    const std::uint32_t all_alive = __reduce_add_sync(kAll, warp_slots);
    if (works && t.warp == 0 && lane() < static_cast<unsigned>(together)) {
      const std::uint32_t at = device::shared_address(&s.chosen[rank][t.row]);
      device::st_shared_cluster_u32(device::place_in_block(at, lane()), chosen | all_alive << 16);
    }
    device::cluster_arrive();
    device::cluster_wait();
    if (!works) return;
    const std::uint32_t told = lane() < static_cast<unsigned>(together) ? s.chosen[lane()][t.row] : 0U;
    const std::uint32_t told_before = lane() < static_cast<unsigned>(rank) ? told : 0U;
    const std::uint32_t chosen_at = __reduce_add_sync(kAll, told_before & 0xFFFF);
    const std::uint32_t chosen_all = __reduce_add_sync(kAll, told & 0xFFFF);
    slot_at += __reduce_add_sync(kAll, told_before >> 16);
    const std::uint32_t alive_all = __reduce_add_sync(kAll, told >> 16);
    const std::int64_t out_row = first + t.row;
    std::int32_t* out = c.out(out_row);
    const auto thread = static_cast<std::uint32_t>(t.warp * 32) + lane();
    const auto threads = static_cast<std::uint32_t>(t.warps * 32);
    const auto k = static_cast<std::uint32_t>(c.k);
    for (std::uint32_t i = thread; i < chosen; i += threads) out[chosen_at + i] = static_cast<std::int32_t>(list[i]);
    for (std::uint32_t i = chosen_all + rank * threads + thread; i < k; i += together * threads) out[i] = -1;
    if (!slots) return;
    std::int32_t* to = c.slots.slots + out_row * c.slots.stride;
    for (std::uint32_t base = list_of.x; base < list_of.y; base += 32) {
      const std::uint32_t i = base + lane();
      const std::int32_t slot = i < list_of.y ? static_cast<std::int32_t>(slot_of[i]) : -1;
      const unsigned there = __ballot_sync(kAll, slot >= 0);
      if (slot >= 0) to[slot_at + __popc(there & lower)] = slot;
      slot_at += __popc(there);
    }
    for (std::uint32_t i = alive_all + rank * threads + thread; i < k; i += together * threads) to[i] = -1;
    if (rank == 0 && thread == 0)
      c.slots.lens[out_row] = c.slots.valid[out_row] ? static_cast<std::int32_t>(alive_all) : 0;
  }
};

}  // namespace smla::topk::sm90
