// How the tensor-core attention kernel cuts a call: tiles that fit, parts that cover the list.
#include "ops/attention/attention_split.h"

#include <gtest/gtest.h>

namespace smla {
namespace {

SparseAttention::Problem problem(std::int64_t tokens, std::int64_t heads, std::int64_t first, std::int64_t second = 0) {
  SparseAttention::Problem p{.tokens = tokens, .heads = heads, .scopes = 2};
  p.scope[0].width = first;
  p.scope[1].width = second;
  return p;
}

constexpr std::size_t kSmall = 99 * 1024;
constexpr std::size_t kSm80 = 163 * 1024;
constexpr std::size_t kSm90 = 227 * 1024;

TEST(AttentionSplit, TilesFitTheMachinesTheyAreFor) {
  const auto keys = [](std::int64_t heads, std::size_t bytes) {
    return kAttentionTiles[static_cast<std::size_t>(attention_tile(heads, bytes))].keys;
  };
  const auto most = [](std::int64_t heads, std::size_t bytes) {
    return kAttentionTiles[static_cast<std::size_t>(attention_tile(heads, bytes))].heads;
  };
  for (const std::size_t bytes : {kSmall, kSm80, kSm90}) {
    for (std::int64_t heads = 1; heads <= 128; ++heads) {
      ASSERT_GE(attention_tile(heads, bytes), 0);
      ASSERT_LE(static_cast<std::size_t>(kAttentionTiles[static_cast<std::size_t>(attention_tile(heads, bytes))].shared_bytes()), bytes);
      EXPECT_EQ(heads <= 16 ? 16 : (heads <= 32 ? 32 : 64), most(heads, bytes)) << heads;
    }
  }
  EXPECT_EQ(16, keys(64, kSmall));
  EXPECT_EQ(32, keys(64, kSm80));
  EXPECT_EQ(64, keys(64, kSm90));
  EXPECT_EQ(32, most(64, 90000));
  EXPECT_EQ(-1, attention_tile(1, 48 * 1024));
}

TEST(AttentionSplit, PartsCoverTheListAndFitTheWorkspace) {
  for (const std::size_t bytes : {kSmall, kSm80, kSm90}) {
    for (const std::int64_t tokens : {0, 1, 2, 16, 64, 128, 150, 512, 4096}) {
      for (const std::int64_t heads : {1, 16, 64, 128}) {
        for (const std::int64_t width : {0, 1, 64, 128, 640, 1152, 8320, 262144}) {
          for (const bool fixed : {false, true}) {
            const SparseAttention::Problem p = problem(tokens, heads, std::min<std::int64_t>(width, 128), std::max<std::int64_t>(width - 128, 0));
            const AttentionSplit split = split_attention(p, 132, bytes, fixed);
            SCOPED_TRACE(testing::Message() << tokens << " tokens, " << heads << " heads, width " << width << ", fixed " << fixed);
            EXPECT_GE(split.parts, 1);
            EXPECT_GE(split.parts * split.part_keys, width);
            EXPECT_TRUE(split.parts == 1 || (split.parts - 1) * split.part_keys < width);
            EXPECT_EQ(0, split.part_keys % kAttentionTiles[static_cast<std::size_t>(split.tile)].keys);
            EXPECT_TRUE(split.launch_tokens >= 1 || tokens == 0);
            EXPECT_TRUE(split.launch_tokens <= 1 || split.workspace_bytes(heads) <= AttentionSplit::kLentBytes);
            EXPECT_TRUE(fixed || split.parts <= AttentionSplit::kMostParts);
          }
        }
      }
    }
  }
}

TEST(AttentionSplit, FewTokensAreSplitAndManyAreNot) {
  EXPECT_EQ(10, split_attention(problem(1, 64, 128, 512), 132, kSm90, false).parts);
  EXPECT_EQ(2, split_attention(problem(64, 64, 128, 512), 132, kSm90, false).parts);
  EXPECT_EQ(1, split_attention(problem(128, 64, 128, 512), 132, kSm90, false).parts);
  EXPECT_EQ(1, split_attention(problem(4096, 64, 128, 512), 132, kSm90, false).parts);
}

TEST(AttentionSplit, FixedPartsDependOnNothingElse) {
  for (const std::int64_t tokens : {1, 7, 4096}) {
    for (const std::int64_t width : {1, 512, 640, 8320}) EXPECT_EQ(512, split_attention(problem(tokens, 64, width), 132, kSm90, true).part_keys);
  }
}

}  // namespace
}  // namespace smla
