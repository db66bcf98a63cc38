// Requests and cache slots of a step's tokens on the device: a thread for each.
#include "device/ptx/pdl.cuh"
#include "ops/cuda_row.h"
#include "ops/index/owners.cuh"
#include "sparsemla/ops/index.h"

namespace smla {

namespace {

using namespace index_rows;

__global__ void slot_mapping(Table table, std::int64_t requests, std::int64_t tokens, const std::int32_t* start,
                             const std::int64_t* positions, const std::int32_t* request, std::int64_t* slots) {
  device::pdl_wait_and_trigger();
  const std::int64_t t = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
  if (t < tokens) slots[t] = t < start[requests] ? table.slot(request[t], positions[t]) : -1;
}

/// Without `owner`, blocks search the owners of their tokens.
__global__ void __launch_bounds__(kThreads)
    compressed_slots(Table table, std::int64_t requests, std::int64_t tokens, std::int64_t ratio, EntryShare share,
                     const std::int32_t* owner, const std::int32_t* start, const std::int32_t* seq_lens,
                     std::int64_t* slots) {
  device::pdl_wait_and_trigger();
  __shared__ std::int32_t found[kThreads];
  const std::int64_t first = blockIdx.x * static_cast<std::int64_t>(kThreads);
  const std::int64_t t = first + threadIdx.x;
  if (owner == nullptr) find_owners(start, requests, 0, first, tokens, found);
  if (t >= tokens) return;
  const std::int64_t r = owner == nullptr ? found[threadIdx.x] : owner[t];
  std::int64_t slot = -1;
  if (r >= 0) {
    const std::int64_t pos = static_cast<std::int64_t>(seq_lens[r]) - start[r + 1] + t;
    if (pos >= 0 && (pos + 1) % ratio == 0) {
      const std::int64_t entry = pos / ratio;
      if (share.whole()) {
        slot = table.slot(r, entry, true);
      } else if (share.owns(entry)) {
        slot = table.slot(r, share.local(entry), true);
      }
    }
  }
  slots[t] = slot;
}

void run(const TokenToReq::Problem& p, const TokenToReq::Args& a, const RunContext& context) {
  list_owners(a.query_start_loc, false, p.requests, p.tokens, data_of<std::int32_t>(a.token_to_req), 0,
              stream_of(context.stream));
}

void run(const SlotMapping::Problem& p, const SlotMapping::Args& a, const RunContext& context) {
  if (p.tokens == 0) return;
  device::launch_pdl<slot_mapping>("slot_mapping", blocks_for(p.tokens, kThreads), kThreads, 0,
                                   stream_of(context.stream), table_of(a.block_table, p.block_size), p.requests,
                                   p.tokens, data_of<const std::int32_t>(a.query_start_loc),
                                   data_of<const std::int64_t>(a.positions),
                                   data_of<const std::int32_t>(a.token_to_req), data_of<std::int64_t>(a.slots));
}

std::size_t count_bytes(const CompressedSlotMapping::Problem& p, int /*threads*/) {
  return static_cast<std::size_t>(4 * p.tokens);
}

void run(const CompressedSlotMapping::Problem& p, const CompressedSlotMapping::Args& a, const RunContext& context) {
  if (p.tokens == 0) return;
  auto* owner = p.requests <= kSearched ? nullptr : static_cast<std::int32_t*>(context.workspace.data);
  if (owner != nullptr)
    list_owners(a.query_start_loc, false, p.requests, p.tokens, owner, -1, stream_of(context.stream));
  device::launch_pdl<compressed_slots>("compressed_slots", blocks_for(p.tokens, kThreads), kThreads, 0,
                                       stream_of(context.stream), table_of(a.block_table, p.storage_block), p.requests,
                                       p.tokens, p.ratio, p.share, owner,
                                       data_of<const std::int32_t>(a.query_start_loc),
                                       data_of<const std::int32_t>(a.seq_lens), data_of<std::int64_t>(a.slots));
}

}  // namespace

template <>
Implementation<TokenToReq> cuda_row() {
  return any_gpu_row<TokenToReq>(run);
}

template <>
Implementation<SlotMapping> cuda_row() {
  return any_gpu_row<SlotMapping>(run);
}

template <>
Implementation<CompressedSlotMapping> cuda_row() {
  return any_gpu_row<CompressedSlotMapping>(run, take_all<CompressedSlotMapping, needs_gpu, count_bytes>);
}

}  // namespace smla
