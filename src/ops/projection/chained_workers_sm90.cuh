#pragma once

#include "device/ptx/barrier.cuh"
#include "device/ptx/cluster_sm90.cuh"
#include "device/ptx/flags.cuh"
#include "ops/projection/stream_tiles_sm90.cuh"

namespace smla::projection::sm90 {

// Of a chained call: which clusters' tiles a cluster computes. All are computed even if the GPU has no room to start
// some clusters before others end, since kernels of other streams hold its multiprocessors.
//
// A cluster claims its own tiles. One that finds others' unclaimed waits for a while, then claims and computes theirs,
// too. A cluster that starts after that finds its own claimed, and has nothing to do. So a cluster waits only for tiles
// that clusters which run have claimed.

/// Claims the cluster's own tiles, by one thread of it after pdl_wait(), and gives what find_workers() is to be told.
__device__ inline std::uint64_t claim_own(const ChainedProduct& chained) {
  return device::exchange(chained.claimed + blockIdx.x / kChainedBlocks, chained.nonce);
}

/// Claims what others have not and tells the cluster's blocks (Tiles::workers). For the warp whose lane 0 has claimed
/// the cluster's own tiles and found `before` there, when all blocks have made their barriers.
template <class Shape>
__device__ void find_workers(const ChainedProduct& chained, std::uint32_t shared, std::uint64_t before) {
  constexpr int kPolls = 100;  // some 0.7 us each
  constexpr unsigned kAll = 0xFFFF'FFFFU;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int clusters = static_cast<int>(gridDim.x) / kChainedBlocks;
  const int own = static_cast<int>(blockIdx.x) / kChainedBlocks;
  const auto unclaimed = [&](int cluster) {
    return cluster < clusters && device::ld_acquire(chained.claimed + cluster) != chained.nonce;
  };
  const auto claim = [&](int cluster) {
    return device::exchange(chained.claimed + cluster, chained.nonce) != chained.nonce;
  };
  // Where each block has its first tile of the first product and of the second.
  const auto tell = [&](int number, int worker) {
    const auto all = static_cast<std::uint32_t>(clusters);
    const auto first = static_cast<std::uint32_t>(worker);
    const std::uint32_t second = first + (chained.first_tiles - first + all - 1) / all * all;
#pragma unroll
    for (int block = 0; block < kChainedBlocks; ++block) {
      const std::uint32_t place = device::place_in_block(shared + Shape::kWorkers + 8 * number, block);
      device::st_shared_cluster_u32(place, first);
      device::st_shared_cluster_u32(place + 4, second);
    }
  };
  int count = 0;
  if (__any_sync(kAll, lane == 0 && before != chained.nonce)) {
    if (lane == 0) tell(0, own);
    count = 1;
    bool missing = true;
#pragma unroll 1
    for (int i = 0; i < kPolls && missing; ++i) {
      const bool first = unclaimed(lane);
      missing = __any_sync(kAll, unclaimed(lane + 32) || first);
    }
#pragma unroll 1
    for (int cluster = lane; missing && cluster - lane < clusters; cluster += 32) {
      const bool mine = unclaimed(cluster) && claim(cluster);
      const unsigned all = __ballot_sync(kAll, mine);
      if (mine) tell(count + __popc(all & ((1U << lane) - 1)), cluster);
      count += __popc(all);
    }
  }
  if (lane < kChainedBlocks)
    device::st_shared_cluster_u32(device::place_in_block(shared + Shape::kWorkerCount, lane), count);
  device::cluster_fence();
  __syncwarp();
  if (lane < kChainedBlocks) device::mbarrier_arrive_cluster(shared + Shape::kWorkersKnown, lane);
}

/// Behind a block's last wait for flags, by the warpgroup that waited: the last block clears them, for the next launch
/// with the same nonce.
__device__ inline void clear_flags(const ChainedProduct& chained) {
  constexpr int kEnd = 2;  // barrier of the warpgroup
  device::bar_sync(kEnd, kGroupThreads);
  if (threadIdx.x % kGroupThreads / 32 != 0) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  bool last = false;
  if (lane == 0) {
    device::begin_count(chained.done, chained.nonce, gridDim.x);
    last = device::count_up(chained.done, chained.nonce, gridDim.x);
  }
  if (!__any_sync(0xFFFF'FFFFU, last)) return;
  const int flags = 2 * (chained.k / Projection::kWeightBlock);
#pragma unroll 1
  for (int i = lane; i < flags; i += 32) chained.made[i] = 0;
#pragma unroll 1
  for (int i = lane; i < static_cast<int>(gridDim.x) / kChainedBlocks; i += 32) chained.claimed[i] = 0;
}

}  // namespace smla::projection::sm90
