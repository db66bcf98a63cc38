#pragma once

#include <algorithm>
#include <array>
#include <string>

#include "ops/attention/hopper_split.h"

namespace smla {

/// How `sm90_small` shares out a call, and how long it takes: a cluster of blocks for each token and 16 of its heads,
/// whose blocks take runs of eight entries of a list in turn.
struct SmallSplit {
  static constexpr int kMostBlocks = 8;  ///< of a cluster
  static constexpr int kHeads = 16;      ///< of a cluster
  static constexpr int kRun = 8;         ///< neighbouring entries of a list that a block takes

  int blocks = kMostBlocks;  ///< of a cluster
  std::int64_t clusters = 0;
  std::int64_t keys = 0;  ///< of a block, of lists as long as they may be
  std::int64_t cost = 0;  ///< estimated time, comparable with that of AttentionSplit, if all clusters find room at once
  std::int64_t at_once = 1;  ///< clusters that find room

  bool fits() const { return clusters <= at_once; }
  /// Estimated time of all clusters, one wave after the other.
  std::int64_t time() const { return (clusters + at_once - 1) / at_once * cost; }
};

/// Clusters of `sm90_small`. A block fills a multiprocessor, and a cluster lies in one part of the GPU. Parts have an
/// even number of multiprocessors, up to 18, so that some are left over: of an H200's 132, 12 clusters of eight were
/// seen to run at once, 16 were not, and 17 of six, 30 of four and 39 of three find room.
struct SmallCluster {
  int blocks = 0;
  std::int64_t call = 0;            ///< estimated time of a call without keys, in the unit of AttentionTile::Cost
  std::int64_t usable = 0, of = 0;  ///< so many of so many multiprocessors find a place in a cluster

  static constexpr std::int64_t kKey = 45;  ///< time of a key of a block
};
/// Fitted to the cells of docs/kernels/sparse_attention_small.md.
inline constexpr std::array<SmallCluster, 5> kSmallClusters{
    {{8, 5'280, 7, 8}, {6, 7'700, 7, 9}, {4, 5'670, 15, 16}, {3, 7'130, 8, 9}, {2, 7'900, 1, 1}}};

/// Why `sm90_small` does not take a problem that the kernels on tensor cores take; empty when it does.
inline std::string small_refusal(const SparseAttention::Problem& p) {
  constexpr int kMostRotated = 128;
  const auto groups = [&](int scope) {
    return key_layout(*p.scope[static_cast<std::size_t>(scope)].format).code_groups;
  };
  if (p.o == DType::kE4M3) return "o in F8_E4M3; it takes BF16 and F32";
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

/// A call by one kind of clusters.
inline SmallSplit split_small(const SparseAttention::Problem& p, const device::Gpu& gpu, const SmallCluster& cluster) {
  const std::int64_t run = std::int64_t{cluster.blocks} * SmallSplit::kRun;
  SmallSplit split{.blocks = cluster.blocks,
                   .clusters = p.tokens * ((p.padded_heads() + SmallSplit::kHeads - 1) / SmallSplit::kHeads)};
  for (int s = 0; s < p.scopes; ++s) {
    const std::int64_t width = p.scope[static_cast<std::size_t>(s)].width;
    split.keys += (width + run - 1) / run * SmallSplit::kRun;
  }
  split.cost = cluster.call + split.keys * SmallCluster::kKey;
  const std::int64_t usable = gpu.multiprocessors * cluster.usable / cluster.of;
  split.at_once = std::max<std::int64_t>(usable / cluster.blocks, 1);
  return split;
}
/// The same by those of the clusters that all find room whose estimate is the least; where none do, by those whose
/// waves take the least. Tokens that share rows of indices are taken as if each had a row of its own.
inline SmallSplit split_small(const SparseAttention::Problem& p, const device::Gpu& gpu) {
  const SparseAttention::Problem of_tokens = unpacked(p);
  SmallSplit best = split_small(of_tokens, gpu, kSmallClusters.front());
  for (const SmallCluster& cluster : kSmallClusters) {
    const SmallSplit split = split_small(of_tokens, gpu, cluster);
    if (split.fits() == best.fits() ? split.time() < best.time() : split.fits()) best = split;
  }
  return best;
}

inline std::string describe(const SmallSplit& split) {
  return std::to_string(split.clusters) + " clusters of " + std::to_string(split.blocks) +
         " blocks, each a token and " + std::to_string(SmallSplit::kHeads) + " of its heads, up to " +
         std::to_string(split.keys) + " keys a block";
}

}  // namespace smla
