#pragma once

#include <cstdint>

#include "device/divisor.cuh"
#include "device/numbers.cuh"
#include "sparsemla/tensor_view.h"

namespace smla::index_rows {

/// A block table as index builders read it. Requests and columns outside of it, and negative entries, give no slot.
struct Table {
  const std::int32_t* entries = nullptr;
  std::int64_t requests = 0;
  std::int64_t columns = 0;
  std::int64_t stride = 0;
  std::int64_t block_size = 1;
  device::Divisor by_block_size;

  /// The slot of row i of a request, -1 for none. `clamp`: negative table entries are read as block 0.
  __device__ std::int64_t slot(std::int64_t request, std::int64_t i, bool clamp = false) const {
    if (request < 0 || request >= requests || i < 0) return -1;
    const std::int64_t column = device::quotient(i, block_size);
    if (column >= columns) return -1;
    std::int64_t block = entries[request * stride + column];
    if (block < 0) {
      if (!clamp) return -1;
      block = 0;
    }
    return block * block_size + (i - column * block_size);
  }

  /// A request's row of the table, null for none.
  __device__ const std::int32_t* row(std::int64_t request) const {
    return request < 0 || request >= requests ? nullptr : entries + request * stride;
  }
  /// slot() in two branch-free steps, so that a thread can have the block table's loads of several rows in flight:
  /// block_of() loads the block of row i, index_in() computes the slot from it. Where there is no block, block_of()
  /// returns a number of 2^31 or more (0xFFFFFFFF, or a negative entry's bits); index_in() makes -1 of it, because no
  /// slot of such a block fits into 31 bits.
  __device__ std::uint32_t block_of(const std::int32_t* row, std::int32_t i) const {
    const std::uint32_t column = column_of(i);
    const bool there =
        row != nullptr && i >= 0 && column < static_cast<std::uint32_t>(min(columns, std::int64_t{0xFFFF'FFFF}));
    return there ? static_cast<std::uint32_t>(__ldg(row + column)) : 0xFFFF'FFFFU;
  }
  __device__ std::int32_t index_in(std::uint32_t block, std::int32_t i) const {
    const auto size = static_cast<std::uint32_t>(block_size);  // checked: 31 bits
    const std::uint64_t slot = std::uint64_t{block} * size + (static_cast<std::uint32_t>(i) - column_of(i) * size);
    return slot > 0x7FFF'FFFFU ? -1 : static_cast<std::int32_t>(slot);
  }
  __device__ std::uint32_t column_of(std::int32_t i) const {
    return by_block_size.quotient(static_cast<std::uint32_t>(i));
  }
};

inline Table table_of(const ConstTensorView& v, std::int64_t block_size) {
  Table table{.block_size = block_size};
  if (v.absent()) return table;
  table.entries = static_cast<const std::int32_t*>(v.data);
  table.requests = v.size(0);
  table.columns = v.size(1);
  table.stride = v.stride[0];
  table.by_block_size = device::Divisor(static_cast<std::uint32_t>(block_size));
  return table;
}

/// A slot as an index row can hold it: -1 for one that does not fit int32.
__device__ inline std::int32_t as_index(std::int64_t v) {
  return v < 0 || v > 0x7FFF'FFFF ? -1 : static_cast<std::int32_t>(v);
}

/// Computes one row of GlobalTopk with a block of kThreads; lives in shared memory.
template <int kThreads>
struct GlobalRow {
  static constexpr int kRun = 8;  ///< entries of a thread in a round, all loaded at once
  static constexpr int kWarps = kThreads / 32;

  std::int32_t warp_sum[2][kWarps];

  /// Survivors keep their order: a warp has 32 kRun consecutive entries, and a running total gives the first output
  /// place of each round. `out` may be `local`.
  __device__ void write(const Table& table, std::int64_t request, bool valid, std::int64_t k, bool compact,
                        const std::int32_t* local, std::int32_t* out, std::int32_t* len) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const std::int32_t* const blocks = table.row(request);
    std::int32_t total = 0;
    int round = 0;
    for (std::int64_t base = 0; base < k; base += kThreads * kRun, round ^= 1) {
      const int left = static_cast<int>(min(k - base, std::int64_t{kThreads * kRun}));
      const int first = warp * 32 * kRun + lane;
      const std::int32_t* const from = local + base;
      std::int32_t* const to = out + base;
      std::int32_t entry[kRun];
      std::uint32_t block[kRun];
      std::int32_t index[kRun];
#pragma unroll
      for (int i = 0; i < kRun; ++i) entry[i] = first + 32 * i < left ? from[first + 32 * i] : -1;
      __syncwarp();  // keeps all loads before the first use, which the compiler would not do
#pragma unroll
      for (int i = 0; i < kRun; ++i) block[i] = table.block_of(blocks, entry[i]);
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kRun; ++i) index[i] = table.index_in(block[i], entry[i]);
      std::int32_t place[kRun];
      std::int32_t alive = 0;
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        const unsigned which = __ballot_sync(0xFFFF'FFFFU, index[i] >= 0);
        place[i] = alive + __popc(which & ((1U << lane) - 1U));
        alive += __popc(which);
      }
      if (lane == 0) warp_sum[round][warp] = alive;
      // All entries of this round have been read before one is written, and no output place lies past the entries read.
      __syncthreads();
      std::int32_t before = total;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        if (w < warp) before += warp_sum[round][w];
        total += warp_sum[round][w];
      }
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        if (!compact && first + 32 * i < left) to[first + 32 * i] = index[i];
        if (compact && index[i] >= 0) out[before + place[i]] = index[i];
      }
    }
    // The last round is written before the -1 behind it.
    __syncthreads();
    for (std::int64_t j = total + threadIdx.x; compact && j < k; j += kThreads) out[j] = -1;
    if (threadIdx.x == 0) *len = valid ? total : 0;
  }
};

}  // namespace smla::index_rows
