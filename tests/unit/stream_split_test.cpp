// How many blocks share the inputs of a tile (sm90_stream), for V4-Flash's weights on a GPU of 132 multiprocessors.
#include "ops/projection/stream_split.h"

#include <gtest/gtest.h>

namespace smla::projection {
namespace {

constexpr ClustersAtOnce kHopper = {132, 66, 32, 16};

/// Blocks that share a tile.
int split(std::int64_t n, std::int64_t row_bytes, std::int64_t groups = 1, ClustersAtOnce at_once = kHopper) {
  return 1 << stream_split(
             {.tiles = groups * ((n + 255) / 256), .tile_bytes = std::min<std::int64_t>(n, 256) * row_bytes}, at_once);
}

TEST(StreamSplit, LargeWeightsFillTheMultiprocessors) {
  EXPECT_EQ(split(32768, 1024), 1);    // wq_b
  EXPECT_EQ(split(1024, 4096, 8), 4);  // wo_a
  EXPECT_EQ(split(4096, 8192), 8);     // wo_b
  EXPECT_EQ(split(8192, 1024), 4);     // the indexer's wq_b
}

TEST(StreamSplit, SmallWeightsTakeAllBlocksOfACluster) {
  EXPECT_EQ(split(1024, 4096), 8);  // wq_a
  EXPECT_EQ(split(512, 4096), 8);   // wkv
  EXPECT_EQ(split(64, 8192), 8);    // the indexer's weights
  EXPECT_EQ(split(64, 128), 1);     // nothing to share
}

TEST(StreamSplit, ClustersThatDoNotFitAreNotMade) {
  EXPECT_EQ(split(4096, 8192, 1, {132, 66, 32, 0}), 4);
  EXPECT_EQ(split(4096, 8192, 1, {132, 66, 32, 14}), 4);  // a second round costs more
  EXPECT_EQ(split(4096, 8192, 1, {132, 0, 0, 0}), 1);
}

}  // namespace
}  // namespace smla::projection
