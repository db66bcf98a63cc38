// How the GPU's index scores cut a call: parts within their bounds, and no wave of blocks for a few of them.
#include "ops/indexer/logits_split.h"

#include <gtest/gtest.h>

namespace smla {
namespace {

constexpr std::int64_t kPlaces = 396;  // three blocks on each of 132 multiprocessors

TEST(LogitsSplit, PartsAreAtLeastOneAndAtMostTheRuns) {
  for (const std::int64_t groups : {0, 1, 3, 128, 395, 396, 397, 5000}) {
    for (const std::int64_t rows : {1, 4, 8}) {
      for (const std::int64_t runs : {0, 1, 2, 16, 64, 2048, 16'777'216}) {
        for (const bool uneven : {false, true}) {
          const std::int64_t parts =
              logits_parts({.groups = groups, .rows = rows, .runs = runs, .resident = kPlaces, .uneven = uneven});
          EXPECT_GE(parts, 1);
          EXPECT_LE(parts, std::max<std::int64_t>(runs, 1));
        }
      }
    }
  }
}

TEST(LogitsSplit, ABatchOfDecodesFillsItsWaves) {
  EXPECT_EQ(3, logits_parts({.groups = 128, .rows = 1, .runs = 64, .resident = kPlaces}));
  EXPECT_EQ(342, logits_parts({.groups = 1, .rows = 1, .runs = 2048, .resident = kPlaces}));
  EXPECT_EQ(16, logits_parts({.groups = 1, .rows = 1, .runs = 16, .resident = kPlaces}));
  EXPECT_EQ(1, logits_parts({.groups = 396, .rows = 1, .runs = 64, .resident = kPlaces}));
}

TEST(LogitsSplit, HoppersBlocksFillTheirPlaces) {
  constexpr std::int64_t kHopperPlaces = 264;  // two blocks on each of 132 multiprocessors
  const auto parts = [](std::int64_t groups, std::int64_t rows, std::int64_t runs) {
    return logits_parts(
        {.groups = groups, .rows = rows, .runs = runs, .resident = kHopperPlaces, .costs = kHopperLogitsCosts});
  };
  EXPECT_EQ(16, parts(1, 1, 16)) << "one run a block where there are places";
  EXPECT_EQ(2, parts(128, 1, 64)) << "one wave";
  EXPECT_EQ(8, parts(32, 1, 256));
  EXPECT_EQ(2, parts(128, 8, 64));
}

TEST(LogitsSplit, UnevenRowsHaveMoreBlocksThanPlaces) {
  EXPECT_EQ(2, logits_parts({.groups = 512, .rows = 4, .runs = 64, .resident = kPlaces, .uneven = true}));
  EXPECT_EQ(3, logits_parts({.groups = 256, .rows = 8, .runs = 64, .resident = 264, .uneven = true}));
}

TEST(LogitsSplit, UnevenRowsDoNotBeginAWaveForAFewBlocks) {
  // Nine parts are 576 blocks, eight 512: two waves of 264.
  EXPECT_EQ(8, logits_parts({.groups = 64, .rows = 8, .runs = 256, .resident = 264, .uneven = true}));
  EXPECT_EQ(1, logits_parts({.groups = 5000, .rows = 8, .runs = 256, .resident = 264, .uneven = true}));
}

}  // namespace
}  // namespace smla
