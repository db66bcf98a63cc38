// Finds the cache rows that the lists of a call name, and widens each to fp16 once, in one kernel.
// docs/kernels/sparse_attention_sm90.md says when that pays.
#include "device/launch_pdl.cuh"
#include "ops/attention/widen_rows.cuh"

namespace smla::attention {

namespace {

constexpr int kWidenThreads = 256;
constexpr int kWidenWarps = kWidenThreads / 32;
constexpr int kAtOnce = 4;  ///< entries of a thread
constexpr int kEntries = kAtOnce * kWidenThreads;

/// What a look into the table finds.
struct Look {
  std::uint32_t at;
  std::uint32_t key;  ///< as L1 has it: what is free there may be taken
};

/// Looks for a slot, and takes a free place where it has none. Most are there already, which costs a look into L1. What
/// L1 has may be old, so a place that is free there is looked at in L2 before it is taken. Returns the place if it was
/// taken here, else ~0.
__device__ std::uint32_t take_place(const NamedRows& n, std::uint32_t key, Look look) {
  for (std::uint32_t looks = 0; looks < NamedRows::kLooks; ++looks) {
    std::uint32_t* const place = &n.table[look.at].key;
    if (look.key == 0) look.key = *const_cast<const volatile std::uint32_t*>(place);
    if (look.key == 0) {
      look.key = atomicCAS(place, 0U, key);
      if (look.key == 0) return look.at;
    }
    if (look.key == key) return ~0U;
    look.at = (look.at + NamedRows::kStep) & n.table_mask;
    look.key = n.table[look.at].key;
  }
  // So many neighbours are taken only where the rows do not fit, or are about to.
  atomicMax(n.total, n.capacity + 1);
  return ~0U;
}

/// 16 bf16 numbers as fp16, times kHalfUnit.
__device__ void halves_of_bf16(const uint4 (&from)[2], uint4 (&to)[2], std::uint32_t& overflow) {
  const auto pair = [&](std::uint32_t x) {
    const std::uint32_t halves =
        halves_of(__uint_as_float(x << 16) * kHalfUnit, __uint_as_float(x & 0xFFFF'0000U) * kHalfUnit);
    overflow |= fp16_overflow(halves);
    return halves;
  };
#pragma unroll
  for (int i = 0; i < 2; ++i) to[i] = make_uint4(pair(from[i].x), pair(from[i].y), pair(from[i].z), pair(from[i].w));
}

/// A warp widens the row of a slot to `to`, a lane 16 numbers of it. Returns whether fp16 cannot represent one.
__device__ bool widen_row(const TileCall& c, const NamedRows& n, std::uint32_t key, std::uint16_t* to) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int scope = c.a.scopes > 1 && key > n.first_slot[1] ? 1 : 0;
  const RowLayout& layout = c.layout[scope];
  const std::uint32_t slot = key - 1 - n.first_slot[scope];
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
  auto* const place = reinterpret_cast<uint4*>(to + 16 * lane);
  place[0] = halves[0], place[1] = halves[1];
  return __any_sync(kAll, unfit || (overflow & 0x8000'8000U) != 0U) != 0;
}

/// A block looks up the slots that one token names, kEntries at once, and widens the rows of those that no block had
/// looked up before.
__global__ void __launch_bounds__(kWidenThreads)
    widen_rows(const __grid_constant__ TileCall c, const __grid_constant__ NamedRows n) {
  __shared__ NamedRows::Place taken[kEntries];  // key, and where it is in the table
  __shared__ std::uint32_t count;
  __shared__ std::uint32_t first_row;
  const auto thread = static_cast<int>(threadIdx.x);
  if (thread == 0) count = 0;
  device::pdl_wait();
  __syncthreads();
  const std::int64_t token = c.first_token + blockIdx.x;
  for (int s = 0; s < c.a.scopes; ++s) {
    const KeyList& list = c.a.keys[s];
    const std::int32_t* const entry = list.indices + token * list.index_stride;
    const auto entries = static_cast<int>(list.entries(token));
    const std::uint32_t num_slots = c.layout[s].num_slots;
    for (int first = 0; first < entries; first += kEntries) {
      std::uint32_t slot[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int at = first + thread + i * kWidenThreads;
        slot[i] = at < entries ? static_cast<std::uint32_t>(__ldg(entry + at)) : ~0U;
      }
      Look look[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        look[i].at = NamedRows::first_look(n.first_slot[s] + slot[i] + 1) & n.table_mask;
        if (slot[i] < num_slots) look[i].key = n.table[look[i].at].key;
      }
      bool took = false;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (slot[i] >= num_slots) continue;
        const std::uint32_t key = n.first_slot[s] + slot[i] + 1;
        if (look[i].key == key) continue;
        const std::uint32_t at = take_place(n, key, look[i]);
        if (at == ~0U) continue;
        taken[atomicAdd(&count, 1)] = {key, at};
        took = true;
      }
      if (__syncthreads_or(took ? 1 : 0) == 0) continue;
      const std::uint32_t rows = count;
      if (thread == 0) first_row = atomicAdd(n.total, rows);
      __syncthreads();
      // What does not fit is counted alone.
      const std::uint32_t begin = first_row;
      for (std::uint32_t i = thread / 32; i < rows && begin + i < n.capacity; i += kWidenWarps) {
        const auto [key, at] = taken[i];
        const bool unfit = widen_row(c, n, key, n.rows + std::size_t{begin + i} * AttentionTile::kDim);
        if (thread % 32 == 0) n.table[at].row = begin + i + (unfit ? NamedRows::kUnfit : 0);
      }
      __syncthreads();
      if (thread == 0) count = 0;
      if (begin > n.capacity) return;
      __syncthreads();
    }
  }
  device::pdl_trigger();
}

}  // namespace

void widen_named_rows(const TileCall& c, const NamedRows& n, std::int64_t tokens, cudaStream_t stream) {
  check_cuda(cudaMemsetAsync(n.total, 0, n.cleared_bytes(), stream), "sparse_attention widen: cudaMemsetAsync");
  device::launch_pdl<widen_rows>("sparse_attention widen_rows", blocks_for(tokens, 1), kWidenThreads, 0, stream, c, n);
}

}  // namespace smla::attention
