#pragma once

#include "device/ptx/bulk_copy_sm90.cuh"
#include "device/ptx/cluster_sm90.cuh"
#include "device/ptx/mbarrier_sm90.cuh"
#include "device/ptx/shared.cuh"
#include "ops/attention/attention_block.cuh"
#include "ops/attention/small_split.h"

namespace smla::attention::small {

// A call of few queries on Hopper: the blocks of a cluster share one token's list and 16 of its heads, and add their
// sums up in each other's shared memory. Eight warps compute, each with 64 numbers of all rows; three bring the rows.
// Such a call is one chain of waits, so what is waited for is asked for as early as registers allow, and code that
// warps execute once is kept short (docs/kernels/sparse_attention_small.md).

constexpr int kHeads = SmallSplit::kHeads;
constexpr int kRun = SmallSplit::kRun;
constexpr int kGroups = 8;  ///< of 64 numbers of a row, and warps that compute
constexpr int kComputeThreads = 32 * kGroups;
constexpr int kStep = 16;  ///< keys by which a tile is filled up
constexpr int kSteps = 5;
constexpr int kKeys = kStep * kSteps;  ///< of a tile of a block
constexpr int kStages = 2;
constexpr int kListThreads = (kKeys + 31) / 32 * 32;
constexpr int kThreads = kComputeThreads + kListThreads;
constexpr int kBarrier = 1;  ///< the named barrier of the warps that compute

/// Where things are in a block's shared memory.
struct Place {
  static constexpr int kMostRowBytes = 64 * (kGroups - 1) + 2 * 64;  ///< of a key as its cache stores it
  static constexpr int kRowBytes = kMostRowBytes + 16;  ///< filled up: 16 bytes of eight rows lie in all banks
  static constexpr int kQueryBytes = 2 * kDim + 16;     ///< of a head's query
  static constexpr int kScoreBytes = 4 * (kKeys + 8);   ///< of a head's scores

  static constexpr int kRows = 0;                                       ///< [stages, keys]
  static constexpr int kQueries = kRows + kStages * kKeys * kRowBytes;  ///< [heads] fp16; bf16 as the rows' numbers are
  static constexpr int kScores = kQueries + kHeads * kQueryBytes;       ///< [groups, heads] fp32
  static constexpr int kWeights = kScores + kGroups * kHeads * kScoreBytes;  ///< [heads] fp32
  static constexpr int kScales = kWeights + kHeads * kScoreBytes;            ///< [stages, groups, keys] fp32
  static constexpr int kMasks =
      kScales + kStages * kGroups * kKeys * 4;                 ///< [stages, keys] {factor of scores, 0 or -inf}
  static constexpr int kWeigh = kMasks + kStages * kKeys * 8;  ///< [stages, keys] factor of weights
  // What the cluster's blocks send of the heads that this one finishes: a row of each block and head.
  static constexpr int kInboxRows = 18;                       ///< most: of six blocks and three heads, or three and six
  static constexpr int kSums = kWeigh + kStages * kKeys * 4;  ///< [blocks, own heads, 512] fp16
  static constexpr int kUnits = kSums + kInboxRows * kDim * 2;       ///< [blocks, own heads, groups] fp32
  static constexpr int kStates = kUnits + kInboxRows * kGroups * 4;  ///< [blocks, own heads] {reference, sum}
  static constexpr int kSent = 2 * kDim + 4 * kGroups + 8;           ///< bytes of a row
  static constexpr int kFactors = kStates + kInboxRows * 8;          ///< [heads] what earlier sums are multiplied by
  static constexpr int kSinks = kFactors + kHeads * 4;               ///< [heads]
  static constexpr int kQueryUnits = kSinks + kHeads * 4;            ///< [heads, groups]
  static constexpr int kBack = kQueryUnits + kHeads * kGroups * 4;   ///< 64 fp32: a row of cos_sin
  static constexpr int kFull = kBack + 64 * 4;                       ///< [stages] barriers
  static constexpr int kFree = kFull + kStages * 8;
  static constexpr int kInbox = kFree + kStages * 8;  ///< barrier
  static constexpr int kEntries = kInbox + 8;         ///< how many the block has
  static constexpr int kBytes = kEntries + 8;
};

__device__ inline float2 numbers_at(std::uint32_t shared) {
  const uint2 bits = device::ld_shared_v2(shared);
  return {__uint_as_float(bits.x), __uint_as_float(bits.y)};
}
__device__ inline void put_numbers(std::uint32_t shared, float x, float y) {
  device::st_shared_v2(shared, make_uint2(__float_as_uint(x), __float_as_uint(y)));
}

/// What a cluster of kBlocks blocks computes.
template <int kBlocks>
struct Work {
  static constexpr int kOwnHeads =
      (kHeads + kBlocks - 1) / kBlocks;  ///< that a block finishes; the last may have fewer
  static_assert(kBlocks * kOwnHeads <= Place::kInboxRows);

  const TileCall& c;
  std::uint32_t shared;  ///< address of the block's dynamic shared memory
  std::int64_t token;
  int first_head;
  int heads;  ///< of the call among the cluster's, 0 to kHeads
  int rank;   ///< of the block in its cluster

  /// Bytes that the cluster's blocks send to this one.
  __device__ int sent() const { return kBlocks * max(min(kOwnHeads, kHeads - rank * kOwnHeads), 0) * Place::kSent; }
  __device__ static int runs_of(std::int64_t entries) {
    return static_cast<int>((entries + kRun * kBlocks - 1) / (kRun * kBlocks));
  }
  __device__ std::uint32_t row(int stage, int key) const {
    return shared + Place::kRows + (stage * kKeys + key) * Place::kRowBytes;
  }
  __device__ std::uint32_t scale(int stage, int group, int key) const {
    return shared + Place::kScales + ((stage * kGroups + group) * kKeys + key) * 4;
  }
};

/// The warps that walk the list and bring its rows: a thread has a key of each tile.
template <int kBlocks>
struct Rows {
  using Work = small::Work<kBlocks>;
  static constexpr std::uint32_t kOnes = 0x7F7F'7F7FU;  ///< UE8M0 bytes
  const Work& w;
  int key = static_cast<int>(threadIdx.x) - kComputeThreads;
  int first_runs = 0;  ///< of the first scope
  const std::int32_t* first_list = nullptr;
  const std::int32_t* second_list = nullptr;
  int first_room = 0;  ///< entries of its row from there on
  int second_room = 0;

  __device__ int scope(int entry) const { return entry / kRun < first_runs ? 0 : 1; }
  /// Where an entry of the block is in its scope's list.
  __device__ int in_scope(int entry, int of_scope) const {
    const int run = entry / kRun - (of_scope == 0 ? 0 : first_runs);
    return (run * kBlocks + w.rank) * kRun + entry % kRun;
  }
  /// What the list holds there, -1 behind its row.
  __device__ std::int32_t listed(int entry) const {
    const int s = scope(entry);
    const int at = in_scope(entry, s);
    if (s >= w.c.a.scopes || at >= (s == 0 ? first_room : second_room)) return -1;
    return __ldg((s == 0 ? first_list : second_list) + at);
  }

  /// Brings all tiles, each when its buffer is free, and tells how many entries the block has.
  __device__ void all_tiles() {
    const TileCall& c = w.c;
    const bool two = c.a.scopes > 1;
    first_runs = two ? Work::runs_of(c.a.keys[0].width) : 1 << 30;
    const auto find = [&](const KeyList& keys, const std::int32_t*& list, int& room) {
      list = keys.first<Lists::kAlone>(w.token);
      room = static_cast<int>(keys.width) - (keys.sharing > 1 ? keys.range(w.token).x : 0);
    };
    find(c.a.keys[0], first_list, first_room);
    if (two) find(c.a.keys[1], second_list, second_room);
    std::int32_t slot = key < kKeys ? listed(key) : -1;
    int lens[SparseAttention::kMaxScopes];
    c.a.entries<Lists::kAlone>(w.token, 0, 1, lens);
    const int runs = two ? first_runs + Work::runs_of(lens[1]) : Work::runs_of(lens[0]);
    const int entries = w.heads > 0 ? runs * kRun : 0;
    if (key == 0) device::st_shared_u32(w.shared + Place::kEntries, static_cast<std::uint32_t>(entries));
    if (key >= kKeys) return;
    const unsigned lanes = key / 32 < kKeys / 32 ? kAll : (1U << kKeys % 32) - 1;
    int tile = 0;
#pragma unroll 1
    do {
      const int entry = tile * kKeys + key;
      const int stage = tile % kStages;
      const std::uint32_t full = w.shared + Place::kFull + 8 * stage;
      if (tile >= kStages) {
        device::mbarrier_wait(w.shared + Place::kFree + 8 * stage, (tile / kStages - 1) & 1);
        device::fence_proxy_async();
      }
      const int s = scope(entry);
      const RowLayout& l = c.layout[s];
      const bool there = s < c.a.scopes && in_scope(entry, s) < (s == 0 ? lens[0] : lens[1]) &&
                         static_cast<std::uint32_t>(slot) < l.num_slots;
      const std::uint8_t* row = nullptr;
      const std::uint8_t* scales = nullptr;
      if (there) {
        const std::uint32_t block = static_cast<std::uint32_t>(slot) >> l.block_bits;
        const std::uint32_t in_block = static_cast<std::uint32_t>(slot) - (block << l.block_bits);
        const std::uint8_t* const base = l.base + static_cast<std::int64_t>(block) * l.block_stride;
        row = base + static_cast<std::uint64_t>(in_block) * l.row_bytes;
        scales = base + l.scales + static_cast<std::uint64_t>(in_block) * l.scale_bytes;
      }
      // A key of a step that the list does not name has the row of another one: what it is multiplied by is zero.
      const unsigned named = __ballot_sync(lanes, there);
      const int other = named == 0 ? 0 : __ffs(static_cast<int>(named)) - 1;
      const auto another =
          reinterpret_cast<const std::uint8_t*>(__shfl_sync(lanes, reinterpret_cast<std::uint64_t>(row), other));
      const bool counts = entry < (entries + kStep - 1) / kStep * kStep;
      const bool copies = counts && named != 0;
      if (copies) device::bulk_copy(w.row(stage, key), there ? row : another, l.row_bytes, full);
      uint2 bytes = {kOnes, kOnes};
      if (there && l.scaled) bytes = __ldg(reinterpret_cast<const uint2*>(scales));
      slot = listed(entry + kKeys);
      if (counts && named == 0) {
#pragma unroll 4
        for (int i = 0; i < Place::kMostRowBytes; i += 16)
          device::st_shared_v4(w.row(stage, key) + i, make_uint4(0, 0, 0, 0));
      }
      const std::uint32_t place = stage * kKeys + key;
      put_numbers(w.shared + Place::kMasks + 8 * place, c.score_scale[s], there ? 0.0F : -INFINITY);
      device::st_shared_f32(w.shared + Place::kWeigh + 4 * place, c.weight_scale[s]);
      // It has the other key's scales, too, so that a tile's are no further apart than those of its keys.
      const uint2 of_other = {__shfl_sync(lanes, bytes.x, other), __shfl_sync(lanes, bytes.y, other)};
      if (!there) bytes = of_other;
      if (l.key.code_groups < kGroups) bytes.y = __byte_perm(bytes.y, kOnes, 0x4210);
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const auto byte = static_cast<std::uint8_t>(__byte_perm(bytes.x, bytes.y, g));
        device::st_shared_f32(w.scale(stage, g, key), device::from_ue8m0(byte));
      }
      if (copies) {
        device::mbarrier_arrive_expect(full, l.row_bytes);
      } else {
        device::mbarrier_arrive(full);
      }
    } while (++tile * kKeys < entries);
  }
};

}  // namespace smla::attention::small
