#pragma once

// The host side that all CompressStore kernels share: arguments and grid of a launch.

#include <algorithm>

#include "ops/compressor/implementations.h"
#include "ops/compressor/pooled_entry.cuh"

namespace smla::compressor {

/// How many tokens a block, or a cluster of blocks, takes. In a prefill few of them close a group. `enough`: the number
/// of blocks that keeps a GPU busy.
inline int span_of(std::int64_t tokens, int ratio, std::int64_t enough = 256) {
  return static_cast<int>(std::clamp<std::int64_t>((tokens + enough - 1) / enough, 1, std::min(ratio, 32)));
}

/// Calls f.operator()<vector, saves>() with the two flags as constants.
template <class F>
void with_kind(bool vector, bool saves, F&& f) {
  if (vector) {
    saves ? f.template operator()<true, true>() : f.template operator()<true, false>();
  } else {
    saves ? f.template operator()<false, true>() : f.template operator()<false, false>();
  }
}

inline Pool pool_of(const CompressorCall& call) {
  const CompressStore::Args& a = call.args;
  const CompressStore::Compressor& own = call.own;
  Pool c{.tokens = own.state_slots.size(0),
         .span = span_of(own.state_slots.size(0), call.problem.ratio),
         .positions = static_cast<const std::int64_t*>(a.positions.data),
         .request = static_cast<const std::int32_t*>(a.token_to_req.data),
         .state_slots = static_cast<const std::int64_t*>(own.state_slots.data),
         .entry_slots = static_cast<const std::int64_t*>(a.entry_slots.data),
         .table = static_cast<const std::int32_t*>(own.block_table.data),
         .table_stride = own.block_table.stride[0],
         .requests = own.block_table.size(0),
         .columns = own.block_table.size(1),
         .weight = own.norm_weight.data,
         .weight_bf16 = own.norm_weight.dtype == DType::kBF16,
         .cos_sin = static_cast<const float*>(a.cos_sin.data),
         .cos_sin_stride = a.cos_sin.stride[0],
         .rope_rows = a.cos_sin.size(0),
         .rope_dim = call.problem.rope_dim,
         .eps = call.problem.eps,
         .hadamard = call.shape.hadamard,
         .clamp = call.problem.clamp,
         .state = device::view_of_cache(own.state),
         .state_blocks = own.state.num_blocks,
         .entries = device::view_of_cache(own.entries)};
  c.beside = a.beside_previous;
  if (call.saves()) c.save = save_of(call.save_problem(), call.save_args());
  return c;
}

/// Whether the call's state rows can be read and written four numbers at a time.
inline bool by_fours(const Pool& c) {
  return device::common_word(c.state.base, c.state.block_stride, c.state.data_bytes) == 16 &&
         (c.save.kv_score == nullptr || by_fours(c.save));
}

/// Why no kernel here can write such entries; empty when one can.
inline std::string entry_refusal(const CompressStore::Problem& p) {
  for (int i = 0; i < p.compressors; ++i) {
    const RowFormat& format = *p.compressor.at(static_cast<std::size_t>(i)).format;
    if (std::string reason = device::encoder_refusal(format); !reason.empty()) return reason;
  }
  return "";
}

}  // namespace smla::compressor
