#pragma once

// What kernels that insert rows into a cache know of them.

#include "cache/row_encoder.cuh"
#include "device/row_views.cuh"
#include "ops/cuda_op.h"

namespace smla::insertion {

using device::CacheView;

/// Warps that share a row of so many numbers: each has 128 of them at a time.
constexpr int kRowWarps = 4;
__host__ __device__ constexpr int row_warps(int dim) { return dim <= 128 ? 1 : (dim <= 256 ? 2 : kRowWarps); }

/// What is written to a cache.
template <class In>
struct Insert {
  device::Rows<const In> kv;
  bool by_fours = false;
  const std::int64_t* slots = nullptr;
  std::int64_t rows = 0;
  CacheView cache;
  ClampRule clamp = ClampRule::kAmax;

  /// Slot of a row, -1 for none.
  __device__ std::int64_t slot(std::int64_t row) const {
    const std::int64_t slot = row < rows ? slots[row] : -1;
    return slot < cache.num_slots ? slot : -1;
  }
  __device__ float4 quad(const In* from, int i) const {
    return device::widened(by_fours ? device::load_quad<true>(from, i, cache.dim) : device::load_quad<false>(from, i, cache.dim));
  }
};

template <class In>
Insert<In> insert_of(const ConstTensorView& rows, const ConstTensorView& slots, const PagedCache& cache, ClampRule clamp) {
  return {.kv = device::rows_of<const In>(rows),
          .by_fours = device::by_fours(rows),
          .slots = static_cast<const std::int64_t*>(slots.data),
          .rows = slots.size(0),
          .cache = device::view_of_cache(cache),
          .clamp = clamp};
}

/// Why the device cannot insert such rows; empty where it can or nothing is inserted.
inline std::string refusal(const RowFormat* format) {
  const std::string reason = needs_gpu();
  return reason.empty() && format != nullptr ? device::encoder_refusal(*format) : reason;
}

}  // namespace smla::insertion
