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

/// Calls f with kSave and kVector as constants.
template <class F>
void with_kind(bool vector, bool saves, F&& f) {
  if (vector) {
    saves ? f.template operator()<true, true>() : f.template operator()<true, false>();
  } else {
    saves ? f.template operator()<false, true>() : f.template operator()<false, false>();
  }
}

inline Pool pool_of(const CompressStore::Problem& p, const CompressStore::Args& a) {
  Pool c{.tokens = a.state_slots.size(0),
         .span = span_of(a.state_slots.size(0), p.ratio),
         .positions = static_cast<const std::int64_t*>(a.positions.data),
         .request = static_cast<const std::int32_t*>(a.token_to_req.data),
         .state_slots = static_cast<const std::int64_t*>(a.state_slots.data),
         .entry_slots = static_cast<const std::int64_t*>(a.entry_slots.data),
         .table = static_cast<const std::int32_t*>(a.block_table.data),
         .table_stride = a.block_table.stride[0],
         .requests = a.block_table.size(0),
         .columns = a.block_table.size(1),
         .weight = a.norm_weight.data,
         .weight_bf16 = a.norm_weight.dtype == DType::kBF16,
         .cos_sin = static_cast<const float*>(a.cos_sin.data),
         .cos_sin_stride = a.cos_sin.stride[0],
         .rope_rows = a.cos_sin.size(0),
         .rope_dim = p.rope_dim,
         .eps = p.eps,
         .hadamard = p.hadamard,
         .clamp = p.clamp,
         .state = device::view_of_cache(a.state),
         .state_blocks = a.state.num_blocks,
         .entries = device::view_of_cache(a.entries)};
  if (!a.kv_score.absent()) c.save = save_of(save_problem(p), save_args(a));
  return c;
}

/// Whether the call's state rows can be read and written four numbers at a time.
inline bool by_fours(const Pool& c) {
  return device::common_word(c.state.base, c.state.block_stride, c.state.data_bytes) == 16 &&
         (c.save.kv_score == nullptr || by_fours(c.save));
}

/// Why no kernel here can write such entries; empty when one can.
inline std::string entry_refusal(const CompressStore::Problem& p) {
  for (const RowFormat* format : {p.format, p.dim2 > 0 ? p.format2 : p.format}) {
    if (std::string reason = device::encoder_refusal(*format); !reason.empty()) return reason;
  }
  return "";
}

}  // namespace smla::compressor
