// How many blocks share the inputs of a tile (sm90_stream), for V4-Flash's weights on a GPU of 132 multiprocessors.
#include "ops/projection/stream_split.h"

#include <gtest/gtest.h>

namespace smla::projection {
namespace {

/// Clusters of 1 to 8 blocks on an H200: those of eight fit 15 times, not 16, and those of four 30 times. The others
/// are not measured.
constexpr ClustersAtOnce kHopper = {132, 66, 40, 30, 23, 20, 15, 15};

/// Blocks that share a tile.
int sharing(std::int64_t n, std::int64_t row_bytes, std::int64_t groups = 1, ClustersAtOnce at_once = kHopper) {
  return blocks_of_tile({.tiles = groups * ((n + 255) / 256), .tile_bytes = std::min<std::int64_t>(n, 256) * row_bytes},
                        at_once);
}

TEST(StreamSplit, LargeWeightsTakeAsManyBlocksAsRunInOneRound) {
  EXPECT_EQ(sharing(32768, 1024), 1);    // wq_b
  EXPECT_EQ(sharing(1024, 4096, 8), 3);  // wo_a: 32 tiles, of which four blocks each would take two rounds
  EXPECT_EQ(sharing(4096, 8192), 6);     // wo_b: 16 tiles
}

TEST(StreamSplit, SmallWeightsTakeMostBlocksOfACluster) {
  EXPECT_EQ(sharing(1024, 4096), 8);  // wq_a
  EXPECT_EQ(sharing(512, 4096), 8);   // wkv
  EXPECT_EQ(sharing(64, 128), 1);     // nothing to share
}

TEST(StreamSplit, ClustersThatDoNotFitAreNotMade) {
  EXPECT_EQ(sharing(4096, 8192, 1, {132, 66, 40, 32, 26, 22, 18, 16}), 8);
  EXPECT_EQ(sharing(4096, 8192, 1, {132, 66, 40, 32, 26, 22, 18, 15}), 7);  // a second round costs more
  EXPECT_EQ(sharing(4096, 8192, 1, {132, 66, 40, 30, 0, 0, 0, 0}), 4);
  EXPECT_EQ(sharing(4096, 8192, 1, {132, 0, 0, 0, 0, 0, 0, 0}), 1);
}

}  // namespace
}  // namespace smla::projection
