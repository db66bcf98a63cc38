// Index scores and their exact top-k in one launch on Hopper: index_fp8 rows of 128 numbers. See
// docs/kernels/indexer_logits.md.
#include <algorithm>
#include <cmath>

#include "ops/cuda_row.h"
#include "ops/indexer/implementations.h"
#include "ops/indexer/indexer_topk_split.h"
#include "ops/indexer/logits_call.cuh"
#include "ops/indexer/score_and_select_sm90.cuh"

namespace smla {

namespace {

using namespace indexer;
using namespace indexer::sm90;
using topk::sm90::kMostChosen;
using topk::sm90::kMostTogether;

/// What a plan decides: also how the two ops compute the call, for tensors that the kernel cannot read.
struct Choice {
  device::Gpu gpu;
  Decision pieces;
};

SelectShape shape_of(const IndexerTopK::Problem& p, std::int64_t sharing, const device::Gpu& gpu) {
  const int columns = p.heads <= 16 ? 16 : p.heads <= 32 ? 32 : 64;
  const int blocks = p.heads <= 64 ? 1 : 2;
  const auto bytes = [&](int units) {
    return std::int64_t{columns == 16   ? SelectPlace<16>::columns(units)
                        : columns == 32 ? SelectPlace<32>::columns(units)
                                        : SelectPlace<64>::columns(units)};
  };
  const std::int64_t unit = bytes(2) - bytes(1);
  return {.rows = p.rows,
          .sharing = sharing,
          .width = p.width,
          .unit_bytes = unit * blocks,
          .fixed_bytes = bytes(1) - unit + 16,
          .shared_bytes = static_cast<std::int64_t>(gpu.shared_bytes),
          .multiprocessors = gpu.multiprocessors};
}

template <int kN, int kBlocks>
void launch(SelectCall& c, const SelectSplit& split, cudaStream_t stream) {
  c.scores.group_rows = static_cast<int>(split.rows);
  c.scores.groups = (c.scores.rows + split.rows - 1) / split.rows;
  c.scores.parts = static_cast<int>(split.together);
  c.capacity = static_cast<std::uint32_t>(split.columns);
  constexpr auto kKernel = score_and_select<kN, kBlocks>;
  constexpr const char* kName = "indexer_topk score_and_select";
  const int bytes = SelectPlace<kN>::bytes(c.scores.group_rows * kBlocks, c.scores.group_rows, c.capacity);
  const unsigned clusters = blocks_for(c.scores.groups, 1);
  const dim3 threads(kSelectThreads);
  switch (split.together) {
    case 1: return device::launch_cluster<kKernel, 1>(kName, clusters, threads, bytes, stream, c);
    case 2: return device::launch_cluster<kKernel, 2>(kName, clusters, threads, bytes, stream, c);
    case 4: return device::launch_cluster<kKernel, 4>(kName, clusters, threads, bytes, stream, c);
    case 8: return device::launch_cluster<kKernel, 8>(kName, clusters, threads, bytes, stream, c);
    default: return device::launch_cluster<kKernel, kMostTogether>(kName, clusters, threads, bytes, stream, c);
  }
}

void run(const IndexerTopK::Problem& p, const IndexerTopK::Args& a, const RunContext& context) {
  if (p.rows == 0) return;
  const auto& choice = context.choice<Choice>();
  const IndexerLogits::Problem scores{
      .rows = p.rows, .heads = p.heads, .dim = p.dim, .width = p.width, .format = p.format};
  const IndexerLogits::Args inputs{.q = a.q,
                                   .q_scale = a.q_scale,
                                   .weights = a.weights,
                                   .row_to_req = a.row_to_req,
                                   .lens = a.lens,
                                   .block_table = a.block_table,
                                   .cache = a.cache};
  SelectCall c{.scores = logits_call(scores, inputs)};
  const SelectSplit split =
      split_select(shape_of(p, std::max<std::int64_t>(rows_of_a_request(scores, inputs), 1), choice.gpu), kSelectRows,
                   kMostTogether);
  if (!readable(c.scores) || split.rows == 0) {
    RunContext of_pieces = context;
    of_pieces.decision = &choice.pieces;
    return run_indexer_topk_pieces(p, a, of_pieces);
  }
  c.chosen = topk::topk_call(p.k, a.indices);
  if (p.slots) c.chosen.slots = topk::slots_of(*p.slots, a.slots);
  const cudaStream_t stream = stream_of(context.stream);
  if (p.heads <= 16) {
    launch<16, 1>(c, split, stream);
  } else if (p.heads <= 32) {
    launch<32, 1>(c, split, stream);
  } else if (p.heads <= 64) {
    launch<64, 1>(c, split, stream);
  } else {
    launch<64, 2>(c, split, stream);
  }
}

Decision decide(const IndexerTopK::Problem& p, const PlanOptions& options, const Machine& machine) {
  if (std::string missing = needs_sm90(machine); !missing.empty()) return refused(std::move(missing));
  if (std::string reason = score_refusal(*p.format, p.dim); !reason.empty()) return refused(std::move(reason));
  if (p.k < 1 || p.k > kMostChosen)
    return refused(std::to_string(p.k) + " entries to choose; it chooses 1 to " + std::to_string(kMostChosen));
  const SelectSplit split = split_select(shape_of(p, 1, machine.gpu), kSelectRows, kMostTogether);
  if (split.rows == 0) {
    return refused(std::to_string(p.width) + " entries, which do not fit the shared memory of a cluster of " +
                   std::to_string(kMostTogether) + " blocks");
  }
  if (options.implementation != IndexerTopK::kOneLaunch) {
    return refused(
        "not faster than the two ops in any call that was measured (docs/kernels/indexer_logits.md); it runs "
        "where it is named");
  }
  Choice choice{.gpu = machine.gpu, .pieces = decide_indexer_topk_pieces(p, options, machine)};
  Decision decision;
  decision.workspace_bytes = choice.pieces.workspace_bytes;
  decision.choice = std::move(choice);
  return decision;
}

}  // namespace

template <>
Implementation<IndexerTopK> sm90_row() {
  return hopper_row<IndexerTopK>(run, decide);
}

}  // namespace smla
