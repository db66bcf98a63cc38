// Index scores on any GPU, straight from the pages. Rows of 128 e4m3 or e2m1 numbers go through fp16 tensor cores:
// every code of both is an fp16 number, so products are exact, and sums are fp32. A warp keeps 32 keys in registers as
// the columns of its products. Heads are the rows; they come from shared memory, laid out as fragments. Other rows are
// computed in fp32.
#include <algorithm>
#include <cmath>

#include "device/launch.cuh"
#include "ops/cuda_row.h"
#include "ops/indexer/implementations.h"
#include "ops/indexer/logits_call.cuh"
#include "ops/indexer/logits_split.h"
#include "ops/indexer/score_fma.cuh"
#include "ops/indexer/score_tensor.cuh"

namespace smla {

namespace {

using namespace indexer;

constexpr int kBlocks = 2048;  ///< blocks that the fp32 kernel aims at

/// `sharing`: how many consecutive rows may belong to one request.
template <Element kElement>
void launch(LogitsCall& c, std::int64_t sharing, const RunContext& context) {
  if constexpr (kElement != Element::kF32) {
    const bool groups_of_32 = kElement == Element::kE4M3 || c.group == 32;
    if (c.dim == kTensorDim && groups_of_32 && std::min({c.q_align, c.keys.data_align, c.keys.scale_align}) >= 4) {
      const int row_bytes = SharedQ::bytes((c.heads + 15) / 16, kElement == Element::kE2M1);
      constexpr int kReserved = 2 << 10;  // shared memory of a block besides its queries
      const auto& gpu = context.choice<device::Gpu>();
      const int fit =
          std::clamp((static_cast<int>(gpu.shared_bytes) / resident<kElement>() - kReserved) / row_bytes, 1, kMaxRows);
      c.group_rows = static_cast<int>(std::clamp<std::int64_t>(sharing, 1, std::min<std::int64_t>(c.rows, fit)));
      c.groups = (c.rows + c.group_rows - 1) / c.group_rows;
      constexpr int kRun = kWarps * kTile;
      c.parts = static_cast<int>(logits_parts({.groups = c.groups,
                                               .rows = c.group_rows,
                                               .runs = (std::int64_t{c.width} + kRun - 1) / kRun,
                                               .resident = std::int64_t{resident<kElement>()} * gpu.multiprocessors,
                                               .uneven = sharing > kMaxRows}));
      const int shared = c.group_rows * row_bytes;
      const auto start = [&]<auto kKernel>() {
        device::launch_pdl<kKernel>("indexer_logits score_tensor", blocks_for(c.groups * c.parts, 1), kThreads, shared,
                                    stream_of(context.stream), c);
      };
      const bool wide = std::min(c.q_align, c.keys.data_align) >= 16;
      if (!wide) {
        start.template operator()<score_tensor<kElement, 0, false>>();
      } else if (c.heads > 48 && c.heads <= 64) {
        constexpr int kSixteens = kElement == Element::kE4M3 ? 4 : 0;
        start.template
        operator()<score_tensor<kElement, kSixteens, true>>();  // e2m1 rows have no registers for unrolled heads
      } else {
        start.template operator()<score_tensor<kElement, 0, true>>();
      }
      return;
    }
  }
  c.parts = static_cast<int>(
      std::clamp<std::int64_t>((kBlocks + c.rows - 1) / c.rows, 1, (c.width + kFmaKeys - 1) / kFmaKeys));
  score_fma<kElement><<<blocks_for(c.rows * c.parts, 1), kFmaThreads, 0, stream_of(context.stream)>>>(c);
  check_launch("indexer_logits score_fma");
}

void score(LogitsCall& c, const RowFormat& format, std::int64_t sharing, const RunContext& context) {
  switch (format.nope) {
    case Element::kE4M3: return launch<Element::kE4M3>(c, sharing, context);
    case Element::kE2M1: return launch<Element::kE2M1>(c, sharing, context);
    default: return launch<Element::kF32>(c, sharing, context);
  }
}

/// The cut of a call depends on its tensors too: on alignment, and on the requests that its rows belong to.
template <class Op>
Decision decide(const typename Op::Problem& /*problem*/, const PlanOptions& /*options*/, const Machine& machine) {
  Decision decision = refused(needs_gpu(machine));
  decision.choice = machine.gpu;
  return decision;
}

}  // namespace

void indexer_logits_cuda(const IndexerLogits::Problem& p, const IndexerLogits::Args& a, const RunContext& context) {
  if (p.rows == 0 || p.width == 0) return;
  LogitsCall c = logits_call(p, a);
  score(c, *p.format, rows_of_a_request(p, a), context);
}

void ragged_indexer_logits_cuda(const RaggedIndexerLogits::Problem& p, const RaggedIndexerLogits::Args& a,
                                const RunContext& context) {
  if (p.rows == 0 || p.keys == 0) return;
  LogitsCall c = logits_call(p, a);
  score(c, *p.format, rows_of_a_request(p, a), context);
}

template <>
Implementation<IndexerLogits> cuda_row() {
  return any_gpu_row<IndexerLogits>(indexer_logits_cuda, decide<IndexerLogits>);
}

template <>
Implementation<RaggedIndexerLogits> cuda_row() {
  return any_gpu_row<RaggedIndexerLogits>(ragged_indexer_logits_cuda, decide<RaggedIndexerLogits>);
}

}  // namespace smla
