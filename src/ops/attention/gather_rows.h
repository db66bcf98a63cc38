#pragma once

#include <algorithm>
#include <cstdint>

#include "sparsemla/ops/attention.h"

namespace smla {

/// What request b has to copy: rows [offset, offset + count) of `out` from positions [first, first + count).
struct GatherRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

inline GatherRange gather_range(const GatherRows::Problem& problem, const GatherRows::Args& args, std::int64_t b) {
  const std::int64_t seq = std::max<std::int64_t>(args.seq_lens.as<std::int32_t>()[b], 0);
  const std::int64_t asked = args.gather_lens.absent() ? seq : args.gather_lens.as<std::int32_t>()[b];
  const std::int64_t length = std::clamp<std::int64_t>(asked, 0, seq);
  return {seq - length, std::min(length, std::max<std::int64_t>(problem.rows - problem.offset, 0))};
}

/// Slot of a request's position, or -1 when its block lies outside the table or the cache.
inline std::int64_t gather_slot(const GatherRows::Args& args, std::int64_t b, std::int64_t position) {
  const std::int64_t column = position / args.cache.block_size;
  if (column >= args.block_table.size(1)) return -1;
  const std::int64_t block = args.block_table.as<std::int32_t>()[b * args.block_table.stride[0] + column];
  return block < 0 || block >= args.cache.num_blocks ? -1
                                                     : block * args.cache.block_size + position % args.cache.block_size;
}

}  // namespace smla
