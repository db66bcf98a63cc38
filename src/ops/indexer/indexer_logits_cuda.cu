// Index scores on any GPU, straight from the pages. Rows of 128 e4m3 or e2m1 numbers go through fp16 tensor cores:
// every code of both is an fp16 number, so products are exact, and sums are fp32. A warp keeps 32 keys in registers as
// the columns of its products. Heads are the rows; they come from shared memory, laid out as fragments. Other rows are
// computed in fp32.
#include <algorithm>
#include <bit>
#include <cmath>

#include "device/launch.cuh"
#include "ops/cuda_row.h"
#include "ops/indexer/logits_split.h"
#include "ops/indexer/score_fma.cuh"
#include "ops/indexer/score_tensor.cuh"
#include "sparsemla/ops/indexer.h"

namespace smla {

namespace {

using namespace indexer;

constexpr int kBlocks = 2048;  ///< blocks that the fp32 kernel aims at

/// The largest power of two, up to 16, that divides an address and the strides of dimensions with more than one
/// element.
struct Alignment {
  std::uintptr_t bits = 16;
  Alignment& address(const void* p) { return bits |= reinterpret_cast<std::uintptr_t>(p), *this; }
  Alignment& stride(std::int64_t count, std::int64_t bytes) {
    return bits |= count > 1 ? static_cast<std::uintptr_t>(bytes) : 0U, *this;
  }
  int value() const { return static_cast<int>(bits & (~bits + 1)); }
};

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

/// The arguments that both ops have in common.
template <class Op>
LogitsCall call_of(const typename Op::Problem& p, const typename Op::Args& a, std::int64_t width) {
  const std::int64_t element = size_of(a.q.dtype);
  LogitsCall c{.rows = p.rows,
               .heads = static_cast<int>(p.heads),
               .dim = p.dim,
               .group = std::max(p.format->group, 1),
               .width = static_cast<std::int32_t>(width),
               .q = static_cast<const std::uint8_t*>(a.q.data),
               .q_stride = {a.q.stride[0] * element, a.q.stride[1] * element},
               .q_align = Alignment()
                              .address(a.q.data)
                              .stride(p.rows, a.q.stride[0] * element)
                              .stride(p.heads, a.q.stride[1] * element)
                              .value(),
               .q_scale = static_cast<const std::uint8_t*>(a.q_scale.data),
               .q_scale_stride = {a.q_scale.stride[0], a.q_scale.stride[1]},
               .weights = static_cast<const float*>(a.weights.data),
               .weight_stride = a.weights.stride[0],
               .logits = static_cast<float*>(a.logits.data),
               .logit_stride = a.logits.stride[0]};
  c.keys.data_bytes = p.format->data_bytes;
  c.keys.scale_bytes = p.format->scale_bytes;
  return c;
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

void run(const IndexerLogits::Problem& p, const IndexerLogits::Args& a, const RunContext& context) {
  if (p.rows == 0 || p.width == 0) return;
  LogitsCall c = call_of<IndexerLogits>(p, a, p.width);
  c.row_to_req = static_cast<const std::int32_t*>(a.row_to_req.data);
  c.ends = static_cast<const std::int32_t*>(a.lens.data);
  Keys& k = c.keys;
  k.data = a.cache.base;
  k.data_stride = a.cache.block_stride_bytes;
  k.data_align = Alignment()
                     .address(k.data)
                     .stride(a.cache.num_blocks, k.data_stride)
                     .stride(a.cache.block_size, k.data_bytes)
                     .value();
  k.scales = a.cache.base + a.cache.block_size * k.data_bytes;
  k.scale_stride = a.cache.block_stride_bytes;
  k.scale_align = Alignment()
                      .address(k.scales)
                      .stride(a.cache.num_blocks, k.scale_stride)
                      .stride(a.cache.block_size, k.scale_bytes)
                      .value();
  k.blocks = static_cast<std::uint32_t>(
      std::min<std::int64_t>(a.cache.num_blocks, std::int64_t{1} << 31));  // a table holds no larger numbers
  k.block_size = static_cast<std::uint32_t>(
      std::min<std::int64_t>(a.cache.block_size, INT32_MAX));  // no entry is past the first such block
  k.block_bits = std::has_single_bit(k.block_size) ? std::countr_zero(k.block_size) : -1;
  k.paged = true;
  k.table = static_cast<const std::int32_t*>(a.block_table.data);
  k.table_stride = a.block_table.stride[0];
  k.requests = a.block_table.size(0);
  k.columns = a.block_table.size(1);
  score(c, *p.format, p.rows / std::max<std::int64_t>(k.requests, 1), context);
}

void run(const RaggedIndexerLogits::Problem& p, const RaggedIndexerLogits::Args& a, const RunContext& context) {
  if (p.rows == 0 || p.keys == 0) return;
  LogitsCall c = call_of<RaggedIndexerLogits>(p, a, p.keys);
  c.starts = static_cast<const std::int32_t*>(a.starts.data);
  c.ends = static_cast<const std::int32_t*>(a.ends.data);
  Keys& k = c.keys;
  k.blocks = static_cast<std::uint32_t>(p.keys);
  k.data = static_cast<const std::uint8_t*>(a.values.data);
  k.data_stride = a.values.stride[0];
  k.data_align = Alignment().address(k.data).stride(p.keys, k.data_stride).value();
  k.scales = static_cast<const std::uint8_t*>(a.scales.data);
  k.scale_stride = a.scales.stride[0];
  k.scale_align = Alignment().address(k.scales).stride(p.keys, k.scale_stride).value();
  score(c, *p.format, p.rows, context);
}

}  // namespace

template <>
Implementation<IndexerLogits> cuda_row() {
  return any_gpu_row<IndexerLogits>(run, decide<IndexerLogits>);
}

template <>
Implementation<RaggedIndexerLogits> cuda_row() {
  return any_gpu_row<RaggedIndexerLogits>(run, decide<RaggedIndexerLogits>);
}

}  // namespace smla
