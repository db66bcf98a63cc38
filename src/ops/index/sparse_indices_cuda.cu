// Index rows of sparse attention on the device.
#include "device/ptx/pdl.cuh"
#include "ops/cuda_row.h"
#include "ops/index/index_rows.cuh"
#include "sparsemla/ops/index.h"

namespace smla {

namespace {

using namespace index_rows;

__global__ void window_rows(Table table, WindowIndices::Problem p, const std::int32_t* start,
                            const std::int32_t* seq_lens, const std::int32_t* request, const std::int64_t* slots,
                            Rows<std::int32_t> out, std::int32_t* lens) {
  device::pdl_wait_and_trigger();
  const std::int64_t t = blockIdx.x;
  const std::int64_t r = request[t];
  const bool known = slots[t] >= 0 && r >= 0 && r < p.requests;
  const std::int64_t seq = known ? seq_lens[r] : 0;
  const std::int64_t pos = known ? seq - start[r + 1] + t : -1;
  std::int64_t first = max(pos - p.window + 1, std::int64_t{0});
  std::int64_t n = pos < 0 ? 0 : pos + 1 - first;
  if (pos >= 0 && t < p.noncausal_tokens) {
    const std::int64_t prefix = seq - start[r + 1] + start[r];
    first = max(prefix - p.window, std::int64_t{0});
    n = min(max(seq - first, std::int64_t{0}), out.columns);
  }
  for (std::int64_t i = threadIdx.x; i < out.columns; i += blockDim.x)
    out.row(t)[i] = i < n ? as_index(table.slot(r, first + i)) : -1;
  if (threadIdx.x == 0) lens[t] = static_cast<std::int32_t>(n);
}

__global__ void dense_rows(Table table, DenseCompressedIndices::Problem p, const std::int64_t* positions,
                           const std::int32_t* request, const std::int64_t* slots, Rows<std::int32_t> out,
                           std::int32_t* lens) {
  device::pdl_wait_and_trigger();
  const std::int64_t t = blockIdx.x;
  const std::int64_t seen = slots[t] < 0 ? 0 : entries_seen(positions[t], p.ratio, INT64_MAX);
  const std::int64_t n = min(p.share.whole() ? seen : p.share.count(seen), p.width);
  for (std::int64_t j = threadIdx.x; j < p.width; j += blockDim.x) {
    out.row(t)[j] = j >= n ? -1 : (p.global ? as_index(table.slot(request[t], j)) : static_cast<std::int32_t>(j));
  }
  if (threadIdx.x == 0) lens[t] = static_cast<std::int32_t>(n);
}

__global__ void __launch_bounds__(kThreads, 8)
    global_rows(Table table, std::int64_t k, bool compact, Rows<const std::int32_t> topk, const std::int32_t* request,
                const bool* valid, Rows<std::int32_t> out, std::int32_t* lens) {
  device::pdl_wait_and_trigger();
  __shared__ GlobalRow<kThreads> row;
  const std::int64_t t = blockIdx.x;
  fetch_row(topk.row(t), k);
  row.write(table, request[t], valid[t], k, compact, topk.row(t), out.row(t), lens + t);
}

__global__ void short_rows(std::int64_t ratio, std::int64_t k, const std::int64_t* positions, Rows<std::int32_t> out) {
  device::pdl_wait_and_trigger();
  const std::int64_t t = blockIdx.x;
  const std::int64_t n = entries_seen(positions[t], ratio, k);
  for (std::int64_t j = threadIdx.x; j < k; j += blockDim.x) out.row(t)[j] = j < n ? static_cast<std::int32_t>(j) : -1;
}

void run(const WindowIndices::Problem& p, const WindowIndices::Args& a, const RunContext& context) {
  if (p.tokens == 0) return;
  device::launch_pdl<window_rows>(
      "window_rows", row_blocks(p.tokens), kThreads, 0, stream_of(context.stream),
      table_of(a.block_table, p.block_size), p, data_of<const std::int32_t>(a.query_start_loc),
      data_of<const std::int32_t>(a.seq_lens), data_of<const std::int32_t>(a.token_to_req),
      data_of<const std::int64_t>(a.slot_mapping), rows_of(a.indices), data_of<std::int32_t>(a.lens));
}

void run(const DenseCompressedIndices::Problem& p, const DenseCompressedIndices::Args& a, const RunContext& context) {
  if (p.tokens == 0) return;
  device::launch_pdl<dense_rows>("dense_rows", row_blocks(p.tokens), kThreads, 0, stream_of(context.stream),
                                 table_of(a.block_table, p.storage_block), p, data_of<const std::int64_t>(a.positions),
                                 data_of<const std::int32_t>(a.token_to_req),
                                 data_of<const std::int64_t>(a.slot_mapping), rows_of(a.indices),
                                 data_of<std::int32_t>(a.lens));
}

void run(const GlobalTopk::Problem& p, const GlobalTopk::Args& a, const RunContext& context) {
  if (p.tokens == 0) return;
  device::launch_pdl<global_rows>("global_rows", row_blocks(p.tokens), kThreads, 0, stream_of(context.stream),
                                  table_of(a.block_table, p.storage_block), p.k, p.compact, rows_of(a.topk),
                                  data_of<const std::int32_t>(a.token_to_req), data_of<const bool>(a.valid),
                                  rows_of(a.indices), data_of<std::int32_t>(a.lens));
}

void run(const ShortContextTopk::Problem& p, const ShortContextTopk::Args& a, const RunContext& context) {
  if (p.tokens == 0) return;
  device::launch_pdl<short_rows>("short_rows", row_blocks(p.tokens), kThreads, 0, stream_of(context.stream), p.ratio,
                                 p.k, data_of<const std::int64_t>(a.positions), rows_of(a.indices));
}

}  // namespace

template <>
Implementation<WindowIndices> cuda_row() {
  return any_gpu_row<WindowIndices>(run);
}

template <>
Implementation<DenseCompressedIndices> cuda_row() {
  return any_gpu_row<DenseCompressedIndices>(run);
}

template <>
Implementation<GlobalTopk> cuda_row() {
  return any_gpu_row<GlobalTopk>(run);
}

template <>
Implementation<ShortContextTopk> cuda_row() {
  return any_gpu_row<ShortContextTopk>(run);
}

}  // namespace smla
