#pragma once

#include "ops/indexer/score_warpgroups_sm90.cuh"
#include "ops/topk/cluster_select_sm90.cuh"

namespace smla::indexer::sm90 {

// Index scores and their exact top-k in one launch: a cluster of blocks has up to kSelectRows rows, each block a run of
// their columns. A block scores it into its shared memory; then the cluster selects (cluster_select_sm90.cuh).

using topk::sm90::kSelectRows;
using topk::sm90::SelectShared;

constexpr int kSelectThreads = 512;

/// The arguments of a call. Of `scores`, `parts` is the number of a cluster's blocks, and there are no logits.
struct SelectCall {
  LogitsCall scores;
  topk::TopkCall chosen;       ///< without logits; lengths and width are those of the scores
  std::uint32_t capacity = 0;  ///< columns that a block has room for in each row
};

/// Shared memory of a block, as Place has it, then the keys of its columns.
template <int kN>
struct SelectPlace : Place<kN, kSelectThreads> {
  using Scores = Place<kN, kSelectThreads>;
  static constexpr int kShared = (sizeof(SelectShared) + 15) / 16 * 16;

  __host__ __device__ static constexpr int shared(int units) { return (Scores::bytes(units) + 15) / 16 * 16; }
  __host__ __device__ static constexpr int columns(int units) { return shared(units) + kShared; }
  __host__ __device__ static constexpr int bytes(int units, int rows, std::uint32_t capacity) {
    return columns(units) + rows * static_cast<int>(capacity) * 4;
  }
  // A digit's counters lie where the keys of tiles were.
  static_assert(Scores::kKeyBytes >= 2 * kSelectRows * topk::kBins * 4);
};

/// What a block has: rows of the call from `first` on, and of each the columns [begin, begin + span).
struct SelectShare {
  std::int64_t first = 0;
  int rows = 0;
  std::uint32_t begin = 0;
  std::uint32_t span = 0;

  __device__ explicit SelectShare(const LogitsCall& c)
      : first((c.groups - 1 - blockIdx.x / c.parts) * c.group_rows),
        rows(static_cast<int>(min(static_cast<std::int64_t>(c.group_rows), c.rows - first))) {}
  /// Deals the columns out, once the rows' lengths are known.
  __device__ SelectShare(const LogitsCall& c, const SelectShared& select) : SelectShare(c) {
    std::uint32_t longest = 0;
    for (int r = 0; r < rows; ++r) longest = max(longest, select.row[r].length);
    const auto parts = static_cast<std::uint32_t>(c.parts);
    span = ((longest + parts - 1) / parts + kTile - 1) / kTile * kTile;
    begin = static_cast<std::uint32_t>(device::cluster_rank()) * span;
  }
};

template <int kN, int kBlocks>
__global__ void __launch_bounds__(kSelectThreads, 1) score_and_select(const __grid_constant__ SelectCall call) {
  using P = SelectPlace<kN>;
  extern __shared__ __align__(1024) std::uint8_t dynamic[];
  const LogitsCall& c = call.scores;
  const int units = c.group_rows * kBlocks;
  auto* infos = reinterpret_cast<RowInfo*>(dynamic + P::rows(units));
  auto* requests = reinterpret_cast<std::int32_t*>(infos + kMaxRows);
  auto& select = *reinterpret_cast<SelectShared*>(dynamic + P::shared(units));
  auto* keys = reinterpret_cast<std::uint32_t*>(dynamic + P::columns(units));

  device::cluster_arrive();  // waited for before another block's shared memory is written: it must have started
  device::pdl_wait();
  {
    const SelectShare share(c);
    const auto k = static_cast<std::uint32_t>(call.chosen.k);
    if (static_cast<int>(threadIdx.x) < share.rows) {
      const std::int64_t row = share.first + threadIdx.x;
      const auto length = static_cast<std::uint32_t>(c.span(row).end);
      const bool all = length <= k;
      select.row[threadIdx.x] = {.length = length, .left = k, .all = all, .done = all};
      infos[threadIdx.x] = {nullptr, 0, all ? 0U : length};  // where all are chosen, no score is needed
      requests[threadIdx.x] = c.row_to_req[row];
      select.slot_request[threadIdx.x] = call.chosen.slots.lens == nullptr ? 0 : call.chosen.slots.request[row];
    }
  }
  __syncthreads();
  {
    const SelectShare share(c, select);
    std::uint32_t scored = 0;
    for (int r = 0; r < share.rows; ++r) scored = max(scored, infos[r].count);
    if (share.begin < scored) {
      const BlockRows block{.first = share.first,
                            .count = share.rows,
                            .units = units,
                            .infos = infos,
                            .requests = requests,
                            .shared = device::shared_address(dynamic)};
      const EntryTiles tiles{.first = share.begin + warpgroup() * kTile,
                             .hop = kSelectThreads / kGroupThreads * kTile,
                             .limit = min(share.begin + share.span, scored)};
      const std::uint32_t columns = device::shared_address(keys) - 4 * share.begin;
      score_rows<kN, kBlocks, kSelectThreads, false>(
          c, block, tiles, [&](unsigned row, const RowInfo& /*info*/, std::uint32_t entry, float score) {
            device::st_shared_u32(columns + (row * call.capacity + entry) * 4, topk::key_of(__float_as_uint(score)));
          });
    } else {
      device::pdl_trigger();
    }
  }
  __syncthreads();
  const SelectShare share(c, select);  // again, so that it takes no registers meanwhile
  const topk::sm90::ClusterSelect<kSelectThreads> selection{
      .s = select,
      .counts = reinterpret_cast<std::uint32_t*>(dynamic + P::keys(units)),
      .keys = keys,
      .capacity = call.capacity,
      .begin = share.begin,
      .span = share.span,
      .rows = share.rows,
      .rank = device::cluster_rank(),
      .together = c.parts};
  selection.clear(0);
  selection.clear(1);
  __syncthreads();
  device::cluster_wait();
  selection.write(call.chosen, share.first, selection.search());
}

}  // namespace smla::indexer::sm90
