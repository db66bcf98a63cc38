#pragma once

#include <algorithm>
#include <string>

#include "ops/attention/hopper_split.h"

namespace smla {

/// How `sm90_small` shares out a call, and how long it takes: a cluster of blocks for each token and 16 of its heads,
/// whose blocks take every eighth run of eight entries of a list each.
struct SmallSplit {
  static constexpr int kBlocks = 8;  ///< of a cluster
  static constexpr int kHeads = 16;  ///< of a cluster
  static constexpr int kRun = 8;     ///< neighbouring entries of a list that a block takes

  std::int64_t clusters = 0;
  std::int64_t keys = 0;  ///< of a block, of lists as long as they may be
  std::int64_t cost = 0;  ///< estimated time, comparable with that of AttentionSplit, if all clusters find room at once
  std::int64_t at_once = 1;  ///< clusters that find room

  bool fits() const { return clusters <= at_once; }
};

/// Times of `sm90_small`, in the unit of AttentionTile::Cost (docs/kernels/sparse_attention_small.md has the cells).
struct SmallCost {
  static constexpr std::int64_t kCall = 6'200;
  static constexpr std::int64_t kKey = 62;  ///< of a block
};

/// Why `sm90_small` does not take a problem that the kernels on tensor cores take; empty when it does.
inline std::string small_refusal(const SparseAttention::Problem& p) {
  constexpr int kMostRotated = 128;
  const auto groups = [&](int scope) {
    return key_layout(*p.scope[static_cast<std::size_t>(scope)].format).code_groups;
  };
  if (p.tokens_per_list > 1) return "tokens that share rows of indices; it takes rows of their own";
  if (p.q != DType::kBF16) return "q in F8_E4M3; it takes BF16";
  if (p.scopes > 1 && groups(0) != groups(1)) {
    return std::string(p.scope[0].format->name) + " and " + std::string(p.scope[1].format->name) +
           " rows; it takes one kind of rows";
  }
  if (groups(0) < 7) return std::string(p.scope[0].format->name) + " rows; it takes rows of e4m3 numbers";
  if (p.query_prologue && p.query_prologue->rope_dim > kMostRotated) {
    return std::to_string(p.query_prologue->rope_dim) + " dims of queries to rotate; it takes up to " +
           std::to_string(kMostRotated);
  }
  return "";
}

inline SmallSplit split_small(const SparseAttention::Problem& p, const device::Gpu& gpu) {
  constexpr std::int64_t kOfCluster = SmallSplit::kBlocks * SmallSplit::kRun;
  SmallSplit split{.clusters = p.tokens * ((p.padded_heads() + SmallSplit::kHeads - 1) / SmallSplit::kHeads)};
  for (int s = 0; s < p.scopes; ++s) {
    const std::int64_t width = p.scope[static_cast<std::size_t>(s)].width;
    split.keys += (width + kOfCluster - 1) / kOfCluster * SmallSplit::kRun;
  }
  split.cost = SmallCost::kCall + split.keys * SmallCost::kKey;
  // A block fills a multiprocessor, and a cluster lies in one part of the GPU, not all of which have 16: of an H200's
  // 132 multiprocessors 12 clusters were seen to run at once, 16 were not.
  split.at_once = std::max<std::int64_t>(std::int64_t{gpu.multiprocessors} * 7 / (8 * SmallSplit::kBlocks), 1);
  return split;
}

inline std::string describe(const SmallSplit& split) {
  return std::to_string(split.clusters) + " clusters of " + std::to_string(SmallSplit::kBlocks) +
         " blocks, each a token and " + std::to_string(SmallSplit::kHeads) + " of its heads, up to " +
         std::to_string(split.keys) + " keys a block";
}

}  // namespace smla
