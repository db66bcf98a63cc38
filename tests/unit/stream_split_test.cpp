// How many blocks share the inputs of a tile, and what they have on their way (sm90_stream), for V4-Flash's weights on
// a GPU of 132 multiprocessors.
#include "ops/projection/stream_split.h"

#include <gtest/gtest.h>

namespace smla::projection {
namespace {

/// Clusters of 1 to 8 blocks on an H200, one block a multiprocessor: those of eight fit 15 times, not 16, and those of
/// four 30 times. The others are not measured.
constexpr ClustersAtOnce kSingle = {132, 66, 40, 30, 23, 20, 15, 15};
/// With two blocks a multiprocessor; not measured either.
constexpr ClustersAtOnce kDouble = {264, 132, 80, 62, 48, 40, 34, 31};

/// Blocks of 256 outputs that share a tile of up to 64 rows.
int sharing(std::int64_t n, std::int64_t row_bytes, std::int64_t groups = 1, ClustersAtOnce at_once = kSingle,
            std::int64_t row_blocks = 1) {
  return blocks_of_tile({.tiles = groups * ((n + 255) / 256) * row_blocks,
                         .tile_bytes = std::min<std::int64_t>(n, 256) * row_bytes,
                         .bytes = groups * n * row_bytes},
                        {.clusters = at_once, .single = at_once, .rate = 20});
}
/// Blocks of 128 outputs, two a multiprocessor.
int sharing_of_few(std::int64_t n, std::int64_t row_bytes, std::int64_t groups = 1, std::int64_t rate = 30) {
  return blocks_of_tile({.tiles = groups * ((n + 127) / 128),
                         .tile_bytes = std::min<std::int64_t>(n, 128) * row_bytes,
                         .bytes = groups * n * row_bytes},
                        {.clusters = kDouble, .single = kSingle, .rate = rate});
}

TEST(StreamSplit, LargeWeightsTakeAsManyBlocksAsRunInOneRound) {
  EXPECT_EQ(sharing(32768, 1024), 1);    // wq_b
  EXPECT_EQ(sharing(1024, 4096, 8), 3);  // wo_a: 32 tiles, of which four blocks each would take two rounds
  EXPECT_EQ(sharing(4096, 8192), 6);     // wo_b: 16 tiles
  EXPECT_EQ(sharing(1024, 4096, 8, kSingle, 2), 2);
  EXPECT_EQ(sharing(4096, 8192, 1, kSingle, 2), 3);
}

TEST(StreamSplit, TwoBlocksOfAMultiprocessorShareItsRate) {
  EXPECT_EQ(sharing_of_few(32768, 1024), 1);
  EXPECT_EQ(sharing_of_few(1024, 4096, 8), 2);  // 64 clusters of two are one block a multiprocessor
  EXPECT_EQ(sharing_of_few(4096, 8192), 6);     // 32 clusters of seven need nearly all room
  EXPECT_EQ(sharing_of_few(1024, 4096, 8, 20), 3);
}

TEST(StreamSplit, LargeWeightsOfV4ProTakeTwoBlocksAMultiprocessorWhereOneDoesNotReadAsFast) {
  EXPECT_EQ(sharing_of_few(7168, 16384), 4);         // wo_b: 56 clusters of 62
  EXPECT_EQ(sharing_of_few(1024, 4096, 16), 1);      // wo_a
  EXPECT_EQ(sharing_of_few(1024, 4096, 16, 20), 2);  // 128 clusters of 132
}

TEST(StreamSplit, WhereOneBlockNearlyFillsAMultiprocessorTwoAreNotMade) {
  const auto sharing_of_nvfp4 = [](std::int64_t rate, std::int64_t most) {  // wo_a: 64 tiles of 128 outputs
    return blocks_of_tile({.tiles = 64, .tile_bytes = 128 * 2304, .bytes = 64 * 128 * 2304},
                          {.clusters = kDouble, .single = kSingle, .rate = rate, .most = most});
  };
  EXPECT_EQ(sharing_of_nvfp4(20, 31), 3);
  EXPECT_EQ(sharing_of_nvfp4(11, 12), 2);
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

TEST(StreamSplit, FourStagesOfWeightsAreOnTheirWayToAMultiprocessor) {
  EXPECT_EQ(stages_under_way(264, 132, 5), 2);
  EXPECT_EQ(stages_under_way(192, 132, 5), 3);  // some multiprocessors have two blocks
  EXPECT_EQ(stages_under_way(128, 132, 5), 4);
  EXPECT_EQ(stages_under_way(8, 132, 5), 5);  // never more than the ring has
  EXPECT_EQ(stages_under_way(0, 132, 4), 4);
  EXPECT_EQ(stages_under_way(5000, 132, 4), 2);
  EXPECT_EQ(stages_under_way(5000, 132, 1), 1);
}

}  // namespace
}  // namespace smla::projection
