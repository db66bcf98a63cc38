// Index scores on Hopper's FP8 products (wgmma), straight from the pages: index_fp8 rows of 128 numbers. See
// docs/kernels/indexer_logits.md.
#include <algorithm>
#include <cmath>

#include "ops/cuda_row.h"
#include "ops/indexer/implementations.h"
#include "ops/indexer/logits_call.cuh"
#include "ops/indexer/logits_split.h"
#include "ops/indexer/score_warpgroups_sm90.cuh"

namespace smla {

namespace {

using namespace indexer;
using namespace indexer::sm90;

/// Heads are kBlocks times kN, padded. kRuns: in_runs().
template <int kN, int kBlocks, bool kRuns>
void launch(LogitsCall& c, std::int64_t sharing, const RunContext& context) {
  constexpr int kFit = std::min(kMaxRows, kMaxColumns / (kBlocks * kN));
  c.group_rows = static_cast<int>(std::clamp<std::int64_t>(sharing, 1, std::min<std::int64_t>(c.rows, kFit)));
  c.groups = (c.rows + c.group_rows - 1) / c.group_rows;
  const std::int64_t places = std::int64_t{kResident} * context.choice<device::Gpu>().multiprocessors;
  c.parts = static_cast<int>(logits_parts({.groups = c.groups,
                                           .rows = c.group_rows,
                                           .runs = (std::int64_t{c.width} + kRun - 1) / kRun,
                                           .resident = places,
                                           .uneven = sharing > kMaxRows,
                                           .costs = kHopperLogitsCosts}));
  device::launch_pdl<score_warpgroups<kN, kBlocks, kRuns>>(
      "indexer_logits score_warpgroups", blocks_for(c.groups * c.parts, 1), kThreads,
      Place<kN>::bytes(c.group_rows * kBlocks), stream_of(context.stream), c);
}

template <bool kRuns>
void score_heads(LogitsCall& c, std::int64_t sharing, const RunContext& context) {
  if (c.heads <= 16) {
    launch<16, 1, kRuns>(c, sharing, context);
  } else if (c.heads <= 32) {
    launch<32, 1, kRuns>(c, sharing, context);
  } else if (c.heads <= 64) {
    launch<64, 1, kRuns>(c, sharing, context);
  } else {
    launch<64, 2, kRuns>(c, sharing, context);
  }
}

void score(LogitsCall& c, std::int64_t sharing, const RunContext& context) {
  in_runs(c) ? score_heads<true>(c, sharing, context) : score_heads<false>(c, sharing, context);
}

void run(const IndexerLogits::Problem& p, const IndexerLogits::Args& a, const RunContext& context) {
  if (p.rows == 0 || p.width == 0) return;
  LogitsCall c = logits_call(p, a);
  if (!readable(c)) return indexer_logits_cuda(p, a, context);
  score(c, rows_of_a_request(p, a), context);
}

void run(const RaggedIndexerLogits::Problem& p, const RaggedIndexerLogits::Args& a, const RunContext& context) {
  if (p.rows == 0 || p.keys == 0) return;
  LogitsCall c = logits_call(p, a);
  if (!readable(c)) return ragged_indexer_logits_cuda(p, a, context);
  score(c, rows_of_a_request(p, a), context);
}

/// The same for both ops. The choice is the GPU: the cut of a call depends on its tensors too.
template <class Op>
Decision decide(const typename Op::Problem& p, const PlanOptions& /*options*/, const Machine& machine) {
  if (std::string missing = needs_sm90(machine); !missing.empty()) return refused(std::move(missing));
  if (std::string reason = score_refusal(*p.format, p.dim); !reason.empty()) return refused(std::move(reason));
  constexpr std::size_t kBytes = Place<64>::bytes(kMaxColumns / 64);
  static_assert(kBytes >= Place<32>::bytes(kMaxRows) && kBytes >= Place<16>::bytes(kMaxRows));
  if (machine.gpu.shared_bytes < kBytes) {
    return refused("shared memory of " + std::to_string(machine.gpu.shared_bytes) + " bytes a block; it takes " +
                   std::to_string(kBytes));
  }
  Decision decision;
  decision.choice = machine.gpu;
  return decision;
}

}  // namespace

template <>
Implementation<IndexerLogits> sm90_row() {
  return hopper_row<IndexerLogits>(run, decide<IndexerLogits>);
}

template <>
Implementation<RaggedIndexerLogits> sm90_row() {
  return hopper_row<RaggedIndexerLogits>(run, decide<RaggedIndexerLogits>);
}

}  // namespace smla
