// MergeTopK on any GPU: a block for each row. The key of the k-th best candidate is found digit by digit by counting;
// candidates up to it are listed in any order, and each finds its place by counting the smaller ones.
#include <cstdint>

#include "device/ptx/pdl.cuh"
#include "ops/cuda_row.h"
#include "ops/index/index_rows.cuh"
#include "ops/topk/implementations.h"

namespace smla {

namespace {

constexpr int kThreads = 256;
constexpr int kBits = 8;  ///< of a digit
constexpr int kBins = 1 << kBits;
constexpr int kDigits = 64 / kBits;
constexpr std::uint32_t kMine = 0x8000'0000U;

struct MergeCall {
  std::int64_t k = 0;
  EntryShare share;
  const float* scores = nullptr;
  std::int64_t score_stride[2] = {0, 0};
  const std::int32_t* indices = nullptr;
  std::int64_t index_stride[2] = {0, 0};
  std::int32_t* chosen = nullptr;
  std::int64_t chosen_stride = 0;
  std::int32_t* own = nullptr;
  std::int64_t own_stride = 0;
  std::uint32_t* listed = nullptr;  ///< [rows, k] workspace: entries, those of this rank with kMine

  /// The key of candidate c of rank r: smaller is better, no two are equal. ~0: no candidate.
  __device__ std::uint64_t key(std::int64_t row, std::int64_t r, std::int64_t c) const {
    const std::int32_t local = indices[r * index_stride[0] + row * index_stride[1] + c];
    if (local < 0) return ~std::uint64_t{0};
    const std::uint32_t bits = __float_as_uint(scores[r * score_stride[0] + row * score_stride[1] + c]);
    const std::uint32_t magnitude = bits & 0x7FFF'FFFFU;
    // Larger score, smaller word; -0 = +0; NaN behind -inf.
    std::uint32_t worse = (bits >> 31) != 0U ? 0x8000'0000U + magnitude : 0x8000'0000U - magnitude;
    if (magnitude > 0x7F80'0000U) worse = 0xFFFF'FFFFU;
    return std::uint64_t{worse} << 32 | global(r, static_cast<std::uint32_t>(local));
  }
  /// EntryShare::global with a short division.
  __device__ std::uint32_t global(std::int64_t r, std::uint32_t local) const {
    const auto run = static_cast<std::uint32_t>(share.interleave);
    const std::uint32_t whole = local / run;
    return static_cast<std::uint32_t>((whole * share.ranks + r) * share.interleave + (local - whole * run));
  }
};

/// Calls f(key) for each candidate of the row, with all threads of the block.
template <class F>
__device__ void each_candidate(const MergeCall& c, std::int64_t row, F&& f) {
  for (std::int64_t r = 0; r < c.share.ranks; ++r) {
    for (std::int64_t i = threadIdx.x; i < c.k; i += kThreads) {
      const std::uint64_t key = c.key(row, r, i);
      if (key != ~std::uint64_t{0}) f(key);
    }
  }
}

/// The key of the k-th best candidate; ~0 where there are no more than k.
__device__ std::uint64_t last_key(const MergeCall& c, std::int64_t row, unsigned* bins, std::uint64_t* shared_prefix,
                                  std::int64_t* shared_left) {
  if (threadIdx.x == 0) *shared_prefix = 0, *shared_left = c.k;
  for (int digit = kDigits - 1; digit >= 0; --digit) {
    for (int b = static_cast<int>(threadIdx.x); b < kBins; b += kThreads) bins[b] = 0;
    __syncthreads();
    const std::uint64_t prefix = *shared_prefix;
    const int shift = digit * kBits;
    each_candidate(c, row, [&](std::uint64_t key) {
      // The first digit has nothing before it; a shift by 64 bits would not give 0.
      if (digit == kDigits - 1 || key >> (shift + kBits) == prefix)
        atomicAdd(&bins[key >> shift & static_cast<std::uint64_t>(kBins - 1)], 1U);
    });
    __syncthreads();
    if (threadIdx.x == 0) {
      std::int64_t left = *shared_left;
      int b = 0;
      while (b < kBins && bins[b] < left) left -= bins[b++];
      *shared_left = b < kBins ? left : -1;  // -1: fewer candidates than k
      *shared_prefix = prefix << kBits | static_cast<std::uint64_t>(b);
    }
    __syncthreads();
    if (*shared_left < 0) return ~std::uint64_t{0};
  }
  return *shared_prefix;
}

__global__ void __launch_bounds__(kThreads, 4) merge(const __grid_constant__ MergeCall c) {
  device::pdl_wait_and_trigger();
  __shared__ unsigned bins[kBins];
  __shared__ std::uint64_t prefix;
  __shared__ std::int64_t left;
  __shared__ unsigned count;
  __shared__ unsigned owned;
  const std::int64_t row = blockIdx.x;
  const std::uint64_t last = last_key(c, row, bins, &prefix, &left);
  if (threadIdx.x == 0) count = owned = 0;
  __syncthreads();
  std::uint32_t* listed = c.listed + row * c.k;
  each_candidate(c, row, [&](std::uint64_t key) {
    if (key > last) return;
    const auto entry = static_cast<std::uint32_t>(key);
    const bool mine = c.share.owns(entry);
    if (mine) atomicAdd(&owned, 1U);
    listed[atomicAdd(&count, 1U)] = mine ? entry | kMine : entry;
  });
  __syncthreads();
  const auto n = static_cast<int>(count);
  std::int32_t* own = c.own + row * c.own_stride;
  std::int32_t* chosen = c.chosen == nullptr ? nullptr : c.chosen + row * c.chosen_stride;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads) {
    const std::uint32_t entry = listed[i] & ~kMine;
    int place = 0;
    int place_among_own = 0;
    for (int j = 0; j < n; ++j) {
      const bool smaller = (listed[j] & ~kMine) < entry;
      place += smaller ? 1 : 0;
      place_among_own += smaller && (listed[j] & kMine) != 0 ? 1 : 0;
    }
    if (chosen != nullptr) chosen[place] = static_cast<std::int32_t>(entry);
    if ((listed[i] & kMine) != 0) own[place_among_own] = static_cast<std::int32_t>(c.share.local(entry));
  }
  for (std::int64_t i = std::int64_t{owned} + threadIdx.x; i < c.k; i += kThreads) own[i] = -1;
  if (chosen == nullptr) return;
  for (std::int64_t i = n + static_cast<std::int64_t>(threadIdx.x); i < c.k; i += kThreads) chosen[i] = -1;
}

std::size_t list_bytes(const MergeTopK::Problem& p, int /*threads*/) {
  return static_cast<std::size_t>(4 * p.rows * p.k);
}

void run(const MergeTopK::Problem& p, const MergeTopK::Args& a, const RunContext& context) {
  if (p.rows == 0 || p.k == 0) return;
  const MergeCall c{.k = p.k,
                    .share = p.share,
                    .scores = static_cast<const float*>(a.scores.data),
                    .score_stride = {a.scores.stride[0], a.scores.stride[1]},
                    .indices = static_cast<const std::int32_t*>(a.indices.data),
                    .index_stride = {a.indices.stride[0], a.indices.stride[1]},
                    .chosen = static_cast<std::int32_t*>(a.chosen.data),
                    .chosen_stride = a.chosen.stride[0],
                    .own = static_cast<std::int32_t*>(a.own.data),
                    .own_stride = a.own.stride[0],
                    .listed = static_cast<std::uint32_t*>(context.workspace.data)};
  device::launch_pdl<merge>("merge_topk", blocks_for(p.rows, 1), kThreads, 0, stream_of(context.stream), c);
}

}  // namespace

template <>
Implementation<MergeTopK> cuda_row() {
  return any_gpu_row<MergeTopK>(run, take_all<MergeTopK, needs_gpu, list_bytes>);
}

}  // namespace smla
