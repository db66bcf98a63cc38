// How the GPU's top-k cuts calls of few wide rows: parts that cover a row, launches and a workspace that stay within
// their bounds.
#include "ops/topk/topk_split.h"

#include <gtest/gtest.h>

namespace smla {
namespace {

constexpr std::int64_t kWidths[] = {0, 1, 8192, 16'384, 16'385, 20'000, 65'537, 262'144, 1'000'003, 2'147'483'647};
constexpr std::int64_t kRows[] = {0, 1, 2, 8, 63, 64, 65, 132, 256, 257, 70'000};
constexpr device::Gpu kH200{.ordinal = 0, .capability = 90, .multiprocessors = 132};
constexpr int kMultiprocessors[] = {1, 2, 7, 58, 132, 188, 1000};

TEST(TopkSplit, OnlyFewWideRowsAreCut) {
  EXPECT_EQ(1, split_topk({.rows = 1, .width = 32'768, .k = 512}, kH200).parts);
  EXPECT_EQ(1, split_topk({.rows = 2048, .width = 262'144, .k = 512}, kH200).parts);
  EXPECT_EQ(1, split_topk({.rows = 1, .width = 262'144, .k = 5000}, kH200).parts);
  EXPECT_EQ(64, split_topk({.rows = 1, .width = 262'144, .k = 512}, kH200).parts);
  EXPECT_EQ(9, split_topk({.rows = 8, .width = 32'769, .k = 512}, kH200).parts);
}

TEST(TopkSplit, KnowsWhetherAMultiprocessorHasTwoRows) {
  EXPECT_TRUE(split_topk({.rows = 132, .width = 4096, .k = 512}, kH200).few_rows);
  EXPECT_FALSE(split_topk({.rows = 133, .width = 4096, .k = 512}, kH200).few_rows);
}

/// Rows that a block's registers hold are never cut; wider ones always, as long as they are few.
TEST(TopkSplit, HeldRowsAreNotCut) {
  EXPECT_EQ(1, split_topk({.rows = 44, .width = 32'768, .k = 512}, kH200).parts);
  EXPECT_EQ(1, split_topk({.rows = 256, .width = 32'768, .k = 512}, kH200).parts);
  EXPECT_EQ(3, split_topk({.rows = 44, .width = 32'769, .k = 512}, kH200).parts);
  EXPECT_EQ(2, split_topk({.rows = 45, .width = 32'769, .k = 512}, kH200).parts);
}

TEST(TopkSplit, IsToldInWords) {
  EXPECT_EQ("a row by one block", describe(split_topk({.rows = 1, .width = 100, .k = 5}, kH200)));
  EXPECT_EQ("a row by up to 16 blocks", describe(split_topk({.rows = 8, .width = 65'536, .k = 512}, kH200)));
}

TEST(TopkSplit, PartsCoverARowAndFitTheWorkspace) {
  for (const int multiprocessors : kMultiprocessors) {
    const device::Gpu gpu{.ordinal = 0, .capability = 80, .multiprocessors = multiprocessors};
    for (const std::int64_t rows : kRows) {
      for (const std::int64_t width : kWidths) {
        const TopK::Problem p{.rows = rows, .width = width, .k = 512};
        const TopkSplit split = split_topk(p, gpu);
        SCOPED_TRACE(testing::Message() << rows << " rows of " << width << " on " << multiprocessors);
        if (split.parts == 1) continue;
        EXPECT_LE(rows, TopkSplit::kMaxRows);
        EXPECT_LE(split.parts, TopkSplit::kMaxParts);
        EXPECT_LE(rows * (split.parts * TopkSplit::kPartBytes + TopkSplit::kRowBytes), topk_workspace_bytes(p, gpu));
        for (const std::int64_t n : kWidths) {
          if (n <= TopkSplit::kShortRow || n > width) continue;
          const std::int64_t columns =
              topk_part_columns(static_cast<std::uint32_t>(n), static_cast<std::uint32_t>(split.parts));
          EXPECT_GE(columns * split.parts, n);
          EXPECT_EQ(0, columns % TopkSplit::kStep);
        }
      }
    }
  }
}

TEST(TopkSplit, AWorkspaceIsBoundedAndEnoughForSmallerCalls) {
  for (const int multiprocessors : kMultiprocessors) {
    const device::Gpu gpu{.ordinal = 0, .capability = 80, .multiprocessors = multiprocessors};
    std::int64_t fewer = 0;
    for (const std::int64_t rows : kRows) {
      const std::int64_t bytes = topk_workspace_bytes({.rows = rows, .width = 262'144, .k = 512}, gpu);
      EXPECT_LE(fewer, bytes);
      EXPECT_LE(bytes, 51'000'000);
      EXPECT_GE(bytes, topk_workspace_bytes({.rows = rows, .width = 20'000, .k = 512}, gpu));
      fewer = bytes;
    }
  }
}

}  // namespace
}  // namespace smla
