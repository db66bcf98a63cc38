// Gathers index rows of requests out of their blocks. One warp for each output row; it finds its request by a vote over
// cu_seq_lens.
#include "cache/cache_view.cuh"
#include "device/copy.cuh"
#include "device/launch_pdl.cuh"
#include "ops/cuda_row.h"
#include "sparsemla/ops/indexer.h"

namespace smla {

namespace {

constexpr int kWarps = 4;
constexpr unsigned kMaxBlocks = 1U << 16;
constexpr unsigned kAll = 0xFFFF'FFFFU;

struct GatherCall {
  device::CacheView cache;
  std::int64_t num_blocks = 0;
  std::int64_t requests = 0;
  std::int64_t rows = 0;
  const std::int32_t* start = nullptr;
  const std::int32_t* table = nullptr;
  std::int64_t table_stride = 0;
  std::int64_t columns = 0;
  std::uint8_t* values = nullptr;
  std::int64_t value_stride = 0;
  int value_word = 1;
  std::uint8_t* scales = nullptr;
  std::int64_t scale_stride = 0;
  int scale_word = 1;

  /// The slot of output row `to` in request b; -1 when the row is not the request's or has no slot.
  __device__ std::int64_t slot(std::int64_t b, std::int64_t to) const {
    if (b >= requests) return -1;
    const std::int64_t first = start[b];
    if (to < first || to >= start[b + 1]) return -1;
    const std::int64_t column = cache.block_of(to - first);
    if (column >= columns) return -1;
    const std::int64_t block = table[b * table_stride + column];
    return block < 0 || block >= num_blocks ? -1 : block * cache.block_size + (to - first - column * cache.block_size);
  }
};

__global__ void __launch_bounds__(32 * kWarps) gather(const __grid_constant__ GatherCall c) {
  device::pdl_wait_and_trigger();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * kWarps;
  for (std::int64_t to = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; to < c.rows; to += warps) {
    // When several requests claim a row (cu_seq_lens does not ascend) the last one gets it, as in a loop over requests.
    std::int64_t slot = -1;
    for (std::int64_t base = (c.requests - 1) / 32 * 32; base >= 0 && slot < 0; base -= 32) {
      const std::int64_t mine = c.slot(base + lane, to);
      const unsigned found = __ballot_sync(kAll, mine >= 0);
      if (found != 0) slot = __shfl_sync(kAll, mine, 31 - __clz(static_cast<int>(found)));
    }
    if (slot < 0) continue;
    device::copy_row(c.values + to * c.value_stride, c.cache.data(slot), c.cache.data_bytes, c.value_word, lane, 32);
    if (c.cache.scale_bytes > 0)
      device::copy_row(c.scales + to * c.scale_stride, c.cache.scales(slot), c.cache.scale_bytes, c.scale_word, lane,
                       32);
  }
}

void run(const GatherIndexRows::Problem& p, const GatherIndexRows::Args& a, const RunContext& context) {
  if (p.requests == 0 || p.rows == 0) return;
  GatherCall c{.cache = device::view_of_cache(a.cache),
               .num_blocks = a.cache.num_blocks,
               .requests = p.requests,
               .rows = p.rows,
               .start = static_cast<const std::int32_t*>(a.cu_seq_lens.data),
               .table = static_cast<const std::int32_t*>(a.block_table.data),
               .table_stride = a.block_table.stride[0],
               .columns = a.block_table.size(1),
               .values = static_cast<std::uint8_t*>(a.values.data),
               .value_stride = a.values.stride[0],
               .scales = static_cast<std::uint8_t*>(a.scales.data),
               .scale_stride = a.scales.stride[0]};
  const std::int64_t scales_at = c.cache.block_size * c.cache.data_bytes;
  c.value_word = device::common_word(c.cache.base, c.cache.block_stride, c.cache.data_bytes, c.values, c.value_stride);
  c.scale_word =
      device::common_word(c.cache.base, c.cache.block_stride, scales_at, c.cache.scale_bytes, c.scales, c.scale_stride);
  device::launch_pdl<gather>("gather_index_rows", min(blocks_for(p.rows, kWarps), kMaxBlocks), 32 * kWarps, 0,
                             stream_of(context.stream), c);
}

}  // namespace

template <>
Implementation<GatherIndexRows> cuda_row() {
  return any_gpu_row<GatherIndexRows>(run);
}

}  // namespace smla
