#pragma once

#include <algorithm>
#include <string>

#include "ops/attention/hopper_split.h"
#include "ops/attention/tile_call.cuh"

namespace smla::attention::sm90 {

// What the kernels for Hopper ask of a problem and of its arguments, on the host.

/// What a plan decides: also how the kernel for any GPU computes the call, for tensors that lie in memory as these
/// cannot read them.
struct Choice {
  HopperSplit split;
  AttentionSplit portable;
  std::int64_t multiprocessors = 1;
  std::size_t named_bytes = 0;  ///< of the workspace, behind the split's, for rows that are widened first; 0: none are
};

/// Groups of codes of a scope's rows.
inline int code_groups(const SparseAttention::Problem& p, int scope) {
  return key_layout(*p.scope[static_cast<std::size_t>(scope)].format).code_groups;
}
/// Whether the kernels read all rows as their caches store them.
inline bool reads_stored(const SparseAttention::Problem& p) {
  const int groups = code_groups(p, 0);
  return (groups == 7 || groups == 8) && (p.scopes == 1 || code_groups(p, 1) == groups);
}

/// Why the kernels that read rows as their caches store them do not take a problem; empty where they do.
inline std::string refusal(const SparseAttention::Problem& p) {
  if (std::string reason = tensor_core_refusal(p); !reason.empty()) return reason;
  if (reads_stored(p)) return "";
  if (p.scopes > 1 && code_groups(p, 0) != code_groups(p, 1)) {
    return std::string(p.scope[0].format->name) + " and " + std::string(p.scope[1].format->name) +
           " rows; it takes one kind of rows";
  }
  return std::string(p.scope[0].format->name) + " rows, " + std::to_string(64 * code_groups(p, 0)) +
         " numbers of which are e4m3; it takes 448 and 512";
}

/// Whether all tensors lie as the kernels read them, and larger products are larger scores.
inline bool readable(const SparseAttention::Problem& p, const TileCall& c) {
  const auto q = reinterpret_cast<std::uintptr_t>(c.a.q);
  bool all = c.q_aligned && q % 16 == 0;
  for (int s = 0; s < p.scopes; ++s) {
    const RowLayout& l = c.layout[s];
    all = all && c.score_scale[s] > 0 && l.block_bits >= 0 && l.aligned &&
          (!l.scaled || (l.scales % 8 == 0 && l.scale_bytes % 8 == 0));
  }
  return all;
}

/// Whether the scopes' weights have no scales of their own.
inline bool unit_weights(const TileCall& c) {
  return c.weight_scale[0] == 1 && (c.a.scopes == 1 || c.weight_scale[1] == 1);
}

/// The call as `split` cuts it.
inline void cut_call(TileCall& c, const HopperSplit& split, void* workspace) {
  c.part_keys = split.part_keys;
  c.parts = static_cast<std::uint32_t>(split.parts);
  c.cut = cut_of(c, split.cut);
  c.half_sums = split.half_sums;
  place_sums(c, workspace, split.launch_tokens);
  c.head_tiles = static_cast<std::uint32_t>(split.head_tiles(c.a.heads));
}
/// Items of a launch of `tokens` tokens.
inline std::int64_t items_of(const TileCall& c, std::int64_t tokens) {
  return c.head_tiles * (c.cut.extra > 0 ? tokens + c.cut.extra : tokens * c.parts);
}

}  // namespace smla::attention::sm90
