#pragma once

#include <type_traits>

#include "device/ptx/cp_async.cuh"
#include "device/ptx/ldmatrix.cuh"
#include "device/ptx/shared.cuh"
#include "ops/indexer/indexer_call.cuh"

namespace smla::indexer::sm90 {

// The keys of index scores on Hopper: from a cache's blocks through shared memory to a warp's registers.

constexpr int kDim = 128;  ///< numbers of a key, which are its bytes
constexpr int kWarpKeys = 16;
constexpr int kStages = 2;  ///< tiles of a warp on their way, besides the one in its registers
constexpr unsigned kAllLanes = 0xFFFF'FFFFU;

/// Whether the 16 keys of a warp's share of a tile lie in one block one behind the other. Tiles begin at multiples of
/// 64 entries.
inline bool in_runs(const LogitsCall& c) {
  const Keys& k = c.keys;
  return k.paged && k.block_bits >= 4 && k.data_bytes == kDim && k.scale_bytes == 4 && k.scale_stride == k.data_stride;
}

/// Where the keys of a lane are in the tile that is asked for next, each looked up in the block table by itself.
struct LaneKeys {
  const LogitsCall& c;
  std::int32_t request;
  EntryPlace next = {};

  __device__ void look_up(std::uint32_t entry, std::uint32_t last) {
    next = entry < last ? c.keys.find(request, entry) : EntryPlace{};
  }
  __device__ bool there() const { return c.keys.holds(next); }
};

/// Where a warp's 16 keys are, which lie in a run (in_runs()).
struct KeyRun {
  const LogitsCall& c;
  const std::int32_t* blocks;  ///< the request's row of the block table
  std::uint32_t columns;       ///< of it; 0 of a request that has none
  std::int32_t block = -1;
  std::uint32_t offset = 0;

  __device__ KeyRun(const LogitsCall& call, std::int32_t request) : c(call) {
    const Keys& k = c.keys;
    const bool known = request >= 0 && request < k.requests;
    blocks = k.table + (known ? request * k.table_stride : 0);
    columns = known ? static_cast<std::uint32_t>(min(k.columns, std::int64_t{INT32_MAX})) : 0U;
  }
  __device__ void look_up(std::uint32_t entry, std::uint32_t last) {
    const std::uint32_t column = entry >> c.keys.block_bits;
    offset = entry & (c.keys.block_size - 1);
    block = entry < last && column < columns ? __ldg(blocks + column) : -1;
  }
  __device__ bool there() const { return static_cast<std::uint32_t>(block) < c.keys.blocks; }
};

/// Brings a warp's share of tiles: 16 keys of each 64, by copies that run while earlier tiles are multiplied. kRuns:
/// in_runs(), so that all lanes look up the first key; else lanes l and l + 16 look up key l.
template <bool kRuns>
struct KeyStream {
  std::conditional_t<kRuns, KeyRun, LaneKeys> next;  ///< looked up a tile before it is used
  std::uint32_t keys;                                ///< its stages in shared memory
  std::uint32_t scales;                              ///< and of the keys' scales
  std::uint32_t last;                                ///< entries from here on are not wanted
  std::uint32_t entry;                               ///< that of this lane in the tile that is asked for next
  std::uint32_t hop;
  int lane;
  std::uint32_t exists[kStages]{};  ///< which keys do, of the tiles on their way

  /// Asks for the next tile. Keys that do not exist become zeros.
  __device__ void ask(int stage) {
    const LogitsCall& c = next.c;
    const bool there = next.there();
    const std::uint32_t to = keys + stage * kWarpKeys * kDim;
    const std::uint32_t scale_to = scales + (stage * kWarpKeys + lane) * 4;
    std::uint32_t found = 0;
    // Chunk j of a key's eight goes to place j ^ key % 8.
    if constexpr (kRuns) {
      found = there ? 1U : 0U;
      const std::int64_t block = there ? next.block * c.keys.data_stride : 0;
      const std::uint8_t* const from = c.keys.data + block + next.offset * kDim + 16 * lane;
      const std::uint32_t place = lane / 8 * kDim + (lane ^ lane / 8) % 8 * 16;
#pragma unroll
      for (int i = 0; i < kWarpKeys / 4; ++i)
        device::cp_async<16>(to + 4 * kDim * i + (place ^ i % 2 * 64), from + 4 * kDim * i, there);
      if (lane < kWarpKeys) device::cp_async<4>(scale_to, c.keys.scales + block + 4 * (next.offset + lane), there);
    } else {
      found = __ballot_sync(kAllLanes, there);
      const auto address = reinterpret_cast<std::uint64_t>(there ? c.keys.data_at(next.next) : c.q);
#pragma unroll
      for (int i = 0; i < kWarpKeys / 4; ++i) {
        const int key = 4 * i + lane / 8;
        const auto from = __shfl_sync(kAllLanes, address, key);
        device::cp_async<16>(to + key * kDim + ((lane ^ key) % 8) * 16,
                             reinterpret_cast<const std::uint8_t*>(from) + lane % 8 * 16, (found >> key & 1U) != 0);
      }
      if (lane < kWarpKeys) device::cp_async<4>(scale_to, there ? c.keys.scales_at(next.next) : c.q, there);
    }
    device::cp_async_commit();
#pragma unroll
    for (int s = 0; s + 1 < kStages; ++s) exists[s] = exists[s + 1];
    exists[kStages - 1] = found;
    entry += hop;
    next.look_up(entry, last);
  }

  __device__ void begin() {
    next.look_up(entry, last);
#pragma unroll
    for (int s = 0; s < kStages; ++s) ask(s);
  }

  /// Waits for the oldest tile and takes it to registers: a[s] is what product s needs.
  __device__ void take(int stage, std::uint32_t (&a)[kDim / 32][4]) const {
    device::cp_async_wait<kStages - 1>();
    __syncwarp();
    const int key = lane % 16;
#pragma unroll
    for (int s = 0; s < kDim / 32; ++s)
      device::ldmatrix_x4(a[s], keys + (stage * kWarpKeys + key) * kDim + ((2 * s + lane / 16) ^ key % 8) * 16);
  }
  __device__ float scale(int stage, int key) const {
    return device::ld_shared_f32(scales + (stage * kWarpKeys + key) * 4);
  }
};

}  // namespace smla::indexer::sm90
