#pragma once

#include "device/launch_pdl.cuh"
#include "device/ptx/prefetch.cuh"
#include "ops/index/global_row.cuh"

namespace smla::index_rows {

// Shared by kernels that build index rows: a block of kThreads for each row, a thread for each column.

constexpr int kThreads = 128;

/// The largest number of tokens, bounded by a grid's x dimension.
inline unsigned row_blocks(std::int64_t rows) { return blocks_for(rows, 1); }

/// An int32 matrix whose rows may be strided.
template <class Int>
struct Rows {
  Int* data = nullptr;
  std::int64_t stride = 0;
  std::int64_t columns = 0;
  __device__ Int* row(std::int64_t r) const { return data + r * stride; }
};

inline Rows<std::int32_t> rows_of(const TensorView& v) {
  return {static_cast<std::int32_t*>(v.data), v.stride[0], v.size(1)};
}
inline Rows<const std::int32_t> rows_of(const ConstTensorView& v) {
  if (v.absent()) return {};
  return {static_cast<const std::int32_t*>(v.data), v.stride[0], v.size(1)};
}

template <class T>
T* data_of(const auto& v) {
  return static_cast<T*>(v.data);
}

/// Prefetches a row of n numbers, with all threads of a block.
__device__ inline void fetch_row(const std::int32_t* row, std::int64_t n) {
  constexpr int kLine = 32;
  if (const std::int64_t i = kLine * static_cast<std::int64_t>(threadIdx.x); i < n) device::prefetch(row + i);
}

/// Entries of `ratio` tokens that a query at `pos` sees, at most `most`. Does not overflow for the largest pos.
__device__ inline std::int64_t entries_seen(std::int64_t pos, std::int64_t ratio, std::int64_t most) {
  if (pos < 0) return 0;
  const std::int64_t whole = device::quotient(pos, ratio);
  return min(whole + (pos - whole * ratio == ratio - 1 ? 1 : 0), most);
}

/// Calls store(j, meaning(j, v, look_up(v))) with v = load(j) for every j < n, with all threads of a block. A thread
/// issues kRun loads, then their lookups, then the stores.
template <int kRun, class Load, class LookUp, class Meaning, class Store>
__device__ void each_column(std::int64_t n, Load&& load, LookUp&& look_up, Meaning&& meaning, Store&& store) {
  // int32 suffices for the columns of an index row. Signed, so that the compiler addresses a thread's next columns by
  // constants.
  const auto end = static_cast<int>(n);
  int base = static_cast<int>(threadIdx.x);
  for (int left = end; left > 0; left -= kRun * kThreads, base += kRun * kThreads) {
    const int mine = left - static_cast<int>(threadIdx.x);
    std::int32_t v[kRun];
    decltype(look_up(v[0])) found[kRun];
#pragma unroll
    for (int i = 0; i < kRun; ++i) v[i] = i * kThreads < mine ? load(base + i * kThreads) : -1;
    __syncwarp();  // keeps all loads before the first use, which the compiler would not do
#pragma unroll
    for (int i = 0; i < kRun; ++i) found[i] = look_up(v[i]);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      const std::int32_t value = meaning(base + i * kThreads, v[i], found[i]);
      if (i * kThreads < mine) store(base + i * kThreads, value);
    }
  }
}
/// The same without lookups.
template <int kRun = 4, class Load, class Meaning, class Store>
__device__ void each_column(std::int64_t n, Load&& load, Meaning&& meaning, Store&& store) {
  each_column<kRun>(
      n, load, [](std::int32_t) { return 0; }, [&](int j, std::int32_t v, int) { return meaning(j, v); }, store);
}

}  // namespace smla::index_rows
