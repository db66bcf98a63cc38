#include "engine/sight_counts.h"

#include <gtest/gtest.h>

namespace smla {
namespace {

TEST(SightCounts, AKeyIsDueAfterSoManySightsAndThenBeginsAnew) {
  SightCounts<int> twice(10, 2);
  EXPECT_FALSE(twice.due(7));
  EXPECT_FALSE(twice.due(7));
  EXPECT_FALSE(twice.due(8)) << "each key has a count of its own";
  EXPECT_TRUE(twice.due(7));
  EXPECT_FALSE(twice.due(7));
  EXPECT_FALSE(twice.due(7));
  EXPECT_TRUE(twice.due(7));
  EXPECT_FALSE(twice.due(8));
  EXPECT_TRUE(twice.due(8));
}

TEST(SightCounts, ForgetsTheKeyThatCameLongestAgo) {
  SightCounts<int> few(2, 1);
  EXPECT_FALSE(few.due(1));
  EXPECT_FALSE(few.due(2));
  EXPECT_TRUE(few.due(1));
  EXPECT_FALSE(few.due(3)) << "2 goes";
  EXPECT_FALSE(few.due(2)) << "1 goes";
  EXPECT_FALSE(few.due(1)) << "3 goes";
  EXPECT_TRUE(few.due(2));
  for (int key = 0; key < 1000; ++key) (void)few.due(key);
  EXPECT_EQ(few.size(), 2);
}

}  // namespace
}  // namespace smla
