#pragma once

#include "device/early_launch.cuh"
#include "device/ptx.cuh"
#include "ops/index/global_row.cuh"

namespace smla::index_rows {

// What kernels that build index rows share: a block of kThreads for each row, a thread for each column.

constexpr int kThreads = 128;

/// Tokens of a step fit a grid's x dimension.
inline unsigned row_blocks(std::int64_t rows) { return blocks_for(rows, 1); }

/// An int32 matrix whose rows may be strided.
template <class Int>
struct Rows {
  Int* data = nullptr;
  std::int64_t stride = 0;
  std::int64_t columns = 0;
  __device__ Int* row(std::int64_t r) const { return data + r * stride; }
};

inline Rows<std::int32_t> rows_of(const TensorView& v) { return {static_cast<std::int32_t*>(v.data), v.stride[0], v.size(1)}; }
inline Rows<const std::int32_t> rows_of(const ConstTensorView& v) {
  if (v.absent()) return {};
  return {static_cast<const std::int32_t*>(v.data), v.stride[0], v.size(1)};
}

template <class T>
T* data_of(const auto& v) {
  return static_cast<T*>(v.data);
}

/// Asks for a row of n numbers; a block's threads together.
__device__ inline void fetch_row(const std::int32_t* row, std::int64_t n) {
  constexpr int kLine = 32;
  if (const std::int64_t i = kLine * static_cast<std::int64_t>(threadIdx.x); i < n) device::prefetch(row + i);
}

/// Entries of `ratio` tokens that a query at `pos` sees, at most `most`. pos may be the largest number.
__device__ inline std::int64_t entries_seen(std::int64_t pos, std::int64_t ratio, std::int64_t most) {
  if (pos < 0) return 0;
  const std::int64_t whole = pos / ratio;
  return min(whole + (pos - whole * ratio == ratio - 1 ? 1 : 0), most);
}

/// store(j, meaning(j, load(j))) for every j < n; a thread's next kRun loads, and then what their meanings load, are under way at once.
template <unsigned kRun = 4, class Load, class Meaning, class Store>
__device__ void each_column(std::int64_t n, Load&& load, Meaning&& meaning, Store&& store) {
  const auto end = static_cast<unsigned>(n);  // columns of an index row are counted in int32
  for (unsigned base = threadIdx.x; base < end; base += kRun * kThreads) {
    std::int32_t v[kRun];
#pragma unroll
    for (unsigned i = 0; i < kRun; ++i) v[i] = base + i * kThreads < end ? load(static_cast<int>(base + i * kThreads)) : -1;
#pragma unroll
    for (unsigned i = 0; i < kRun; ++i) v[i] = meaning(static_cast<int>(base + i * kThreads), v[i]);
#pragma unroll
    for (unsigned i = 0; i < kRun; ++i) {
      if (base + i * kThreads < end) store(base + i * kThreads, v[i]);
    }
  }
}

}  // namespace smla::index_rows
