// How attention of few queries shares out a call: clusters that find room, keys of a block, what it does not take.
#include "ops/attention/small_split.h"

#include <gtest/gtest.h>

namespace smla {
namespace {

constexpr device::Gpu kH200{.ordinal = 0, .capability = 90, .multiprocessors = 132, .shared_bytes = 227 * 1024};

SparseAttention::Problem problem(std::int64_t tokens, std::int64_t heads, std::int64_t first, std::int64_t second) {
  SparseAttention::Problem p{.tokens = tokens, .heads = heads, .scopes = 2};
  p.scope[0] = {.format = &fp8_ds_mla_rows(), .width = first};
  p.scope[1] = {.format = &fp8_ds_mla_rows(), .width = second};
  return p;
}

/// Of the clusters that all find room those with the least estimate; where none do, those whose waves take the least.
TEST(SmallSplit, ClustersFindRoom) {
  const auto split = [](std::int64_t tokens, std::int64_t heads) {
    return split_small(problem(tokens, heads, 128, 512), kH200);
  };
  EXPECT_EQ(8, split(1, 64).blocks);
  EXPECT_EQ(8, split(3, 64).blocks);
  EXPECT_EQ(8, split(14, 16).blocks);
  EXPECT_EQ(6, split(4, 64).blocks);
  EXPECT_EQ(4, split(6, 64).blocks);
  EXPECT_EQ(3, split(8, 64).blocks);
  EXPECT_EQ(3, split(4, 128).blocks);
  EXPECT_EQ(2, split(16, 64).blocks);
  EXPECT_EQ(2, split(66, 1).blocks);
  for (const auto& fits : {split(1, 128), split(16, 64), split(66, 16)}) EXPECT_TRUE(fits.fits());
  EXPECT_EQ(4, split_small(problem(4, 64, 128, 0), kH200).blocks) << "short lists";
  const SmallSplit many = split(17, 64);
  EXPECT_FALSE(many.fits());
  EXPECT_EQ(3, many.blocks) << "two waves of 39 clusters";
  EXPECT_EQ(68, many.clusters);
  EXPECT_EQ(2 * many.cost, many.time());
}

/// Tokens that share rows of indices are shared out as those with rows of their own, which are as long as theirs.
TEST(SmallSplit, SharedRowsAreEachTokensOwn) {
  SparseAttention::Problem shared = problem(32, 8, 145, 65);  // 144 are whole runs of clusters of two and three blocks
  shared.tokens_per_list = 2;
  const SmallSplit split = split_small(shared, kH200);
  const SmallSplit own = split_small(problem(32, 8, 144, 64), kH200);
  EXPECT_EQ(own.blocks, split.blocks);
  EXPECT_EQ(own.clusters, split.clusters);
  EXPECT_EQ(own.cost, split.cost);
}

/// A block has as many keys as the runs of eight that fall to it, of each scope, and its blocks have all of a list.
TEST(SmallSplit, BlocksCoverTheList) {
  for (const std::int64_t first : {0, 1, 64, 128, 129}) {
    for (const std::int64_t second : {0, 1, 63, 64, 65, 512, 8192}) {
      for (const SmallCluster& cluster : kSmallClusters) {
        const int blocks = cluster.blocks;
        const SmallSplit split = split_small(problem(1, 64, first, second), kH200, cluster);
        EXPECT_GE(split.keys * blocks, first + second);
        EXPECT_LT(split.keys * blocks, first + second + 2 * blocks * SmallSplit::kRun);
        EXPECT_EQ(0, split.keys % SmallSplit::kRun);
      }
    }
  }
  EXPECT_EQ(80, split_small(problem(1, 64, 128, 512), kH200, kSmallClusters.front()).keys);
}

TEST(SmallSplit, RefusalsNameWhatIsTaken) {
  const SparseAttention::Problem taken = problem(1, 64, 128, 512);
  EXPECT_EQ("", small_refusal(taken));
  const auto says = [&](const char* words, auto&& change) {
    SparseAttention::Problem p = taken;
    change(p);
    EXPECT_NE(std::string::npos, small_refusal(p).find(words)) << small_refusal(p);
  };
  const auto takes = [&](auto&& change) {
    SparseAttention::Problem p = taken;
    change(p);
    EXPECT_EQ("", small_refusal(p));
  };
  takes([](auto& p) { p.tokens = 2, p.tokens_per_list = 2; });
  takes([](auto& p) { p.q = DType::kE4M3; });
  says("o in F8_E4M3; it takes BF16 and F32", [](auto& p) { p.o = DType::kE4M3; });
  says("it takes one kind of rows", [](auto& p) { p.scope[1].format = &fp8_per_tensor_rows(); });
  says("bf16 rows; it takes rows of e4m3 numbers", [](auto& p) { p.scopes = 1, p.scope[0].format = &bf16_rows(); });
  says("130 dims of queries to rotate; it takes up to 128", [](auto& p) { p.query_prologue = {.rope_dim = 130}; });
}

TEST(SmallSplit, IsToldInWords) {
  EXPECT_EQ("4 clusters of 8 blocks, each a token and 16 of its heads, up to 80 keys a block",
            describe(split_small(problem(1, 64, 128, 512), kH200)));
}

/// Which of `sm90_small` and the two other kernels was faster on an H200 (docs/kernels/sparse_attention_small.md).
TEST(SmallCost, ChoosesWhatWasFaster) {
  struct Cell {
    std::int64_t tokens, heads, entries;
    bool small;
  };
  for (const Cell& c : {Cell{1, 64, 0, true},
                        {4, 64, 0, true},
                        {16, 64, 0, true},
                        {1, 64, 64, true},
                        {4, 64, 64, true},
                        {16, 64, 64, true},
                        {1, 64, 512, true},
                        {4, 64, 512, true},
                        {4, 64, 1'024, true},
                        {16, 64, 1'024, false},
                        {1, 64, 8'192, false},
                        {1, 128, 0, true},
                        {4, 128, 0, true}}) {
    const SparseAttention::Problem p = problem(c.tokens, c.heads, 128, c.entries);
    const SmallSplit split = split_small(p, kH200);
    ASSERT_TRUE(split.fits());
    const std::int64_t others = std::min(split_attention(p, kH200, false).cost, split_for_hopper(p, kH200, false).cost);
    EXPECT_EQ(c.small, split.cost < others) << c.tokens << " tokens, " << c.heads << " heads, " << c.entries;
  }
}

}  // namespace
}  // namespace smla
