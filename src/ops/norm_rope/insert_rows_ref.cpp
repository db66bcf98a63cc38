#include "cache/row_codec.h"
#include "ops/norm_rope/implementations.h"
#include "ops/norm_rope/scalar.h"

namespace smla {

// cache[slot_mapping[t]] = encode(rows[t]) for the first M rows; slots outside the cache write nothing.
void insert_rows_ref(const InsertRows::Problem& problem, const InsertRows::Args& args, const RunContext&) {
  float row[kMaxRopeRow];
  for (std::int64_t t = 0; t < args.slot_mapping.size(0); ++t) {
    const std::int64_t slot = args.slot_mapping.as<std::int64_t>()[t];
    if (slot < 0 || slot >= args.cache.num_slots()) continue;
    for (int i = 0; i < problem.format->dim; ++i) row[i] = load_element(problem.in, row_of(args.rows, t), i);
    encode_row(args.cache, slot, row, problem.clamp);
  }
}

}  // namespace smla
