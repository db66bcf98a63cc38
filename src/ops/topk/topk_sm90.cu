// Exact top-k on Hopper of few long rows: a cluster of blocks for each. See docs/kernels/topk.md.
#include <algorithm>

#include "device/launch_pdl.cuh"
#include "ops/cuda_row.h"
#include "ops/topk/cluster_select_sm90.cuh"
#include "ops/topk/implementations.h"
#include "ops/topk/topk_cluster_split.h"

namespace smla {

namespace {

using namespace topk;
using namespace topk::sm90;

constexpr int kThreads = 512;

/// Shared memory of a block, in bytes.
struct Place {
  static constexpr int kCounts = 0;
  static constexpr int kShared = 2 * kBins * 4;
  static constexpr int kKeys = kShared + static_cast<int>((sizeof(SelectShared) + 15) / 16 * 16);
};

/// A row for each cluster of `together` blocks, which have room for `capacity` of its columns.
__global__ void __launch_bounds__(kThreads, 2)
    select_by_cluster(const __grid_constant__ TopkCall c, int together, std::uint32_t capacity) {
  extern __shared__ __align__(16) std::uint8_t dynamic[];
  auto& shared = *reinterpret_cast<SelectShared*>(dynamic + Place::kShared);
  auto* keys = reinterpret_cast<std::uint32_t*>(dynamic + Place::kKeys);
  const int rank = device::cluster_rank();
  const std::int64_t row = blockIdx.x / together;
  device::cluster_arrive();  // waited for before another block's shared memory is written: it must have started
  device::pdl_wait();
  device::pdl_trigger();
  const auto length = static_cast<std::uint32_t>(c.length(row));
  const auto k = static_cast<std::uint32_t>(c.k);
  const bool all = length <= k;
  const std::uint32_t span = ((length + together - 1) / together + 31) / 32 * 32;
  const ClusterSelect<kThreads> selection{.s = shared,
                                          .counts = reinterpret_cast<std::uint32_t*>(dynamic + Place::kCounts),
                                          .keys = keys,
                                          .capacity = capacity,
                                          .begin = rank * span,
                                          .span = span,
                                          .rows = 1,
                                          .rank = rank,
                                          .together = together};
  if (threadIdx.x == 0) {
    shared.row[0] = {.length = length, .left = k, .all = all, .done = all};
    shared.slot_request[0] = c.slots.lens == nullptr ? 0 : c.slots.request[row];
  }
  selection.clear(0);
  selection.clear(1);
  if (!all) {
    constexpr int kLoads = 8;
    const float* scores = c.scores(row) + selection.begin;
    const std::uint32_t mine = length > selection.begin ? min(length - selection.begin, span) : 0U;
    for (std::uint32_t base = threadIdx.x; base < mine; base += kLoads * kThreads) {
      float score[kLoads];
#pragma unroll
      for (int i = 0; i < kLoads; ++i) score[i] = base + i * kThreads < mine ? scores[base + i * kThreads] : 0.0F;
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        if (base + i * kThreads < mine) keys[base + i * kThreads] = key_of(__float_as_uint(score[i]));
      }
    }
  }
  __syncthreads();
  device::cluster_wait();
  selection.write(c, row, selection.search());
}

Decision decide(const TopK::Problem& p, const PlanOptions& options, const Machine& machine) {
  if (std::string missing = needs_sm90(machine); !missing.empty()) return refused(std::move(missing));
  if (p.k < 1 || p.k > kMostChosen)
    return refused(std::to_string(p.k) + " columns to choose; it chooses 1 to " + std::to_string(kMostChosen));
  const TopkClusters clusters = topk_clusters(p, machine.gpu, Place::kKeys);
  if (clusters.together == 0) {
    return refused(std::to_string(p.width) + " columns, which do not fit the shared memory of a cluster of " +
                   std::to_string(kMostTogether) + " blocks");
  }
  if (options.implementation != "sm90") {
    if (std::string way = shorter_way(p); !way.empty()) return refused(std::move(way));
  }
  Decision decision;
  decision.words = "a row by " + std::to_string(clusters.together) + " blocks of a cluster";
  decision.choice = clusters;
  return decision;
}

void run(const TopK::Problem& p, const TopK::Args& a, const RunContext& context) {
  if (p.rows == 0) return;
  const TopkCall c = topk_call(p, a);
  const auto& clusters = context.choice<TopkClusters>();
  const int together = static_cast<int>(clusters.together);
  const auto capacity = static_cast<std::uint32_t>(clusters.columns);
  const int bytes = Place::kKeys + static_cast<int>(clusters.columns) * 4;
  const unsigned rows = blocks_for(p.rows, 1);
  const cudaStream_t stream = stream_of(context.stream);
  constexpr const char* kName = "topk select_by_cluster";
  const auto launch = [&]<unsigned kTogether>() {
    device::launch_cluster<select_by_cluster, kTogether>(kName, rows, dim3(kThreads), bytes, stream, c, together,
                                                         capacity);
  };
  switch (together) {
    case 1: launch.operator()<1>(); break;
    case 2: launch.operator()<2>(); break;
    case 4: launch.operator()<4>(); break;
    case 8: launch.operator()<8>(); break;
    default: launch.operator()<kMostTogether>(); break;
  }
  topk_chosen_scores_cuda(p, a, context);
}

}  // namespace

template <>
Implementation<TopK> sm90_row() {
  return hopper_row<TopK>(run, decide);
}

}  // namespace smla
