// Exact selection on any GPU: the radix selection of topk_cpu.cpp. One block for a row; a row that fits its registers is read once, a longer one once for
// each digit (at most three) and for the output. Few wide rows are cut into parts (topk_split.h): one kernel counts the first digit of each part, the next
// lists the columns that can be chosen, in order, and the last block of a row to arrive chooses from the list.
#include "device/early_launch.cuh"
#include "device/shared_limit.h"
#include "ops/cuda_op.h"
#include "ops/index/global_row.cuh"
#include "ops/topk/implementations.h"
#include "ops/topk/topk_split.h"

namespace smla {

namespace {

constexpr int kBits = 11;  ///< of a digit at most
constexpr int kBins = 1 << kBits;
constexpr unsigned kAll = 0xFFFF'FFFFU;

/// A key in the order of the scores: larger score, larger key; -0 = +0; NaN is 0, below -inf.
__device__ std::uint32_t key_of(std::uint32_t score) {
  const std::uint32_t magnitude = score & 0x7FFF'FFFFU;
  const std::uint32_t ordered = (score >> 31) != 0U ? 0x8000'0000U - magnitude : 0x8000'0000U + magnitude;
  return magnitude > 0x7F80'0000U ? 0U : ordered;
}

/// A row of scores.
struct Scores {
  const float* scores;

  __device__ std::uint32_t load(std::uint32_t i) const { return __float_as_uint(__ldg(scores + i)); }
  __device__ static std::uint32_t key(std::uint32_t loaded) { return key_of(loaded); }
  __device__ std::uint32_t column(std::uint32_t i) const { return i; }
};

/// The columns of a row that can be chosen, in ascending order. Other blocks of the same kernel wrote them: not for the read-only cache.
struct List {
  const std::uint32_t* keys;
  const std::uint32_t* columns;

  __device__ std::uint32_t load(std::uint32_t i) const { return __ldcg(keys + i); }
  __device__ static std::uint32_t key(std::uint32_t loaded) { return loaded; }
  __device__ std::uint32_t column(std::uint32_t i) const { return __ldcg(columns + i); }
};

/// All keys above `key` are chosen and, of those that begin like it (shifted right by `shift`), the first `ties`.
struct Threshold {
  std::uint32_t key = 0;
  int shift = 0;
  std::uint32_t ties = 0;
};

/// Sums over the warps of a block, in their order. Uses alternate between two rows of totals, so that one barrier a call is enough.
template <int kWarps>
struct WarpSums {
  std::uint32_t totals[2][kWarps];

  /// What the warps before this one hold together, and all of them; a barrier.
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
  std::uint32_t bin;     ///< its value
  std::uint32_t above;   ///< keys with a larger one
  std::uint32_t inside;  ///< keys with this one
};

template <int kThreads>
struct SelectionShared {
  alignas(16) std::uint32_t count[2][kBins];  ///< of one digit, and zeros for the next
  WarpSums<kThreads / 32> sums;
  Digit digit;
};

/// The selection of one row by one block; an item is a column of a row of scores, or one of a list. A warp holds consecutive items, a lane every 32nd of
/// them.
template <int kThreads, int kItems, class Source>
struct Selection {
  static constexpr std::uint32_t kResident = kThreads * kItems;  ///< items that stay in registers
  static constexpr int kMine = kBins / kThreads;

  SelectionShared<kThreads>& shared;
  const Source source;
  std::uint32_t n;      ///< items; with one more chunk still a 32-bit number
  std::uint32_t items;  ///< items of a thread in a chunk
  std::uint32_t key[kItems];

  __device__ Selection(SelectionShared<kThreads>& memory, Source from, std::uint32_t count)
      : shared(memory), source(from), n(count), items(resident() ? (n + kThreads - 1) / kThreads : kItems) {
    if (resident()) load(0);
    clear(0);
    clear(1);
    __syncthreads();
  }
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ bool resident() const { return n <= kResident; }
  __device__ std::uint32_t chunk() const { return items * kThreads; }
  /// This lane's first item of a chunk; item i is 32 i further.
  __device__ std::uint32_t first_of(std::uint32_t base) const { return base + threadIdx.x / 32 * (32 * items) + threadIdx.x % 32; }
  __device__ bool holds(std::uint32_t i, std::uint32_t first) const { return i < items && first + 32 * i < n; }

  __device__ void load(std::uint32_t base) {
    const std::uint32_t first = first_of(base);
#pragma unroll
    for (std::uint32_t i = 0; i < kItems; ++i) key[i] = holds(i, first) ? source.load(first + 32 * i) : 0U;
#pragma unroll
    for (std::uint32_t i = 0; i < kItems; ++i) key[i] = Source::key(key[i]);
  }

  __device__ void clear(int row) {
#pragma unroll
    for (int i = 0; i < kMine; ++i) shared.count[row][threadIdx.x + i * kThreads] = 0;
  }

  /// Counts the keys whose first `known` bits are `prefix` by their next `bits`.
  __device__ void tally(std::uint32_t* count, int known, int bits, std::uint32_t prefix) {
    const int shift = 32 - known - bits;
    const std::uint32_t mask = (1U << bits) - 1U;
    for (std::uint32_t base = 0; base < n; base += chunk()) {
      if (!resident()) load(base);
      const std::uint32_t first = first_of(base);
#pragma unroll
      for (std::uint32_t i = 0; i < kItems; ++i) {
        const bool counts = holds(i, first) && (known == 0 || key[i] >> (32 - known) == prefix);
        if (counts) atomicAdd(&count[(key[i] >> shift) & mask], 1U);
      }
    }
    __syncthreads();
  }

  /// The bin that holds the k-th largest key of those counted; at least k were. Two barriers.
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
      if (digit.inside == k) break;
      clear(pass % 2);  // for the pass after the next, past its barriers
    }
    return {prefix, 32 - known, k};
  }

  /// Writes the chosen columns in ascending order: a column's place is the number of chosen ones before it.
  __device__ void write(const Threshold& t, std::uint32_t k, std::int32_t* out) {
    std::uint32_t above = 0;  // keys above the threshold and equal to it in the chunks so far
    std::uint32_t equal = 0;
    const unsigned left = (1U << lane()) - 1U;
    int use = 0;
    for (std::uint32_t base = 0; base < n; base += chunk(), ++use) {
      if (!resident()) load(base);
      const std::uint32_t first = first_of(base);
      std::uint32_t mine = 0;  // a chunk has at most 2^14 items: two counts fit a word
#pragma unroll
      for (std::uint32_t i = 0; i < kItems; ++i) {
        const bool here = holds(i, first);
        const unsigned over = __ballot_sync(kAll, here && key[i] >> t.shift > t.key);
        const unsigned same = __ballot_sync(kAll, here && key[i] >> t.shift == t.key);
        mine += static_cast<std::uint32_t>(__popc(over)) << 16 | static_cast<std::uint32_t>(__popc(same));
      }
      std::uint32_t all = 0;
      const std::uint32_t before = shared.sums.before(mine, use, &all);
      std::uint32_t over_before = above + (before >> 16);
      std::uint32_t same_before = equal + (before & 0xFFFFU);
#pragma unroll
      for (std::uint32_t i = 0; i < kItems; ++i) {
        const bool here = holds(i, first);
        const bool is_over = here && key[i] >> t.shift > t.key;
        const bool is_same = here && key[i] >> t.shift == t.key;
        const unsigned over = __ballot_sync(kAll, is_over);
        const unsigned same = __ballot_sync(kAll, is_same);
        const std::uint32_t over_at = over_before + static_cast<std::uint32_t>(__popc(over & left));
        const std::uint32_t same_at = same_before + static_cast<std::uint32_t>(__popc(same & left));
        if (is_over || (is_same && same_at < t.ties)) out[over_at + min(same_at, t.ties)] = static_cast<std::int32_t>(source.column(first + 32 * i));
        over_before += static_cast<std::uint32_t>(__popc(over));
        same_before += static_cast<std::uint32_t>(__popc(same));
      }
      above += all >> 16;
      equal += all & 0xFFFFU;
      if (above + min(equal, t.ties) >= k) return;
    }
  }

  /// Needs 0 < k < n.
  __device__ void run(std::uint32_t k, std::int32_t* out) { write(find_threshold(k, 0, 0), k, out); }
};

/// What the chosen columns' slots need.
struct Slots {
  index_rows::Table table;
  const std::int32_t* request = nullptr;
  const bool* valid = nullptr;
  std::int32_t* slots = nullptr;
  std::int64_t stride = 0;
  std::int32_t* lens = nullptr;  ///< null: slots are not wanted
};

struct Call {
  const float* logits = nullptr;
  std::int64_t logit_stride = 0;
  const std::int32_t* lens = nullptr;
  std::int64_t width = 0;
  std::int64_t k = 0;
  std::int32_t* indices = nullptr;
  std::int64_t index_stride = 0;
  Slots slots;

  __device__ std::int64_t length(std::int64_t row) const { return min(max(static_cast<std::int64_t>(lens[row]), std::int64_t{0}), width); }
  __device__ std::int32_t* out(std::int64_t row) const { return indices + row * index_stride; }
  __device__ const float* scores(std::int64_t row) const { return logits + row * logit_stride; }

  /// After a block of kThreads has written a row.
  template <int kThreads>
  __device__ void write_slots(std::int64_t row, index_rows::GlobalRow<kThreads>& shared) const {
    if (slots.lens == nullptr) return;
    __syncthreads();
    shared.write(slots.table, slots.request[row], slots.valid[row], k, true, out(row), slots.slots + row * slots.stride, slots.lens + row);
  }
};

/// A row of n <= k columns.
__device__ void write_all(std::int64_t n, std::int64_t k, std::int32_t* out) {
  for (std::int64_t i = threadIdx.x; i < k; i += blockDim.x) out[i] = i < n ? static_cast<std::int32_t>(i) : -1;
}

template <int kThreads, int kItems>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads) select(const __grid_constant__ Call c) {
  __shared__ SelectionShared<kThreads> shared;
  __shared__ index_rows::GlobalRow<kThreads> slots;
  device::wait_for_work_before();
  const std::int64_t row = blockIdx.x;
  const std::int64_t n = c.length(row);
  if (n <= c.k || c.k == 0) {
    write_all(n, c.k, c.out(row));
  } else {
    Selection<kThreads, kItems, Scores>(shared, {c.scores(row)}, static_cast<std::uint32_t>(n)).run(static_cast<std::uint32_t>(c.k), c.out(row));
  }
  c.write_slots<kThreads>(row, slots);
}

constexpr int kPartThreads = 1024;  ///< of the kernels that share a row

/// A launch of rows in parts. Its memory needs no values from before: the first kernel writes whatever the second reads.
struct Parts {
  Call call;
  std::uint32_t parts = 1;
  std::uint32_t* digits = nullptr;   ///< [rows, parts, kDigits], how many keys begin with a digit
  std::uint32_t* groups = nullptr;   ///< [rows, parts, kGroups], and with one of a group of digits
  std::uint32_t* keys = nullptr;     ///< [rows, kListed]
  std::uint32_t* columns = nullptr;  ///< [rows, kListed], ascending
  std::uint32_t* arrived = nullptr;  ///< [rows], parts that are listed
};

/// A block's part of a row of n > kShortRow columns.
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
  constexpr int kGroupThreads = TopkSplit::kValues / kMine;  // neighbours in a warp
  static_assert(kMine % 4 == 0 && 32 % kGroupThreads == 0);
  alignas(16) __shared__ std::uint32_t count[TopkSplit::kDigits];
  device::wait_for_work_before();
  device::let_next_launch();
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
      key[i] = base + i * kPartThreads < part.end ? __float_as_uint(__ldg(scores + base + i * kPartThreads)) : 0U;
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

/// Counts of all parts of a row and of those before this one, by bin; zeros before their one use.
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
  std::uint32_t above_before, inside_before;  ///< of its counts, in the parts before this one
};

/// The bin of the k-th largest key; a part's counts lie `stride` behind those of the part before. Every warp finds it for itself, after one barrier.
template <int kCount>
__device__ PartDigit find_digit(PartSums<kCount>& sums, const std::uint32_t* counts, int stride, std::uint32_t parts, std::uint32_t part,
                                std::uint32_t k) {
  constexpr std::uint32_t kRows = kPartThreads / kCount;
  constexpr int kMine = kCount / 32;
  const std::uint32_t bin = threadIdx.x % kCount;
  std::uint32_t all = 0;
  std::uint32_t before = 0;
#pragma unroll
  for (std::uint32_t i = 0; i < TopkSplit::kMostParts / kRows; ++i) {
    const std::uint32_t from = threadIdx.x / kCount + i * kRows;
    const std::uint32_t count = from < parts ? __ldg(counts + static_cast<std::int64_t>(from) * stride + bin) : 0U;
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

/// The columns of a part, a chunk at a time: a warp holds consecutive ones, a lane every 32nd of them.
struct PartColumns {
  static constexpr std::uint32_t kItems = 8;

  const float* scores;
  const Part& part;
  std::uint32_t items;
  std::uint32_t loaded[kItems];  ///< of the chunk that comes next

  __device__ PartColumns(const float* row, const Part& of) : scores(row), part(of), items(min(of.columns / kPartThreads, kItems)) { load(of.begin); }
  __device__ std::uint32_t first_of(std::uint32_t base) const { return base + threadIdx.x / 32 * (32 * items) + threadIdx.x % 32; }
  __device__ bool holds(std::uint32_t i, std::uint32_t first) const { return i < items && first + 32 * i < part.end; }

  __device__ void load(std::uint32_t base) {
    const std::uint32_t first = first_of(base);
#pragma unroll
    for (std::uint32_t i = 0; i < kItems; ++i) loaded[i] = holds(i, first) ? __float_as_uint(__ldg(scores + first + 32 * i)) : 0U;
  }

  /// Lists those whose key begins with `digit` or more, and their keys, from place `at` on in ascending order.
  __device__ void list(WarpSums<kPartThreads / 32>& sums, std::uint32_t digit, std::uint32_t at, std::uint32_t* keys, std::uint32_t* columns) {
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

/// Lists every part; the last block of a row chooses from the list. A row of up to kShortRow columns, or of which too many can be chosen, is one block's.
__global__ void __launch_bounds__(kPartThreads, 1) select_parts(const __grid_constant__ Parts p) {
  constexpr int kItems = TopkSplit::kShortRow / kPartThreads;
  __shared__ SelectionShared<kPartThreads> shared;
  __shared__ PartSums<TopkSplit::kGroups> group_sums;
  __shared__ PartSums<TopkSplit::kValues> value_sums;
  __shared__ index_rows::GlobalRow<kPartThreads> slots;
  __shared__ bool last;
  device::wait_for_work_before();
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
    const PartDigit group = find_digit(group_sums, p.groups + row * p.parts * TopkSplit::kGroups, TopkSplit::kGroups, parts, part.number, k);
    const PartDigit value = find_digit(value_sums, p.digits + row * p.parts * TopkSplit::kDigits + group.digit.bin * TopkSplit::kValues,
                                       TopkSplit::kDigits, parts, part.number, k - group.digit.above);
    above = group.digit.above + value.digit.above;
    listed = above + value.digit.inside;
    digit = group.digit.bin * TopkSplit::kValues + value.digit.bin;
    alone = listed > TopkSplit::kListed;
    if (!alone) {
      mine.list(shared.sums, digit, group.above_before + value.above_before + value.inside_before, p.keys + row * TopkSplit::kListed,
                p.columns + row * TopkSplit::kListed);
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
    Selection<kPartThreads, kItems, Scores>(shared, scores, static_cast<std::uint32_t>(n)).run(k, out);
  } else {
    Selection<kPartThreads, kItems, List> selection(shared, {p.keys + row * TopkSplit::kListed, p.columns + row * TopkSplit::kListed}, listed);
    selection.write(selection.find_threshold(k - above, TopkSplit::kDigitBits, digit), k, out);
  }
  p.call.write_slots<kPartThreads>(row, slots);
}

template <int kThreads, int kItems>
void launch(std::int64_t rows, const Call& c, const RunContext& context) {
  device::launch_early<select<kThreads, kItems>>("topk select", blocks_for(rows, 1), kThreads, stream_of(context.stream), c);
}

/// One block a row. Where no multiprocessor has two rows, a row has all its threads; else four narrow rows share it.
void launch_rows(const TopK::Problem& p, const Call& c, const RunContext& context) {
  const bool few = p.rows <= device::multiprocessors();
  if (!few && p.width <= 2048) return launch<256, 8>(p.rows, c, context);
  if (!few && p.width <= 4096) return launch<256, 16>(p.rows, c, context);
  if (p.width <= 4096) return launch<1024, 4>(p.rows, c, context);
  if (p.width <= 8192) return launch<1024, 8>(p.rows, c, context);
  launch<1024, 16>(p.rows, c, context);
}

void launch_parts(const TopK::Problem& p, const TopkSplit& split, const Call& c, const RunContext& context) {
  const std::int64_t blocks = split.launch_rows * split.parts;
  Parts parts{.call = c, .parts = static_cast<std::uint32_t>(split.parts), .digits = static_cast<std::uint32_t*>(context.workspace.data)};
  parts.groups = parts.digits + blocks * TopkSplit::kDigits;
  parts.keys = parts.groups + blocks * TopkSplit::kGroups;
  parts.columns = parts.keys + split.launch_rows * TopkSplit::kListed;
  parts.arrived = parts.columns + split.launch_rows * TopkSplit::kListed;
  for (std::int64_t row = 0; row < p.rows; row += split.launch_rows) {
    const unsigned grid = blocks_for(std::min(split.launch_rows, p.rows - row) * split.parts, 1);
    device::launch_early<count_parts>("topk count_parts", grid, kPartThreads, stream_of(context.stream), parts);
    device::launch_early<select_parts>("topk select_parts", grid, kPartThreads, stream_of(context.stream), parts);
    parts.call.logits += split.launch_rows * c.logit_stride;
    parts.call.lens += split.launch_rows;
    parts.call.indices += split.launch_rows * c.index_stride;
    if (c.slots.lens == nullptr) continue;
    parts.call.slots.request += split.launch_rows;
    parts.call.slots.valid += split.launch_rows;
    parts.call.slots.slots += split.launch_rows * c.slots.stride;
    parts.call.slots.lens += split.launch_rows;
  }
}

}  // namespace

std::string topk_choice(const TopK::Problem& p, const PlanOptions&) { return describe(split_topk(p, device::multiprocessors())); }

SMLA_CUDA_OP(TopK, static_cast<std::size_t>(topk_workspace_bytes(p, device::multiprocessors()))) {
  if (p.rows == 0 || (p.k == 0 && p.storage_block == 0)) return;
  Call c{.logits = static_cast<const float*>(a.logits.data),
         .logit_stride = a.logits.stride[0],
         .lens = static_cast<const std::int32_t*>(a.lens.data),
         .width = p.width,
         .k = p.k,
         .indices = static_cast<std::int32_t*>(a.indices.data),
         .index_stride = a.indices.stride[0]};
  if (p.storage_block > 0) {
    c.slots = {.table = index_rows::table_of(a.block_table, p.storage_block),
               .request = static_cast<const std::int32_t*>(a.token_to_req.data),
               .valid = static_cast<const bool*>(a.valid.data),
               .slots = static_cast<std::int32_t*>(a.slots.data),
               .stride = a.slots.stride[0],
               .lens = static_cast<std::int32_t*>(a.slot_lens.data)};
  }
  const TopkSplit split = split_topk(p, device::multiprocessors());
  if (split.parts > 1) return launch_parts(p, split, c, context);
  launch_rows(p, c, context);
}

}  // namespace smla
