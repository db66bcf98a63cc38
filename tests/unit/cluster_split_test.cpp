// How TopK and IndexerTopK cut calls for clusters of blocks on Hopper.
#include <gtest/gtest.h>

#include "ops/indexer/indexer_topk_split.h"
#include "ops/topk/topk_cluster_split.h"

namespace smla {
namespace {

constexpr device::Gpu kH200{.ordinal = 0, .capability = 90, .multiprocessors = 132, .shared_bytes = 227 << 10};
constexpr std::int64_t kFixed = 20'000;

TEST(ClusterSplit, AsManyClustersRunAtOnceAsWereMeasured) {
  EXPECT_EQ(132, clusters_at_once(132, 1));
  EXPECT_EQ(66, clusters_at_once(132, 2));
  EXPECT_EQ(30, clusters_at_once(132, 4));
  EXPECT_EQ(15, clusters_at_once(132, 8));
  EXPECT_EQ(7, clusters_at_once(132, 16));
  EXPECT_EQ(0, clusters_at_once(16, 16));
}

TEST(ClusterSplit, EveryColumnOfALongRowHasABlock) {
  for (const std::int64_t rows : {1, 7, 8, 15, 16, 100}) {
    for (const std::int64_t width : {0, 1, 31, 4096, 16'385, 32'768, 65'536, 262'144, 800'000}) {
      const TopkClusters c = topk_clusters({.rows = rows, .width = width, .k = 512}, kH200, kFixed);
      ASSERT_GE(c.together, 1) << width;
      EXPECT_GE(c.together * c.columns, width);
      EXPECT_LE(kFixed + 4 * c.columns, static_cast<std::int64_t>(kH200.shared_bytes));
    }
  }
  EXPECT_EQ(0, topk_clusters({.rows = 1, .width = 2'000'000, .k = 512}, kH200, kFixed).together);
}

TEST(ClusterSplit, MoreBlocksWhileAllRowsRunAtOnce) {
  EXPECT_EQ(8, topk_clusters({.rows = 1, .width = 32'768, .k = 512}, kH200, kFixed).together);
  EXPECT_EQ(16, topk_clusters({.rows = 1, .width = 65'536, .k = 512}, kH200, kFixed).together);
  EXPECT_EQ(8, topk_clusters({.rows = 15, .width = 65'536, .k = 512}, kH200, kFixed).together);
  EXPECT_EQ(4, topk_clusters({.rows = 16, .width = 65'536, .k = 512}, kH200, kFixed).together);
}

TEST(ClusterSplit, ChosenForFewLongRows) {
  EXPECT_EQ("", shorter_way({.rows = 16, .width = 32'769, .k = 512}));
  EXPECT_EQ("17 rows; it is chosen for up to 16", shorter_way({.rows = 17, .width = 32'769, .k = 512}));
  EXPECT_EQ("32768 columns; it is chosen for 32769 to 65536", shorter_way({.rows = 1, .width = 32'768, .k = 512}));
  EXPECT_EQ("65537 columns; it is chosen for 32769 to 65536", shorter_way({.rows = 1, .width = 65'537, .k = 512}));
}

constexpr SelectShape shape(std::int64_t rows, std::int64_t sharing, std::int64_t width) {
  return {.rows = rows,
          .sharing = sharing,
          .width = width,
          .unit_bytes = 8500,
          .fixed_bytes = 72'000,
          .shared_bytes = 227 << 10,
          .multiprocessors = 132};
}

TEST(ClusterSplit, ScoresAndSelectionFitABlock) {
  for (const std::int64_t rows : {1, 2, 8, 30, 128, 2048}) {
    for (const std::int64_t sharing : {1, 2, 5, 2048}) {
      for (const std::int64_t width : {0, 1, 2048, 32'768, 300'000}) {
        const SelectShape s = shape(rows, sharing, width);
        const SelectSplit split = split_select(s, 4, 16);
        ASSERT_GE(split.rows, 1) << rows << " " << sharing << " " << width;
        EXPECT_LE(split.rows, std::min<std::int64_t>(4, sharing));
        EXPECT_GE(split.together * split.columns, width);
        EXPECT_LE(s.fixed_bytes + split.rows * (s.unit_bytes + 4 * split.columns), s.shared_bytes);
      }
    }
  }
  EXPECT_EQ(0, split_select(shape(1, 1, 2'000'000), 4, 16).rows);
}

}  // namespace
}  // namespace smla
