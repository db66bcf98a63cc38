// Requests and cache slots of a step's tokens (spec 6.1, 5.5).
#include <algorithm>

#include "ops/index/block_lookup.h"
#include "ops/index/implementations.h"

namespace smla {

namespace {

/// Tokens [begin, end) of request r that exist in the step, whatever query_start_loc holds.
struct TokenRange {
  std::int64_t begin;
  std::int64_t end;
};
TokenRange tokens_of(const std::int32_t* query_start_loc, std::int64_t r, std::int64_t tokens) {
  return {std::max<std::int64_t>(query_start_loc[r], 0), std::min<std::int64_t>(query_start_loc[r + 1], tokens)};
}

}  // namespace

void token_to_req_ref(const TokenToReq::Problem& problem, const TokenToReq::Args& args, const RunContext& /*context*/) {
  const std::int32_t* start = args.query_start_loc.as<std::int32_t>();
  std::int32_t* out = args.token_to_req.as<std::int32_t>();
  std::fill_n(out, problem.tokens, 0);
  for (std::int64_t r = 0; r < problem.requests; ++r) {
    const TokenRange range = tokens_of(start, r, problem.tokens);
    for (std::int64_t t = range.begin; t < range.end; ++t) out[t] = static_cast<std::int32_t>(r);
  }
}

void slot_mapping_ref(const SlotMapping::Problem& problem, const SlotMapping::Args& args,
                      const RunContext& /*context*/) {
  const BlockLookup blocks(args.block_table, problem.block_size);
  const std::int64_t scheduled = args.query_start_loc.as<std::int32_t>()[problem.requests];
  const std::int64_t* positions = args.positions.as<std::int64_t>();
  const std::int32_t* request = args.token_to_req.as<std::int32_t>();
  std::int64_t* slots = args.slots.as<std::int64_t>();
  for (std::int64_t t = 0; t < problem.tokens; ++t)
    slots[t] = t < scheduled ? blocks.slot(request[t], positions[t]) : -1;
}

void compressed_slot_mapping_ref(const CompressedSlotMapping::Problem& problem, const CompressedSlotMapping::Args& args,
                                 const RunContext& /*context*/) {
  const BlockLookup blocks(args.block_table, problem.storage_block);
  const std::int32_t* start = args.query_start_loc.as<std::int32_t>();
  const std::int32_t* seq_lens = args.seq_lens.as<std::int32_t>();
  std::int64_t* slots = args.slots.as<std::int64_t>();
  std::fill_n(slots, problem.tokens, -1);
  for (std::int64_t r = 0; r < problem.requests; ++r) {
    const TokenRange range = tokens_of(start, r, problem.tokens);
    for (std::int64_t t = range.begin; t < range.end; ++t) {
      const std::int64_t pos =
          static_cast<std::int64_t>(seq_lens[r]) - start[r + 1] + t;  // seq_len - query_len + (t - start)
      if (pos < 0 || (pos + 1) % problem.ratio != 0) continue;
      const std::int64_t entry = pos / problem.ratio;
      if (problem.share.owns(entry)) slots[t] = blocks.slot_clamped(r, problem.share.local(entry));
    }
  }
}

}  // namespace smla
