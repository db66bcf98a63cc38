#include <algorithm>
#include <cstring>

#include "cache/row_codec.h"
#include "ops/indexer/implementations.h"

namespace smla {

namespace {

/// Bytes of entry j of request b to row `to` of the outputs.
void copy_row(const GatherIndexRows::Args& args, std::int64_t b, std::int64_t j, std::int64_t to) {
  const PagedCache& cache = args.cache;
  const std::int64_t column = j / cache.block_size;
  if (column >= args.block_table.size(1)) return;
  const std::int64_t block =
      static_cast<const std::int32_t*>(args.block_table.data)[b * args.block_table.stride[0] + column];
  if (block < 0 || block >= cache.num_blocks) return;
  const RowFormat& format = *cache.format;
  auto* values = static_cast<std::uint8_t*>(args.values.data) + to * args.values.stride[0];
  std::memcpy(values, row_data(cache, block, j % cache.block_size), static_cast<std::size_t>(format.data_bytes));
  if (format.scale_bytes == 0) return;
  auto* scales = static_cast<std::uint8_t*>(args.scales.data) + to * args.scales.stride[0];
  std::memcpy(scales, row_scales(cache, block, j % cache.block_size), static_cast<std::size_t>(format.scale_bytes));
}

/// The rows of a request that exist in the outputs, whatever cu_seq_lens holds.
void copy_request(const GatherIndexRows::Problem& problem, const GatherIndexRows::Args& args, std::int64_t b) {
  const auto* starts = static_cast<const std::int32_t*>(args.cu_seq_lens.data);
  const std::int64_t first = starts[b];
  const std::int64_t end = std::min<std::int64_t>(starts[b + 1], problem.rows);
  for (std::int64_t to = std::max<std::int64_t>(first, 0); to < end; ++to) copy_row(args, b, to - first, to);
}

}  // namespace

void gather_index_rows_ref(const GatherIndexRows::Problem& problem, const GatherIndexRows::Args& args,
                           const RunContext& /*context*/) {
  for (std::int64_t b = 0; b < problem.requests; ++b) copy_request(problem, args, b);
}

}  // namespace smla
