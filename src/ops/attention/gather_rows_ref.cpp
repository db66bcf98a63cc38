#include <vector>

#include "cache/row_codec.h"
#include "core/codecs.h"
#include "ops/attention/gather_rows.h"
#include "ops/attention/implementations.h"

namespace smla {

// out[b, offset + i] = bf16(row of position seq - L + i), L = gather_lens[b] or seq (spec 7.4).
void gather_rows_ref(const GatherRows::Problem& problem, const GatherRows::Args& args, const RunContext& /*context*/) {
  std::vector<float> row(static_cast<std::size_t>(problem.format->dim));
  for (std::int64_t b = 0; b < problem.requests; ++b) {
    const GatherRange range = gather_range(problem, args, b);
    for (std::int64_t i = 0; i < range.count; ++i) {
      const std::int64_t slot = gather_slot(args, b, range.first + i);
      BF16* out = args.out.as<BF16>() + b * args.out.stride[0] + (problem.offset + i) * args.out.stride[1];
      row.assign(row.size(), 0.0F);
      if (slot >= 0) decode_row(args.cache, slot, row.data());
      for (std::size_t d = 0; d < row.size(); ++d) out[d] = to_bf16(row[d]);
    }
  }
}

}  // namespace smla
