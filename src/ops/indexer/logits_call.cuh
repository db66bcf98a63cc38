#pragma once

#include <algorithm>
#include <bit>

#include "ops/indexer/indexer_call.cuh"

namespace smla::indexer {

// The tensors of a call as kernels take them.

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

/// The arguments that both ops have in common.
template <class Op>
LogitsCall logits_call_of(const typename Op::Problem& p, const typename Op::Args& a, std::int64_t width) {
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

inline LogitsCall logits_call(const IndexerLogits::Problem& p, const IndexerLogits::Args& a) {
  LogitsCall c = logits_call_of<IndexerLogits>(p, a, p.width);
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
  return c;
}

inline LogitsCall logits_call(const RaggedIndexerLogits::Problem& p, const RaggedIndexerLogits::Args& a) {
  LogitsCall c = logits_call_of<RaggedIndexerLogits>(p, a, p.keys);
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
  return c;
}

/// How many consecutive rows may belong to one request.
inline std::int64_t rows_of_a_request(const IndexerLogits::Problem& p, const IndexerLogits::Args& a) {
  return a.rows_of_request > 0 ? a.rows_of_request : p.rows / std::max<std::int64_t>(a.block_table.size(0), 1);
}
inline std::int64_t rows_of_a_request(const RaggedIndexerLogits::Problem& p, const RaggedIndexerLogits::Args& /*a*/) {
  return p.rows;
}

}  // namespace smla::indexer
