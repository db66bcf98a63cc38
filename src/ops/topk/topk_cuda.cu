// Exact top-k on any GPU: one block for a row, or several for each of a few wide rows.
#include <algorithm>

#include "device/ptx/pdl.cuh"
#include "ops/cuda_row.h"
#include "ops/topk/implementations.h"
#include "ops/topk/row_selection.cuh"
#include "ops/topk/topk_parts.cuh"

namespace smla {

namespace {

using namespace topk;

constexpr int kScoreThreads = 256;

/// A block of kThreads selects from a row of up to kItems times as many columns.
template <int kThreads, int kItems, int kDirect>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads) select_row(const __grid_constant__ TopkCall c) {
  using Bins = RowSelection<kThreads, kItems, kDirect>;
  __shared__ union {
    typename Bins::Shared bins;
    SelectionShared<kThreads> digits;
  } shared;
  __shared__ index_rows::GlobalRow<kThreads> slots;
  __shared__ typename SlotsBeside<kThreads>::Shared blocks;
  const std::int64_t row = blockIdx.x;
  if (threadIdx.x == 0) c.fetch_ahead(row);
  Bins selection(shared.bins);
  device::pdl_wait_and_trigger();
  SlotsBeside<kThreads> beside(c.slots, row, blocks);
  const std::int32_t request = c.slots.lens == nullptr ? -1 : c.slots.request[row];
  const auto n = static_cast<std::uint32_t>(c.length(row));
  if (n <= c.k || c.k == 0) {
    write_all(n, c.k, c.out(row));
    return c.write_slots<kThreads>(row, slots);
  }
  selection.load(c.scores(row), n);
  beside.load(request);
  const auto put = [&, out = c.out(row)](std::uint32_t place, std::int32_t column) {
    out[place] = column;
    beside.put(place, column);
  };
  const auto k = static_cast<std::uint32_t>(c.k);
  if (!selection.run(k, put)) {
    __syncthreads();
    Selection<kThreads, std::min(kItems, 16), Scores>(shared.digits, {c.scores(row)}, n).run(k, put);
  }
  if (c.slots.lens == nullptr) return;
  // Where a column has no slot the others move up.
  if (__syncthreads_or(beside.lost) != 0) return c.write_slots<kThreads>(row, slots);
  if (threadIdx.x == 0) c.slots.lens[row] = c.slots.valid[row] ? static_cast<std::int32_t>(c.k) : 0;
}

/// A block selects from a row of any length, which it reads once for each digit.
template <int kThreads, int kItems>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads) select_long_row(const __grid_constant__ TopkCall c) {
  __shared__ SelectionShared<kThreads> shared;
  __shared__ index_rows::GlobalRow<kThreads> slots;
  const std::int64_t row = blockIdx.x;
  if (threadIdx.x == 0) c.fetch_ahead(row);
  device::pdl_wait_and_trigger();
  const auto n = static_cast<std::uint32_t>(c.length(row));
  if (n <= c.k || c.k == 0) {
    write_all(n, c.k, c.out(row));
  } else {
    Selection<kThreads, kItems, Scores>(shared, {c.scores(row)}, n)
        .run(static_cast<std::uint32_t>(c.k), write_to(c.out(row)));
  }
  c.write_slots<kThreads>(row, slots);
}

template <auto kKernel>
void launch(std::int64_t rows, int threads, const TopkCall& c, const RunContext& context) {
  device::launch_pdl<kKernel>("topk select", blocks_for(rows, 1), threads, 0, stream_of(context.stream), c);
}
template <int kThreads, int kItems, int kDirect = 4>
void launch_row(std::int64_t rows, const TopkCall& c, const RunContext& context) {
  launch<select_row<kThreads, kItems, kDirect>>(rows, kThreads, c, context);
}

/// Launches one block for each row. With at most one row for each multiprocessor a row has as many threads as pay; else
/// four narrow rows or two wider ones share a multiprocessor.
void launch_rows(const TopK::Problem& p, bool few, const TopkCall& c, const RunContext& context) {
  if (!few && p.width <= 2048) return launch_row<256, 8, 8>(p.rows, c, context);
  if (!few && p.width <= 4096) return launch_row<256, 16>(p.rows, c, context);
  if (!few && p.width <= 8192) return launch_row<512, 16>(p.rows, c, context);
  if (p.width <= 2048) return launch_row<512, 4>(p.rows, c, context);
  if (p.width <= 4096) return launch_row<512, 8, 8>(p.rows, c, context);
  if (p.width <= 8192) return launch_row<512, 16>(p.rows, c, context);
  if (p.width <= 16384) return launch_row<1024, 16>(p.rows, c, context);
  if (p.width <= 32768) return launch_row<1024, 32>(p.rows, c, context);
  launch<select_long_row<1024, 16>>(p.rows, 1024, c, context);
}

void launch_parts(const TopK::Problem& p, const TopkSplit& split, const TopkCall& c, const RunContext& context) {
  const std::int64_t blocks = p.rows * split.parts;
  Parts parts{.call = c,
              .parts = static_cast<std::uint32_t>(split.parts),
              .digits = static_cast<std::uint32_t*>(context.workspace.data)};
  parts.groups = parts.digits + blocks * TopkSplit::kDigits;
  parts.keys = parts.groups + blocks * TopkSplit::kGroups;
  parts.columns = parts.keys + p.rows * TopkSplit::kListed;
  parts.arrived = parts.columns + p.rows * TopkSplit::kListed;
  const unsigned grid = blocks_for(blocks, 1);
  device::launch_pdl<count_parts>("topk count_parts", grid, kPartThreads, 0, stream_of(context.stream), parts);
  device::launch_pdl<select_parts>("topk select_parts", grid, kPartThreads, 0, stream_of(context.stream), parts);
}

/// Scores of what the selection before it chose, a block for each row.
__global__ void chosen_scores(const float* logits, std::int64_t logit_stride, const std::int32_t* indices,
                              std::int64_t index_stride, std::int64_t k, float* out, std::int64_t out_stride) {
  device::pdl_wait_and_trigger();
  const std::int64_t row = blockIdx.x;
  for (std::int64_t j = threadIdx.x; j < k; j += blockDim.x) {
    const std::int32_t column = indices[row * index_stride + j];
    out[row * out_stride + j] = column < 0 ? -INFINITY : logits[row * logit_stride + column];
  }
}

Decision decide(const TopK::Problem& p, const PlanOptions& /*options*/, const Machine& machine) {
  if (std::string missing = needs_gpu(machine); !missing.empty()) return refused(std::move(missing));
  const TopkSplit split = split_topk(p, machine.gpu);
  Decision decision;
  decision.workspace_bytes = static_cast<std::size_t>(topk_workspace_bytes(p, machine.gpu));
  decision.words = describe(split);
  decision.choice = split;
  return decision;
}

void run(const TopK::Problem& p, const TopK::Args& a, const RunContext& context) {
  if (p.rows == 0 || (p.k == 0 && !p.slots)) return;
  const TopkCall c = topk_call(p, a);
  const auto& split = context.choice<TopkSplit>();
  if (split.parts > 1) {
    launch_parts(p, split, c, context);
  } else {
    launch_rows(p, split.few_rows, c, context);
  }
  topk_chosen_scores_cuda(p, a, context);
}

}  // namespace

void topk_chosen_scores_cuda(const TopK::Problem& p, const TopK::Args& a, const RunContext& context) {
  if (a.scores.absent() || p.k == 0) return;
  const TopkCall c = topk_call(p, a);
  device::launch_pdl<chosen_scores>("topk chosen_scores", blocks_for(p.rows, 1), kScoreThreads, 0,
                                    stream_of(context.stream), c.logits, c.logit_stride,
                                    static_cast<const std::int32_t*>(c.indices), c.index_stride, p.k,
                                    static_cast<float*>(a.scores.data), a.scores.stride[0]);
}

template <>
Implementation<TopK> cuda_row() {
  return any_gpu_row<TopK>(run, decide);
}

}  // namespace smla
