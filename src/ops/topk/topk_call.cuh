#pragma once

#include "device/ptx/prefetch.cuh"
#include "ops/index/global_row.cuh"
#include "sparsemla/ops/topk.h"

namespace smla::topk {

/// The arguments for the slots of the chosen columns.
struct Slots {
  index_rows::Table table;
  const std::int32_t* request = nullptr;
  const bool* valid = nullptr;
  std::int32_t* slots = nullptr;
  std::int64_t stride = 0;
  std::int32_t* lens = nullptr;  ///< null: slots are not wanted
};

struct TopkCall {
  const float* logits = nullptr;
  std::int64_t logit_stride = 0;
  const std::int32_t* lens = nullptr;
  std::int64_t width = 0;
  std::int64_t k = 0;
  std::int32_t* indices = nullptr;
  std::int64_t index_stride = 0;
  Slots slots;

  __device__ std::int64_t length(std::int64_t row) const {
    return min(max(static_cast<std::int64_t>(lens[row]), std::int64_t{0}), width);
  }
  __device__ std::int32_t* out(std::int64_t row) const { return indices + row * index_stride; }
  __device__ const float* scores(std::int64_t row) const { return logits + row * logit_stride; }

  /// Prefetches what a row is looked up by, by one thread, before the kernels ahead have ended.
  __device__ void fetch_ahead(std::int64_t row) const {
    device::prefetch(lens + row);
    if (slots.lens == nullptr) return;
    device::prefetch(slots.valid + row);
    device::prefetch(slots.request + row);
  }
  /// Translates the row that a block of kThreads has just written.
  template <int kThreads>
  __device__ void write_slots(std::int64_t row, index_rows::GlobalRow<kThreads>& shared) const {
    if (slots.lens == nullptr) return;
    __syncthreads();
    shared.write(slots.table, slots.request[row], slots.valid[row], k, true, out(row), slots.slots + row * slots.stride,
                 slots.lens + row);
  }
};

/// The slots of a row's columns, written with the columns. A block of kThreads has the first blocks of the request in
/// shared memory.
template <int kThreads>
struct SlotsBeside {
  struct Shared {
    std::uint32_t blocks[kThreads];
    std::int32_t request;
  };
  const Slots& slots;
  Shared& shared;
  std::int32_t* out = nullptr;  ///< null: slots are not wanted
  bool lost = false;            ///< whether this thread had a column without a slot

  __device__ SlotsBeside(const Slots& all, std::int64_t row, Shared& memory) : slots(all), shared(memory) {
    if (slots.lens == nullptr) return;
    out = slots.slots + row * slots.stride;
  }
  /// Asks for the blocks of a request; a barrier follows before put().
  __device__ void load(std::int32_t request) const {
    if (out == nullptr) return;
    const std::int32_t* const blocks = slots.table.row(request);
    const bool there = blocks != nullptr && threadIdx.x < slots.table.columns;
    shared.blocks[threadIdx.x] = there ? static_cast<std::uint32_t>(__ldg(blocks + threadIdx.x)) : 0xFFFF'FFFFU;
    if (threadIdx.x == 0) shared.request = request;
  }
  __device__ void put(std::uint32_t place, std::int32_t column) {
    if (out == nullptr) return;
    const std::uint32_t number = slots.table.column_of(column);
    const bool near = number < kThreads;
    const std::uint32_t block =
        near ? shared.blocks[number] : slots.table.block_of(slots.table.row(shared.request), column);
    const std::int32_t slot = slots.table.index_in(block, column);
    lost |= slot < 0;
    out[place] = slot;
  }
};

/// Writes a row's columns alone.
__device__ inline auto write_to(std::int32_t* out) {
  return [out](std::uint32_t place, std::int32_t column) { out[place] = column; };
}

/// The arguments but for the scores and for slots.
inline TopkCall topk_call(std::int64_t k, const TensorView& indices) {
  return {.k = k, .indices = static_cast<std::int32_t*>(indices.data), .index_stride = indices.stride[0]};
}
inline Slots slots_of(const TopK::Slots& slots, const TopK::Slots::Args& a) {
  return {.table = index_rows::table_of(a.block_table, slots.storage_block),
          .request = static_cast<const std::int32_t*>(a.token_to_req.data),
          .valid = static_cast<const bool*>(a.valid.data),
          .slots = static_cast<std::int32_t*>(a.slots.data),
          .stride = a.slots.stride[0],
          .lens = static_cast<std::int32_t*>(a.lens.data)};
}

inline TopkCall topk_call(const TopK::Problem& p, const TopK::Args& a) {
  TopkCall c = topk_call(p.k, a.indices);
  c.logits = static_cast<const float*>(a.logits.data);
  c.logit_stride = a.logits.stride[0];
  c.lens = static_cast<const std::int32_t*>(a.lens.data);
  c.width = p.width;
  if (p.slots) c.slots = slots_of(*p.slots, a.slots);
  return c;
}

/// Writes a row of n <= k columns: all of them are chosen.
__device__ inline void write_all(std::int64_t n, std::int64_t k, std::int32_t* out) {
  for (std::int64_t i = threadIdx.x; i < k; i += blockDim.x) out[i] = i < n ? static_cast<std::int32_t>(i) : -1;
}

}  // namespace smla::topk
