#pragma once

#include "device/launch_pdl.cuh"
#include "ops/topk/topk_call.cuh"
#include "ops/topk/topk_selection.cuh"
#include "ops/topk/topk_split.h"

namespace smla::topk {

// Few wide rows, each shared by several blocks (topk_split.h): one kernel counts the first digit of each part, the next
// lists the columns that can be chosen, in order, and the last block of a row to finish selects from the list. Scores
// and counts are read by plain loads, not by __ldg: the kernel before may still write them when this one starts (PDL).

constexpr int kPartThreads = 1024;  ///< threads of a block in the kernels that share a row

/// The arguments of a call whose rows are cut into parts. The workspace needs no initial values: the first kernel
/// writes all that the second reads.
struct Parts {
  TopkCall call;
  std::uint32_t parts = 1;
  std::uint32_t* digits = nullptr;   ///< [rows, parts, kDigits], how many keys begin with each digit
  std::uint32_t* groups = nullptr;   ///< [rows, parts, kGroups], how many begin with a digit of each group
  std::uint32_t* keys = nullptr;     ///< [rows, kListed]
  std::uint32_t* columns = nullptr;  ///< [rows, kListed], ascending
  std::uint32_t* arrived = nullptr;  ///< [rows], how many parts are listed
};

/// The part of a row of n > kShortRow columns that a block has.
struct Part {
  std::uint32_t number, columns, begin, end;

  __device__ Part(std::int64_t n, std::uint32_t parts)
      : number(blockIdx.x % parts),
        columns(topk_part_columns(static_cast<std::uint32_t>(n), parts)),
        begin(number * columns),
        end(min(begin + columns, static_cast<std::uint32_t>(n))) {}
};

/// Counts the first digit of every part's keys.
__global__ void __launch_bounds__(kPartThreads, 1) count_parts(const __grid_constant__ Parts p) {
  constexpr int kItems = 16;
  constexpr int kMine = TopkSplit::kDigits / kPartThreads;
  constexpr int kGroupThreads = TopkSplit::kValues / kMine;  // threads of a group, neighbours in a warp
  static_assert(kMine % 4 == 0 && 32 % kGroupThreads == 0);
  alignas(16) __shared__ std::uint32_t count[TopkSplit::kDigits];
  device::pdl_wait();
  device::pdl_trigger();
  const std::int64_t row = blockIdx.x / p.parts;
  const std::int64_t n = p.call.length(row);
  if (n <= TopkSplit::kShortRow) return;
  const Part part(n, p.parts);
  if (part.number == 0 && threadIdx.x == 0) p.arrived[row] = 0;
  if (part.begin >= n) return;

  const float* scores = p.call.scores(row);
#pragma unroll
  for (int i = 0; i < kMine; ++i) count[threadIdx.x + i * kPartThreads] = 0;
  __syncthreads();
  for (std::uint32_t base = part.begin + threadIdx.x; base < part.end; base += kItems * kPartThreads) {
    std::uint32_t key[kItems];
#pragma unroll
    for (std::uint32_t i = 0; i < kItems; ++i)
      key[i] = base + i * kPartThreads < part.end ? __float_as_uint(scores[base + i * kPartThreads]) : 0U;
#pragma unroll
    for (std::uint32_t i = 0; i < kItems; ++i) {
      if (base + i * kPartThreads < part.end) atomicAdd(&count[key_of(key[i]) >> (32 - TopkSplit::kDigitBits)], 1U);
    }
  }
  __syncthreads();

  const std::int64_t block = blockIdx.x;
  std::uint32_t* to = p.digits + block * TopkSplit::kDigits + threadIdx.x * kMine;
  std::uint32_t sum = 0;
#pragma unroll
  for (int i = 0; i < kMine; i += 4) {
    const uint4 four = *reinterpret_cast<const uint4*>(&count[threadIdx.x * kMine + i]);
    *reinterpret_cast<uint4*>(to + i) = four;
    sum += four.x + four.y + four.z + four.w;
  }
#pragma unroll
  for (int i = 1; i < kGroupThreads; i *= 2) sum += __shfl_xor_sync(kAll, sum, i);
  if (threadIdx.x % kGroupThreads == 0) p.groups[block * TopkSplit::kGroups + threadIdx.x / kGroupThreads] = sum;
}

/// Counts by bin of all parts of a row, and of the parts before this one. Used once; zeros before.
template <int kCount>
struct PartSums {
  std::uint32_t all[kCount];
  std::uint32_t before[kCount];

  __device__ void clear() {
    for (int i = static_cast<int>(threadIdx.x); i < kCount; i += kPartThreads) all[i] = 0, before[i] = 0;
  }
};

struct PartDigit {
  Digit digit;
  std::uint32_t above_before, inside_before;  ///< the same counts in the parts before this one
};

/// Finds the bin of the k-th largest key. The counts of consecutive parts are `stride` apart. Every warp finds it for
/// itself, after one barrier.
template <int kCount>
__device__ PartDigit find_digit(PartSums<kCount>& sums, const std::uint32_t* counts, int stride, std::uint32_t parts,
                                std::uint32_t part, std::uint32_t k) {
  constexpr std::uint32_t kRows = kPartThreads / kCount;
  constexpr int kMine = kCount / 32;
  const std::uint32_t bin = threadIdx.x % kCount;
  std::uint32_t all = 0;
  std::uint32_t before = 0;
#pragma unroll
  for (std::uint32_t i = 0; i < TopkSplit::kMaxParts / kRows; ++i) {
    const std::uint32_t from = threadIdx.x / kCount + i * kRows;
    const std::uint32_t count = from < parts ? counts[static_cast<std::int64_t>(from) * stride + bin] : 0U;
    all += count;
    before += from < part ? count : 0U;
  }
  if (all != 0) atomicAdd(&sums.all[bin], all);
  if (before != 0) atomicAdd(&sums.before[bin], before);
  __syncthreads();

  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int low = kCount - (lane + 1) * kMine;
  std::uint32_t mine = 0;
#pragma unroll
  for (int i = 0; i < kMine; ++i) mine += sums.all[low + i];
  std::uint32_t up_to = mine;
#pragma unroll
  for (int i = 1; i < 32; i *= 2) {
    const std::uint32_t left = __shfl_up_sync(kAll, up_to, i);
    if (lane >= i) up_to += left;
  }
  std::uint32_t above = up_to - mine;
  const int owner = __ffs(static_cast<int>(__ballot_sync(kAll, above < k && k <= up_to))) - 1;
  Digit found{};
  std::uint32_t above_before = 0;
#pragma unroll
  for (int i = kMine - 1; i >= 0; --i) {
    const std::uint32_t inside = sums.all[low + i];
    if (above < k && k <= above + inside) found = {static_cast<std::uint32_t>(low + i), above, inside};
    if (above + inside < k) above_before += sums.before[low + i];
    above += inside;
  }
  found.bin = __shfl_sync(kAll, found.bin, owner);
  found.above = __shfl_sync(kAll, found.above, owner);
  found.inside = __shfl_sync(kAll, found.inside, owner);
  return {found, __reduce_add_sync(kAll, above_before), sums.before[found.bin]};
}

/// Walks over the columns of a part in chunks: a warp holds consecutive columns, a lane every 32nd of them.
struct PartColumns {
  static constexpr std::uint32_t kItems = 8;

  const float* scores;
  const Part& part;
  std::uint32_t items;
  std::uint32_t loaded[kItems];  ///< scores of the next chunk

  __device__ PartColumns(const float* row, const Part& of)
      : scores(row), part(of), items(min(of.columns / kPartThreads, kItems)) {
    load(of.begin);
  }
  __device__ std::uint32_t first_of(std::uint32_t base) const {
    return base + threadIdx.x / 32 * (32 * items) + threadIdx.x % 32;
  }
  __device__ bool holds(std::uint32_t i, std::uint32_t first) const { return i < items && first + 32 * i < part.end; }

  __device__ void load(std::uint32_t base) {
    const std::uint32_t first = first_of(base);
#pragma unroll
    for (std::uint32_t i = 0; i < kItems; ++i)
      loaded[i] = holds(i, first) ? __float_as_uint(scores[first + 32 * i]) : 0U;
  }

  /// Lists the columns whose key begins with `digit` or a larger one, and their keys, in ascending order from place
  /// `at` on.
  __device__ void list(WarpSums<kPartThreads / 32>& sums, std::uint32_t digit, std::uint32_t at, std::uint32_t* keys,
                       std::uint32_t* columns) {
    constexpr int kShift = 32 - TopkSplit::kDigitBits;
    const std::uint32_t lane = threadIdx.x % 32;
    const unsigned left = (1U << lane) - 1U;
    int use = 0;
    for (std::uint32_t base = part.begin; base < part.end; ++use) {
      const std::uint32_t first = first_of(base);
      std::uint32_t key[kItems];
      unsigned chosen[kItems];
      std::uint32_t mine = 0;
#pragma unroll
      for (std::uint32_t i = 0; i < kItems; ++i) {
        key[i] = key_of(loaded[i]);
        chosen[i] = __ballot_sync(kAll, holds(i, first) && key[i] >> kShift >= digit);
        mine += static_cast<std::uint32_t>(__popc(chosen[i]));
      }
      base += items * kPartThreads;
      load(base);
      std::uint32_t all = 0;
      std::uint32_t place = at + sums.before(mine, use, &all);
#pragma unroll
      for (std::uint32_t i = 0; i < kItems; ++i) {
        if ((chosen[i] >> lane & 1U) != 0U) {
          const std::uint32_t to = place + static_cast<std::uint32_t>(__popc(chosen[i] & left));
          keys[to] = key[i];
          columns[to] = first + 32 * i;
        }
        place += static_cast<std::uint32_t>(__popc(chosen[i]));
      }
      at += all;
    }
  }
};

/// Lists every part; the last block of a row selects from the list. One block alone selects from a row of up to
/// kShortRow columns, and from one of which too many columns can be chosen.
__global__ void __launch_bounds__(kPartThreads, 1) select_parts(const __grid_constant__ Parts p) {
  constexpr int kItems = TopkSplit::kShortRow / kPartThreads;
  __shared__ SelectionShared<kPartThreads> shared;
  __shared__ PartSums<TopkSplit::kGroups> group_sums;
  __shared__ PartSums<TopkSplit::kValues> value_sums;
  __shared__ index_rows::GlobalRow<kPartThreads> slots;
  __shared__ bool last;
  device::pdl_wait();
  const std::int64_t row = blockIdx.x / p.parts;
  const std::int64_t n = p.call.length(row);
  std::int32_t* out = p.call.out(row);
  const Scores scores{p.call.scores(row)};
  const auto k = static_cast<std::uint32_t>(p.call.k);
  const Part part(n, p.parts);
  std::uint32_t listed = 0;
  std::uint32_t above = 0;
  std::uint32_t digit = 0;
  bool alone = n <= TopkSplit::kShortRow;
  if (n > p.call.k && !alone) {
    if (part.begin >= n) return;
    PartColumns mine(scores.scores, part);
    group_sums.clear();
    value_sums.clear();
    __syncthreads();
    const std::uint32_t parts = (static_cast<std::uint32_t>(n) + part.columns - 1) / part.columns;
    const PartDigit group = find_digit(group_sums, p.groups + row * p.parts * TopkSplit::kGroups, TopkSplit::kGroups,
                                       parts, part.number, k);
    const PartDigit value =
        find_digit(value_sums, p.digits + row * p.parts * TopkSplit::kDigits + group.digit.bin * TopkSplit::kValues,
                   TopkSplit::kDigits, parts, part.number, k - group.digit.above);
    above = group.digit.above + value.digit.above;
    listed = above + value.digit.inside;
    digit = group.digit.bin * TopkSplit::kValues + value.digit.bin;
    alone = listed > TopkSplit::kListed;
    if (!alone) {
      mine.list(shared.sums, digit, group.above_before + value.above_before + value.inside_before,
                p.keys + row * TopkSplit::kListed, p.columns + row * TopkSplit::kListed);
      __threadfence();
      __syncthreads();
      if (threadIdx.x == 0) last = atomicAdd(p.arrived + row, 1U) == parts - 1;
      __syncthreads();
      if (!last) return;
      __threadfence();
    }
  }
  if ((alone || n <= p.call.k) && part.number != 0) return;
  if (n <= p.call.k) {
    write_all(n, p.call.k, out);
  } else if (alone) {
    Selection<kPartThreads, kItems, Scores>(shared, scores, static_cast<std::uint32_t>(n)).run(k, write_to(out));
  } else {
    Selection<kPartThreads, kItems, List> selection(
        shared, {p.keys + row * TopkSplit::kListed, p.columns + row * TopkSplit::kListed}, listed);
    selection.write(selection.find_threshold(k - above, TopkSplit::kDigitBits, digit), k, write_to(out));
  }
  p.call.write_slots<kPartThreads>(row, slots);
}

}  // namespace smla::topk
