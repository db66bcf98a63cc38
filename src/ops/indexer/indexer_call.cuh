#pragma once

#include "device/numbers.cuh"
#include "sparsemla/ops/indexer.h"

namespace smla::indexer {

/// Where the keys are: entry j is in a row of a block of the cache, or (not paged) in row j of an array.
struct EntryPlace {
  std::int32_t block = -1;
  std::int32_t offset = 0;
};

struct Keys {
  const std::uint8_t* data = nullptr;
  std::int64_t data_stride = 0;  ///< bytes from block to block
  std::int64_t data_bytes = 0;   ///< bytes from row to row
  int data_align = 1;
  const std::uint8_t* scales = nullptr;
  std::int64_t scale_stride = 0;
  std::int64_t scale_bytes = 0;
  int scale_align = 1;
  std::uint32_t blocks = 0;  ///< blocks of the cache, or rows of an array
  std::uint32_t block_size = 1;
  int block_bits = -1;  ///< log2 of block_size where it is a power of two, else -1
  bool paged = false;
  const std::int32_t* table = nullptr;
  std::int64_t table_stride = 0;
  std::int64_t requests = 0;
  std::int64_t columns = 0;

  /// Loads the block-table entry of an entry without using it, so that a thread does not wait for it here.
  __device__ EntryPlace find(std::int64_t request, std::int64_t j) const {
    if (!paged) return {static_cast<std::int32_t>(j), 0};
    const auto entry = static_cast<std::uint32_t>(j);
    const std::uint32_t column = block_bits >= 0 ? entry >> block_bits : entry / block_size;
    const bool listed = request >= 0 && request < requests && column < columns;
    return {listed ? __ldg(table + request * table_stride + column) : -1,
            static_cast<std::int32_t>(entry - column * block_size)};
  }
  __device__ bool holds(EntryPlace p) const { return static_cast<std::uint32_t>(p.block) < blocks; }
  __device__ const std::uint8_t* data_at(EntryPlace p) const {
    return data + p.block * data_stride + p.offset * data_bytes;
  }
  __device__ const std::uint8_t* scales_at(EntryPlace p) const {
    return scales + p.block * scale_stride + p.offset * scale_bytes;
  }
};

/// The columns that a row scores.
struct Span {
  std::int32_t begin = 0;
  std::int32_t end = 0;
};

struct LogitsCall {
  std::int64_t rows = 0;
  int heads = 0;
  int dim = 0;
  int group = 0;  ///< dims that share a UE8M0 scale
  std::int32_t width = 0;
  std::int64_t groups = 0;  ///< groups of rows; a block computes one of them over a part of the columns
  int group_rows = 1;
  int parts = 1;

  const std::uint8_t* q = nullptr;
  std::int64_t q_stride[2] = {0, 0};  ///< bytes
  int q_align = 1;
  const std::uint8_t* q_scale = nullptr;
  std::int64_t q_scale_stride[2] = {0, 0};
  const float* weights = nullptr;
  std::int64_t weight_stride = 0;
  const std::int32_t* row_to_req = nullptr;  ///< null: keys in one array, which belong to no request
  const std::int32_t* starts = nullptr;      ///< null: 0
  const std::int32_t* ends = nullptr;
  Keys keys;
  float* logits = nullptr;
  std::int64_t logit_stride = 0;

  __device__ Span span(std::int64_t row) const {
    const std::int32_t begin = starts == nullptr ? 0 : max(starts[row], 0);
    const std::int32_t end = min(ends[row], width);
    return begin < end ? Span{begin, end} : Span{};
  }
};

__device__ inline std::uint32_t load_word(const std::uint8_t* p) {
  return __ldg(reinterpret_cast<const std::uint32_t*>(p));
}

template <bool kWide>
__device__ uint4 load_four(const std::uint8_t* p) {
  if constexpr (kWide) return __ldg(reinterpret_cast<const uint4*>(p));
  return make_uint4(load_word(p), load_word(p + 4), load_word(p + 8), load_word(p + 12));
}

__device__ inline float load_float(const std::uint8_t* p, int align) {
  if (align >= 4) return __uint_as_float(load_word(p));
  return __uint_as_float(p[0] | (static_cast<std::uint32_t>(p[1]) << 8) | (static_cast<std::uint32_t>(p[2]) << 16) |
                         (static_cast<std::uint32_t>(p[3]) << 24));
}

}  // namespace smla::indexer
