// Finds the cache rows that the lists of a call name, and widens each to fp16 once: a bit for each slot, the ranks of
// the bits, and a row of the workspace for each. docs/kernels/sparse_attention_sm90.md says when that pays.
#include "device/launch_pdl.cuh"
#include "ops/attention/widen_rows.cuh"

namespace smla::attention {

namespace {

constexpr int kMarkThreads = 256;
constexpr int kMarksAtOnce = 4;  ///< entries of a thread
constexpr int kScanThreads = 256;
constexpr int kWordsAThread = static_cast<int>(NamedRows::kScanWords) / kScanThreads;
constexpr int kWidenThreads = 256;
constexpr int kWidenBlocks = 8;  ///< for each multiprocessor

/// A block sets the bits of the slots that one token names. Most are set already. That costs a look into L1: a pool's
/// words lie in few lines, at which all multiprocessors would queue in L2. What L1 has may be old, so a bit that is not
/// set there is looked for in L2 before it is set.
__global__ void __launch_bounds__(kMarkThreads)
    mark_rows(const __grid_constant__ TileCall c, const __grid_constant__ NamedRows n) {
  device::pdl_wait();
  const std::int64_t token = c.first_token + blockIdx.x;
  for (int s = 0; s < c.a.scopes; ++s) {
    const KeyList& list = c.a.keys[s];
    const std::int32_t* const entry = list.first<Lists::kOwnRows>(token);
    const int entries = list.entries<Lists::kOwnRows>(token);
    const std::uint32_t num_slots = c.layout[s].num_slots;
    std::uint32_t* const words = n.bits + n.first_word[s];
    for (int first = static_cast<int>(threadIdx.x); first < entries; first += kMarkThreads * kMarksAtOnce) {
      std::uint32_t slot[kMarksAtOnce];
#pragma unroll
      for (int i = 0; i < kMarksAtOnce; ++i) {
        const int at = first + i * kMarkThreads;
        slot[i] = at < entries ? static_cast<std::uint32_t>(__ldg(entry + at)) : ~0U;
      }
      std::uint32_t word[kMarksAtOnce];
#pragma unroll
      for (int i = 0; i < kMarksAtOnce; ++i) word[i] = slot[i] < num_slots ? words[slot[i] / 32] : ~0U;
#pragma unroll
      for (int i = 0; i < kMarksAtOnce; ++i) {
        const std::uint32_t bit = 1U << slot[i] % 32;
        if ((word[i] & bit) != 0) continue;
        std::uint32_t* const at = words + slot[i] / 32;
        if ((*const_cast<const volatile std::uint32_t*>(at) & bit) == 0) atomicOr(at, bit);
      }
    }
  }
  device::pdl_trigger();
}

/// The sum of `mine` over the threads of the block before this one, and over all of them.
struct Sums {
  std::uint32_t before;
  std::uint32_t all;
};
template <int kThreads>
__device__ Sums sums_of_block(std::uint32_t mine) {
  __shared__ std::uint32_t of_warp[kThreads / 32];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  std::uint32_t sum = mine;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const std::uint32_t below = __shfl_up_sync(kAll, sum, step);
    if (lane >= step) sum += below;
  }
  if (lane == 31) of_warp[warp] = sum;
  __syncthreads();
  std::uint32_t before = sum - mine;
  std::uint32_t all = 0;
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) {
    if (w < warp) before += of_warp[w];
    all += of_warp[w];
  }
  __syncthreads();
  return {before, all};
}

/// A block counts the bits of kScanWords words: ranks within the block, and the block's sum.
__global__ void __launch_bounds__(kScanThreads) count_rows(const __grid_constant__ NamedRows n) {
  device::pdl_wait();
  const std::uint32_t first = blockIdx.x * NamedRows::kScanWords + kWordsAThread * threadIdx.x;
  std::uint32_t count[kWordsAThread];
  std::uint32_t mine = 0;
#pragma unroll
  for (int i = 0; i < kWordsAThread; ++i) {
    count[i] = first + i < n.words ? static_cast<std::uint32_t>(__popc(n.bits[first + i])) : 0;
    mine += count[i];
  }
  const Sums sums = sums_of_block<kScanThreads>(mine);
  std::uint32_t rank = sums.before;
#pragma unroll
  for (int i = 0; i < kWordsAThread; ++i) {
    if (first + i < n.words) n.rank[first + i] = rank;
    rank += count[i];
  }
  if (threadIdx.x == 0) n.block_rank[blockIdx.x] = sums.all;
  device::pdl_trigger();
}

/// One block makes ranks of the blocks' sums.
__global__ void __launch_bounds__(kScanThreads) rank_blocks(const __grid_constant__ NamedRows n, std::uint32_t blocks) {
  device::pdl_wait();
  std::uint32_t carried = 0;
  for (std::uint32_t first = 0; first < blocks; first += kScanThreads) {
    const std::uint32_t i = first + threadIdx.x;
    const Sums sums = sums_of_block<kScanThreads>(i < blocks ? n.block_rank[i] : 0);
    if (i < blocks) n.block_rank[i] = carried + sums.before;
    carried += sums.all;
  }
  if (threadIdx.x == 0) *n.total = carried;
  device::pdl_trigger();
}

/// A thread finishes the rank of a word and notes which slots have the rows from there on.
__global__ void __launch_bounds__(kScanThreads) list_rows(const __grid_constant__ NamedRows n) {
  device::pdl_wait();
  const std::uint32_t word = blockIdx.x * kScanThreads + threadIdx.x;
  if (word < n.words) {
    std::uint32_t rank = n.rank[word] + n.block_rank[word / NamedRows::kScanWords];
    n.rank[word] = rank;
    for (std::uint32_t bits = n.bits[word]; bits != 0 && rank < n.capacity; bits &= bits - 1, ++rank)
      n.slots[rank] = word * 32 + static_cast<std::uint32_t>(__ffs(static_cast<int>(bits)) - 1);
  }
  device::pdl_trigger();
}

/// 16 bf16 numbers as fp16, times kHalfUnit.
__device__ void halves_of_bf16(const uint4 (&from)[2], uint4 (&to)[2], std::uint32_t& overflow) {
  std::uint32_t top = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint4& v = from[i];
    to[i] = make_uint4(half_pair(v.x, top), half_pair(v.y, top), half_pair(v.z, top), half_pair(v.w, top));
  }
  overflow |= half_overflow(top);
}

/// A warp widens a row at a time, a lane 16 numbers of it.
__global__ void __launch_bounds__(kWidenThreads)
    widen_rows(const __grid_constant__ TileCall c, const __grid_constant__ NamedRows n) {
  device::pdl_wait();
  const std::uint32_t total = *n.total;
  const std::uint32_t warps = gridDim.x * (kWidenThreads / 32);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (std::uint32_t i = (blockIdx.x * kWidenThreads + threadIdx.x) / 32; total <= n.capacity && i < total;
       i += warps) {
    const std::uint32_t bit = n.slots[i];
    const int scope = c.a.scopes > 1 && bit / 32 >= n.first_word[1] ? 1 : 0;
    const RowLayout& layout = c.layout[scope];
    const std::uint32_t slot = bit - 32 * n.first_word[scope];
    const std::uint32_t block = slot >> layout.block_bits;
    const std::uint32_t in_block = slot - (block << layout.block_bits);
    const std::uint8_t* const from = layout.base + static_cast<std::int64_t>(block) * layout.block_stride;
    const std::uint8_t* const data = from + static_cast<std::uint64_t>(in_block) * layout.row_bytes;
    const int codes = AttentionTile::kGroup * layout.key.code_groups;
    uint4 halves[2];
    std::uint32_t overflow = 0;
    bool unfit = false;
    if (16 * lane < codes) {
      const uint4 v = __ldg(reinterpret_cast<const uint4*>(data + 16 * lane));
      widen_codes(v.x, halves[0].x, halves[0].y), widen_codes(v.y, halves[0].z, halves[0].w);
      widen_codes(v.z, halves[1].x, halves[1].y), widen_codes(v.w, halves[1].z, halves[1].w);
      if (layout.scaled) {
        const std::uint8_t* const scales =
            from + layout.scales + static_cast<std::uint64_t>(in_block) * layout.scale_bytes;
        const int byte = __ldg(scales + 16 * lane / AttentionTile::kGroup);
        unfit = unrepresentable_scale(byte);
        const std::uint32_t pair = half_scale(byte) * 0x1'0001U;
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          halves[k].x = multiply_halves(halves[k].x, pair), halves[k].y = multiply_halves(halves[k].y, pair);
          halves[k].z = multiply_halves(halves[k].z, pair), halves[k].w = multiply_halves(halves[k].w, pair);
        }
      }
    } else {
      const auto* const rest = reinterpret_cast<const uint4*>(data + codes + 2 * (16 * lane - codes));
      const uint4 v[2] = {__ldg(rest), __ldg(rest + 1)};
      halves_of_bf16(v, halves, overflow);
    }
    auto* const to = reinterpret_cast<uint4*>(n.rows + std::size_t{i} * AttentionTile::kDim + 16 * lane);
    to[0] = halves[0], to[1] = halves[1];
    if (__any_sync(kAll, unfit || (overflow & 0x8000'8000U) != 0U) && lane == 0)
      atomicOr(n.unfit + bit / 32, 1U << bit % 32);
  }
  device::pdl_trigger();
}

}  // namespace

void widen_named_rows(const TileCall& c, const NamedRows& n, std::int64_t tokens, std::int64_t multiprocessors,
                      cudaStream_t stream) {
  check_cuda(cudaMemsetAsync(n.total, 0, n.cleared_bytes(), stream), "sparse_attention widen: cudaMemsetAsync");
  device::launch_pdl<mark_rows>("sparse_attention mark_rows", blocks_for(tokens, 1), kMarkThreads, 0, stream, c, n);
  device::launch_pdl<count_rows>("sparse_attention count_rows", n.blocks(), kScanThreads, 0, stream, n);
  device::launch_pdl<rank_blocks>("sparse_attention rank_blocks", 1, kScanThreads, 0, stream, n, n.blocks());
  device::launch_pdl<list_rows>("sparse_attention list_rows", blocks_for(n.words, kScanThreads), kScanThreads, 0,
                                stream, n);
  device::launch_pdl<widen_rows>("sparse_attention widen_rows", static_cast<unsigned>(multiprocessors * kWidenBlocks),
                                 kWidenThreads, 0, stream, c, n);
}

}  // namespace smla::attention
