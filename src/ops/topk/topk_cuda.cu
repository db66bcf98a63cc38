// Exact selection on any GPU: the radix selection of topk_cpu.cpp, a block for a row. No candidate list and no workspace: a row that fits the block's
// registers is read once, a longer one is read again for each digit (at most three) and for the output.
#include "device/launch.cuh"
#include "ops/cuda_op.h"
#include "sparsemla/ops/topk.h"

namespace smla {

namespace {

constexpr std::uint32_t kItems = 16;  ///< columns of a thread at once
constexpr int kBins = 2048;
constexpr unsigned kAll = 0xFFFF'FFFFU;

/// A key in the order of the scores: larger score, larger key; -0 = +0; NaN is 0, below -inf.
__device__ std::uint32_t key_of(float score) {
  const std::uint32_t u = __float_as_uint(score);
  const std::uint32_t magnitude = u & 0x7FFF'FFFFU;
  const std::uint32_t ordered = (u >> 31) != 0U ? 0x8000'0000U - magnitude : 0x8000'0000U + magnitude;
  return magnitude > 0x7F80'0000U ? 0U : ordered;
}

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

/// The selection of one row by one block. A warp holds consecutive columns, a lane every 32nd of them.
template <int kThreads>
struct Selection {
  static constexpr int kWarps = kThreads / 32;
  static constexpr std::uint32_t kResident = kThreads * kItems;  ///< columns that stay in registers
  struct Shared {
    std::uint32_t count[kBins];
    WarpSums<kWarps> sums;
    std::uint32_t bin, above, inside;  ///< the bin of the k-th key, how many lie above and in it
  };

  Shared& shared;
  const float* scores;
  std::uint32_t n;      ///< columns; with one more chunk still a 32-bit number
  std::uint32_t items;  ///< columns of a thread in a chunk
  std::uint32_t key[kItems];

  __device__ Selection(Shared& memory, const float* row, std::int64_t columns)
      : shared(memory), scores(row), n(static_cast<std::uint32_t>(columns)), items(resident() ? (n + kThreads - 1) / kThreads : kItems) {
    if (resident()) load(0);
  }
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ bool resident() const { return n <= kResident; }
  __device__ std::uint32_t chunk() const { return items * kThreads; }
  /// This lane's first column of a chunk; item i is 32 i further.
  __device__ std::uint32_t column(std::uint32_t base) const { return base + threadIdx.x / 32 * (32 * items) + threadIdx.x % 32; }
  __device__ bool holds(std::uint32_t i, std::uint32_t first) const { return i < items && first + 32 * i < n; }

  __device__ void load(std::uint32_t base) {
    const std::uint32_t first = column(base);
    const float* from = scores + first;
#pragma unroll
    for (std::uint32_t i = 0; i < kItems; ++i) key[i] = holds(i, first) ? key_of(__ldg(from + 32 * i)) : 0U;
  }

  /// Counts the keys that begin with `prefix` by their next digit.
  __device__ void tally(int shift, int bits, std::uint32_t prefix) {
    for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kThreads) shared.count[i] = 0;
    __syncthreads();
    for (std::uint32_t base = 0; base < n; base += chunk()) {
      if (!resident()) load(base);
      const std::uint32_t first = column(base);
#pragma unroll
      for (std::uint32_t i = 0; i < kItems; ++i) {
        const bool counts = holds(i, first) && (shift + bits == 32 || key[i] >> (shift + bits) == prefix);
        if (counts) atomicAdd(&shared.count[(key[i] >> shift) & ((1U << bits) - 1U)], 1U);
      }
    }
    __syncthreads();
  }

  /// The bin that holds the k-th largest key of those counted; at least k were.
  __device__ void find_bin(std::uint32_t k, int use) {
    constexpr int kMine = kBins / kThreads;
    const int top = kBins - 1 - static_cast<int>(threadIdx.x) * kMine;
    std::uint32_t mine = 0;
#pragma unroll
    for (int i = 0; i < kMine; ++i) mine += shared.count[top - i];
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
    for (int i = 0; i < kMine; ++i) {
      const std::uint32_t inside = shared.count[top - i];
      if (above < k && k <= above + inside) shared.bin = static_cast<std::uint32_t>(top - i), shared.above = above, shared.inside = inside;
      above += inside;
    }
    __syncthreads();
  }

  /// Needs 0 < k < n.
  __device__ Threshold find_threshold(std::uint32_t k) {
    constexpr int kBits[3] = {11, 11, 10};
    std::uint32_t prefix = 0;
    int shift = 32;
#pragma unroll
    for (int pass = 0; pass < 3; ++pass) {
      shift -= kBits[pass];
      tally(shift, kBits[pass], prefix);
      find_bin(k, pass);
      prefix = (prefix << kBits[pass]) | shared.bin;
      k -= shared.above;
      if (shared.inside == k) break;
    }
    return {prefix, shift, k};
  }

  /// Writes the chosen columns in ascending order: a column's place is the number of chosen ones before it.
  __device__ void write(const Threshold& t, std::uint32_t k, std::int32_t* out) {
    std::uint32_t above = 0;  // keys above the threshold and equal to it in the chunks so far
    std::uint32_t equal = 0;
    const unsigned left = (1U << lane()) - 1U;
    int use = 0;
    for (std::uint32_t base = 0; base < n; base += chunk(), ++use) {
      if (!resident()) load(base);
      const std::uint32_t first = column(base);
      std::uint32_t mine = 0;  // a chunk has at most 2^14 columns: two counts fit a word
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
        if (is_over || (is_same && same_at < t.ties)) out[over_at + min(same_at, t.ties)] = static_cast<std::int32_t>(first + 32 * i);
        over_before += static_cast<std::uint32_t>(__popc(over));
        same_before += static_cast<std::uint32_t>(__popc(same));
      }
      above += all >> 16;
      equal += all & 0xFFFFU;
      if (above + min(equal, t.ties) >= k) return;
    }
  }
};

struct Call {
  const float* logits = nullptr;
  std::int64_t logit_stride = 0;
  const std::int32_t* lens = nullptr;
  std::int64_t width = 0;
  std::int64_t k = 0;
  std::int32_t* indices = nullptr;
  std::int64_t index_stride = 0;
};

template <int kThreads>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads) select(const __grid_constant__ Call c) {
  __shared__ typename Selection<kThreads>::Shared shared;
  const std::int64_t row = blockIdx.x;
  const std::int64_t n = min(max(static_cast<std::int64_t>(c.lens[row]), std::int64_t{0}), c.width);
  std::int32_t* out = c.indices + row * c.index_stride;
  if (n <= c.k) {
    for (std::int64_t i = threadIdx.x; i < c.k; i += kThreads) out[i] = i < n ? static_cast<std::int32_t>(i) : -1;
    return;
  }
  Selection<kThreads> selection(shared, c.logits + row * c.logit_stride, n);
  const auto k = static_cast<std::uint32_t>(c.k);
  selection.write(selection.find_threshold(k), k, out);
}

template <int kThreads>
void launch(std::int64_t rows, const Call& c, const RunContext& context) {
  select<kThreads><<<blocks_for(rows, 1), kThreads, 0, stream_of(context.stream)>>>(c);
  check_launch("topk select");
}

}  // namespace

SMLA_CUDA_OP(TopK, 0) {
  if (p.rows == 0 || p.k == 0) return;
  const Call c{.logits = static_cast<const float*>(a.logits.data),
               .logit_stride = a.logits.stride[0],
               .lens = static_cast<const std::int32_t*>(a.lens.data),
               .width = p.width,
               .k = p.k,
               .indices = static_cast<std::int32_t*>(a.indices.data),
               .index_stride = a.indices.stride[0]};
  if (p.width <= Selection<256>::kResident) return launch<256>(p.rows, c, context);
  launch<1024>(p.rows, c, context);
}

}  // namespace smla
