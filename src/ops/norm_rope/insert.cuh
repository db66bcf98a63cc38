#pragma once

// Shared by kernels that insert rows into a cache.

#include "cache/row_encoder.cuh"
#include "device/ptx/prefetch.cuh"
#include "device/row_views.cuh"
#include "ops/cuda_row.h"

namespace smla::insertion {

using device::CacheView;

constexpr std::int64_t kMany = 2048;  ///< with more rows than this, rows hide each other's waits for memory

constexpr int kMaxRowBits = 2;
/// log2 of the number of warps that share a row. A warp has 128 of its numbers at a time; with many rows one warp is
/// enough.
inline int row_bits(std::int64_t rows, int dim) {
  return rows > kMany || dim <= 128 ? 0 : (dim <= 256 ? 1 : kMaxRowBits);
}

/// The rows to insert and the cache.
template <class In>
struct Insert {
  device::Rows<const In> kv;
  bool by_fours = false;
  const std::int64_t* slots = nullptr;
  std::int64_t rows = 0;
  CacheView cache;
  ClampRule clamp = ClampRule::kAmax;
  int row_bits = 0;   ///< log2 of the warps that share a row
  bool many = false;  ///< more than kMany rows

  /// How many whole rows a block of that many warps takes.
  __host__ __device__ unsigned block_rows(unsigned warps) const { return warps >> row_bits; }
  /// This warp's row, -1 for none, and its number among the warps of that row.
  __device__ std::int64_t row_of_warp(unsigned block) const {
    const unsigned of_block = threadIdx.y >> row_bits;
    return of_block < block_rows(blockDim.y) ? static_cast<std::int64_t>(block) * block_rows(blockDim.y) + of_block
                                             : -1;
  }
  __device__ int warp() const { return static_cast<int>(threadIdx.y) & (row_warps() - 1); }
  __device__ int row_warps() const { return 1 << row_bits; }
  /// Prefetches a row that is probably needed. With many rows other rows hide the wait, and nothing is prefetched.
  __device__ void fetch(std::int64_t row) const {
    if (many) return;
    if (const int i = 128 * static_cast<int>(threadIdx.x) / static_cast<int>(sizeof(In));
        row >= 0 && row < rows && i < cache.dim)
      device::prefetch(kv.row(row) + i);
  }

  /// The slot of a row, -1 for none.
  __device__ std::int64_t slot(std::int64_t row) const {
    const std::int64_t slot = row >= 0 && row < rows ? __ldcg(slots + row) : -1;
    return slot < cache.num_slots ? slot : -1;
  }
  __device__ float4 vec4(const In* from, int i) const {
    return device::widened(by_fours ? device::load_vec4<true>(from, i, cache.dim)
                                    : device::load_vec4<false>(from, i, cache.dim));
  }
};

template <class In>
Insert<In> insert_of(const ConstTensorView& rows, const ConstTensorView& slots, const PagedCache& cache,
                     ClampRule clamp) {
  return {.kv = device::rows_of<const In>(rows),
          .by_fours = device::by_fours(rows),
          .slots = static_cast<const std::int64_t*>(slots.data),
          .rows = slots.size(0),
          .cache = device::view_of_cache(cache),
          .clamp = clamp,
          .row_bits = row_bits(slots.size(0), cache.format->dim),
          .many = slots.size(0) > kMany};
}

/// Why the kernels cannot insert such rows; empty when they can or nothing is inserted.
inline std::string refusal(const RowFormat* format, const Machine& machine) {
  const std::string reason = needs_gpu(machine);
  return reason.empty() && format != nullptr ? device::encoder_refusal(*format) : reason;
}

/// decide() of ops that insert rows of `format`.
template <class Op>
Decision decide(const typename Op::Problem& problem, const PlanOptions& /*options*/, const Machine& machine) {
  return refused(refusal(problem.format, machine));
}

}  // namespace smla::insertion
