// How the tensor-core attention kernel cuts a call: tiles that fit, parts that cover the list.
#include "ops/attention/attention_split.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "ops/attention/hopper_split.h"

namespace smla {
namespace {

SparseAttention::Problem problem(std::int64_t tokens, std::int64_t heads, std::int64_t first, std::int64_t second = 0) {
  SparseAttention::Problem p{.tokens = tokens, .heads = heads, .scopes = 2};
  p.scope[0] = {.format = &fp8_ds_mla_rows(), .width = first};
  p.scope[1] = {.format = &fp8_ds_mla_rows(), .width = second};
  return p;
}

constexpr std::size_t kSmall = 99 * 1024;
constexpr std::size_t kSm80 = 163 * 1024;
constexpr std::size_t kSm90 = 227 * 1024;
constexpr device::Gpu kH200{.ordinal = 0, .capability = 90, .multiprocessors = 132, .shared_bytes = kSm90};

TEST(AttentionSplit, TilesFitTheMachinesTheyAreFor) {
  const KeyLayout sizes[] = {key_layout(fp8_ds_mla_rows()), key_layout(fp8_per_tensor_rows()), key_layout(bf16_rows())};
  const auto tile = [](std::int64_t heads, const KeyLayout& key, std::size_t bytes) -> const AttentionTile& {
    return kAttentionTiles[static_cast<std::size_t>(attention_tile(heads, key.bytes(), bytes))];
  };
  for (const std::size_t bytes : {kSmall, kSm80, kSm90}) {
    for (const KeyLayout& key : sizes) {
      for (std::int64_t heads = 1; heads <= 128; ++heads) {
        ASSERT_GE(attention_tile(heads, key.bytes(), bytes), 0);
        const AttentionTile& t = tile(heads, key, bytes);
        ASSERT_LE(static_cast<std::size_t>(t.shared_bytes(key.bytes())), bytes);
        const int most = bytes == kSmall && key.code_groups == 0 ? 32 : 64;
        EXPECT_EQ(heads <= 16 ? 16 : (heads <= 32 ? 32 : most), t.heads) << heads;
      }
    }
  }
  const KeyLayout& mla = sizes[0];
  EXPECT_EQ(16, tile(64, mla, kSmall).keys);
  EXPECT_EQ(32, tile(64, mla, kSm80).keys);
  EXPECT_EQ(64, tile(64, mla, kSm90).keys);
  EXPECT_EQ(64, tile(64, sizes[2], kSm90).keys);
  EXPECT_EQ(-1, attention_tile(1, mla.bytes(), 48 * 1024));
}

/// Tokens that share lists are packed where that is estimated to be shorter, and in any case with fixed parts. Whether
/// they are or not, the parts cover lists as long as the rows are wide.
TEST(AttentionSplit, SharedListsAreCoveredWhole) {
  const auto shared = [](std::int64_t lists, std::int64_t n, std::int64_t heads, std::int64_t first,
                         std::int64_t second) {
    SparseAttention::Problem p = problem(lists * n, heads, first, second);
    p.tokens_per_list = n;
    return p;
  };
  EXPECT_TRUE(split_attention(shared(64, 8, 8, 135, 1024), kH200, false).packs);
  EXPECT_TRUE(split_for_hopper(shared(64, 8, 8, 135, 1024), kH200, false).packs);
  EXPECT_FALSE(split_attention(shared(64, 2, 8, 129, 0), kH200, false).packs) << "two tiles each, not three";
  EXPECT_TRUE(split_attention(shared(64, 2, 8, 129, 0), kH200, true).packs) << "fixed";
  EXPECT_FALSE(split_attention(shared(2, 65, 1, 192, 0), kH200, true).packs) << "more than heads are divided for";
  EXPECT_FALSE(split_for_hopper(shared(2, 65, 1, 192, 0), kH200, false).packs);
  EXPECT_EQ(
      "tiles of 64 heads x 64 keys, the 64 heads of a list's tokens together, each list by one block for each "
      "tile of heads",
      describe(split_for_hopper(shared(200, 8, 8, 135, 1024), kH200, false)));
  int packed_calls = 0;
  int whole_alone = 0;
  const auto check = [&](const SparseAttention::Problem& p, const auto& split, std::int64_t keys) {
    const std::int64_t heads = split.packs ? p.heads * p.tokens_per_list : p.heads;
    EXPECT_EQ(heads, split.heads);
    std::int64_t entries = 0;
    for (const SparseAttention::ScopeShape& s : p.scope) entries += (s.width + keys - 1) / keys * keys;
    EXPECT_GE(split.parts * split.part_keys, entries);
    packed_calls += split.packs ? 1 : 0;
    whole_alone += !split.packs && split.parts == 1 ? 1 : 0;
  };
  for (const std::int64_t n : {2, 3, 8, 64}) {
    for (const std::int64_t heads : {1, 8, 33, 128}) {
      for (const std::int64_t lists : {1, 16, 300}) {
        for (const std::int64_t second : {0, 64, 65, 1024, 8192}) {
          for (const bool fixed : {false, true}) {
            SCOPED_TRACE(testing::Message() << n << " x " << heads << " heads, " << lists << " lists, " << second
                                            << (fixed ? ", fixed" : ""));
            const SparseAttention::Problem p = shared(lists, n, heads, 128 + n - 1, second);
            const AttentionSplit any = split_attention(p, kH200, fixed);
            check(p, any, kAttentionTiles[static_cast<std::size_t>(any.tile)].keys);
            check(p, split_for_hopper(p, kH200, fixed), HopperSplit::kTileKeys);
          }
        }
      }
    }
  }
  EXPECT_GT(packed_calls, 0);
  EXPECT_GT(whole_alone, 0);
}

/// With few tokens narrow tiles share the heads out over multiprocessors that would idle; with many each key is read
/// once.
TEST(AttentionSplit, FewTokensTakeNarrowTiles) {
  const auto heads = [](const SparseAttention::Problem& p, bool fixed) {
    return kAttentionTiles[static_cast<std::size_t>(split_attention(p, kH200, fixed).tile)].heads;
  };
  for (const std::int64_t all : {64, 128}) {
    EXPECT_EQ(16, heads(problem(1, all, 128, 512), false)) << all;
    EXPECT_EQ(64, heads(problem(1, all, 128, 512), true)) << all;
    EXPECT_EQ(64, heads(problem(1024, all, 128, 512), false)) << all;
  }
  EXPECT_EQ(1, split_attention(problem(1, 64, 128), kH200, false).parts);
}

TEST(AttentionSplit, IsToldInWords) {
  const SparseAttention::Problem one = problem(1, 64, 128, 512);
  EXPECT_EQ("tiles of 16 heads x 64 keys, lists in 10 parts of up to 64 keys and a merge, 1315840 bytes of workspace",
            describe(split_attention(one, kH200, false)));
  const SparseAttention::Problem many = problem(4096, 8, 128);
  EXPECT_EQ("tiles of 16 heads x 64 keys, each list by one block for each tile of heads",
            describe(split_attention(many, kH200, false)));
}

/// A part of a buffer begins where the one before ends, and each is aligned to what reads it.
TEST(AttentionSplit, KeysAreAsLargeAsTheirParts) {
  for (int groups = 0; groups <= AttentionTile::kGroups; ++groups) {
    const KeyLayout key{.code_groups = groups};
    EXPECT_GE(key.code_bytes(), groups * AttentionTile::kGroup);
    EXPECT_EQ(0, key.code_bytes() % 128);
    EXPECT_EQ(0, key.half_bytes() % 128);
    EXPECT_EQ(key.code_bytes() + key.half_bytes() + (groups > 0 ? 16 : 0) + 1, key.bytes());
  }
}

TEST(AttentionSplit, PartsCoverTheListAndFitTheWorkspace) {
  for (const std::size_t bytes : {kSmall, kSm80, kSm90}) {
    for (const std::int64_t tokens : {0, 1, 2, 16, 64, 128, 150, 512, 4096}) {
      for (const std::int64_t heads : {1, 16, 64, 128}) {
        for (const std::int64_t width : {0, 1, 64, 128, 640, 1152, 8320, 262144}) {
          for (const bool fixed : {false, true}) {
            const SparseAttention::Problem p =
                problem(tokens, heads, std::min<std::int64_t>(width, 128), std::max<std::int64_t>(width - 128, 0));
            const AttentionSplit split = split_attention(p, {.multiprocessors = 132, .shared_bytes = bytes}, fixed);
            SCOPED_TRACE(testing::Message()
                         << tokens << " tokens, " << heads << " heads, width " << width << ", fixed " << fixed);
            EXPECT_GE(split.parts, 1);
            const std::int64_t keys = kAttentionTiles[static_cast<std::size_t>(split.tile)].keys;
            const std::int64_t whole =
                (p.scope[0].width + keys - 1) / keys * keys + (p.scope[1].width + keys - 1) / keys * keys;
            EXPECT_GE(split.parts * split.part_keys, whole);
            EXPECT_TRUE(split.parts == 1 || (split.parts - 1) * split.part_keys < whole);
            EXPECT_EQ(0, split.part_keys % keys);
            EXPECT_TRUE(split.launch_tokens >= 1 || tokens == 0);
            EXPECT_TRUE(split.launch_tokens <= 1 || split.workspace_bytes() <= AttentionSplit::kScratchBytes);
            EXPECT_TRUE(fixed || split.parts <= AttentionSplit::kMaxParts);
          }
        }
      }
    }
  }
}

/// Where the device may cut lists by their lengths, it can do at least what lists that are alike get, within the
/// workspace; calls of one token, of many and of fixed parts are left as they are.
TEST(AttentionSplit, ListsMayBeCutByLength) {
  int cut = 0;
  int alike = 0;
  for (const std::int64_t tokens : {1, 2, 3, 64, 150, 512, 513, 4096}) {
    for (const std::int64_t heads : {1, 16, 64, 128}) {
      for (const std::int64_t width : {0, 1, 64, 640, 1152, 8320, 262'144, 1'000'000'000}) {
        SCOPED_TRACE(testing::Message() << tokens << " tokens, " << heads << " heads, width " << width);
        const SparseAttention::Problem p = problem(tokens, heads, 128, width);
        EXPECT_EQ(0U, split_attention(p, kH200, true).cut.extra);
        EXPECT_EQ(0U, split_for_hopper(p, kH200, true).cut.extra);
        const auto check = [&](const LengthCut& c, std::int64_t parts, std::int64_t launch, std::int64_t bytes) {
          ++(c.extra > 0 ? cut : alike);
          if (c.extra == 0) return;
          EXPECT_TRUE(tokens >= 1 && tokens <= LengthCut::kMostTokens);
          EXPECT_EQ(launch, tokens);
          EXPECT_GE(std::int64_t{c.extra}, tokens * (parts - 1));
          EXPECT_LE(bytes, AttentionSplit::kScratchBytes);
          EXPECT_GE(bytes, c.rows(tokens) * heads * 2056 + 8 * tokens);
          EXPECT_LT(tokens + c.extra, 1 << 16) << "parts are counted in 16 bits";
        };
        const AttentionSplit any = split_attention(p, kH200, false);
        check(any.cut, any.parts, any.launch_tokens, any.workspace_bytes());
        const HopperSplit hopper = split_for_hopper(p, kH200, false);
        check(hopper.cut, hopper.parts, hopper.launch_tokens, hopper.workspace_bytes());
        EXPECT_LE((tokens + hopper.cut.extra) * ((heads + 63) / 64),
                  hopper.cut.extra == 0 ? INT64_MAX : HopperSplit::kCutItems * kH200.multiprocessors);
      }
    }
  }
  EXPECT_GT(cut, 20);
  EXPECT_GT(alike, 20);
  // One request of 1M tokens among 63, 64 heads, C128A: as many parts more as multiprocessors.
  EXPECT_EQ(132U, split_for_hopper(problem(64, 64, 128, 8192), kH200, false).cut.extra);
  EXPECT_EQ(0U, split_attention(problem(64, 64, 128, 512), kH200, false).cut.extra) << "whole, and short";
  EXPECT_EQ(0U, split_attention(problem(1, 64, 128, 512), kH200, false).cut.extra) << "one, and short";
  EXPECT_LT(0U, split_attention(problem(1, 64, 128, 8192), kH200, false).cut.extra) << "one that may be long";
  const SparseAttention::Problem some = problem(16, 64, 128, 8192);
  EXPECT_EQ(
      "tiles of 64 heads x 64 keys, lists in parts by their lengths, up to 132 more than tokens, and a merge, "
      "19474568 bytes of workspace",
      describe(split_for_hopper(some, kH200, false)));
}

TEST(AttentionSplit, FewTokensAreSplitAndManyAreNot) {
  EXPECT_EQ(10, split_attention(problem(1, 64, 128, 512), kH200, false).parts);
  EXPECT_EQ(2, split_attention(problem(64, 32, 128, 512), kH200, false).parts);
  EXPECT_EQ(1, split_attention(problem(64, 64, 128, 512), kH200, false).parts);
  EXPECT_EQ(1, split_attention(problem(128, 64, 128, 512), kH200, false).parts);
  EXPECT_EQ(1, split_attention(problem(4096, 64, 128, 512), kH200, false).parts);
}

TEST(AttentionSplit, FixedPartsDependOnNothingElse) {
  for (const std::int64_t tokens : {1, 7, 4096}) {
    for (const std::int64_t width : {1, 512, 640, 8320})
      EXPECT_EQ(512, split_attention(problem(tokens, 64, width), kH200, true).part_keys);
  }
}

/// Parts cover each list, are whole tiles, and fit the workspace.
TEST(HopperSplit, CoversEveryList) {
  constexpr std::int64_t kKeys = HopperSplit::kTileKeys;
  for (const std::int64_t tokens : {1, 3, 64, 133, 5000}) {
    for (const std::int64_t heads : {1, 64, 65, 128}) {
      for (const std::int64_t width : {0, 1, 64, 192, 640, 8320, 262272}) {
        for (const bool fixed : {false, true}) {
          const SparseAttention::Problem p =
              problem(tokens, heads, std::min<std::int64_t>(width, 128), std::max<std::int64_t>(width - 128, 0));
          const HopperSplit split = split_for_hopper(p, kH200, fixed);
          SCOPED_TRACE(testing::Message()
                       << tokens << " tokens, " << heads << " heads, width " << width << ", fixed " << fixed);
          const std::int64_t whole =
              (p.scope[0].width + kKeys - 1) / kKeys * kKeys + (p.scope[1].width + kKeys - 1) / kKeys * kKeys;
          EXPECT_GE(split.parts, 1);
          EXPECT_GE(split.parts * split.part_keys, whole);
          EXPECT_TRUE(split.parts == 1 || (split.parts - 1) * split.part_keys < whole);
          EXPECT_EQ(0, split.part_keys % kKeys);
          EXPECT_GE(split.launch_tokens, 1);
          EXPECT_TRUE(split.launch_tokens == 1 || split.workspace_bytes() <= AttentionSplit::kScratchBytes);
          EXPECT_TRUE(fixed ? split.part_keys == AttentionSplit::kFixedPart : split.parts <= AttentionSplit::kMaxParts);
        }
      }
    }
  }
}

TEST(HopperSplit, FillsTheMultiprocessors) {
  EXPECT_EQ(1, split_for_hopper(problem(128, 64, 128, 512), kH200, false).parts);
  // Either way takes about 40 us: 64 blocks of ten tiles, or 128 of five and a merge.
  EXPECT_EQ(2, split_for_hopper(problem(64, 64, 128, 512), kH200, false).parts);
  EXPECT_LT(1, split_for_hopper(problem(32, 64, 128, 512), kH200, false).parts);
  EXPECT_EQ(1, split_for_hopper(problem(4096, 128, 128, 512), kH200, false).parts);
  EXPECT_LT(8, split_for_hopper(problem(1, 64, 128, 8192), kH200, false).parts);
}

TEST(HopperSplit, HalvesSumsWhereOutputsLoseNothingByIt) {
  SparseAttention::Problem p = problem(1, 64, 128, 512);
  for (const DType o : {DType::kBF16, DType::kF32}) {
    p.o = o;
    for (const bool fixed : {false, true}) {
      const bool half = o == DType::kBF16 && !fixed;
      EXPECT_EQ(half, split_for_hopper(p, kH200, fixed).half_sums);
      EXPECT_EQ(half, split_attention(p, kH200, fixed).half_sums);
    }
  }
}

/// The estimates agree with what an H200 took (docs/kernels/sparse_attention_sm90.md) on which kernel is the shortest
/// way, also near the borders.
TEST(HopperCost, ChoosesWhatWasFaster) {
  const auto fastest = [](const SparseAttention::Problem& p) -> std::string {
    const std::int64_t cuda = split_attention(p, kH200, false).cost;
    const std::int64_t stored = split_for_hopper(p, kH200, false).cost;
    const std::int64_t widened = split_for_hopper(p, kH200, false, true).cost;
    EXPECT_GT(std::min({cuda, stored, widened}), 0);
    const bool may_widen = p.tokens >= HopperCost::kWidenedTokens;
    if (may_widen && widened < std::min(cuda, stored)) return "widened";
    return stored < cuda ? "sm90" : "cuda";
  };
  EXPECT_EQ("cuda", fastest(problem(1, 64, 128, 512)));
  EXPECT_EQ("cuda", fastest(problem(4, 64, 128, 512)));
  EXPECT_EQ("cuda", fastest(problem(64, 64, 128)));
  EXPECT_EQ("cuda", fastest(problem(256, 8, 128, 8192)));
  EXPECT_EQ("cuda", fastest(problem(256, 16, 128, 512)));
  EXPECT_EQ("sm90", fastest(problem(128, 64, 128, 512)));
  EXPECT_EQ("sm90", fastest(problem(64, 64, 128, 1024)));
  EXPECT_EQ("sm90", fastest(problem(16, 128, 128, 1024)));
  EXPECT_EQ("sm90", fastest(problem(256, 128, 128, 8192)));
  EXPECT_EQ("sm90", fastest(problem(128, 64, 128, 512)));
  EXPECT_EQ("sm90", fastest(problem(512, 64, 128, 512)));
  EXPECT_EQ("widened", fastest(problem(2048, 64, 128, 512)));
  EXPECT_EQ("widened", fastest(problem(4096, 128, 128, 1920)));
  EXPECT_EQ("cuda", fastest(problem(2048, 8, 128, 512)));
  // Queries that are normed and rotated in the call cost an item more.
  SparseAttention::Problem prologue = problem(16, 64, 128, 512);
  EXPECT_EQ("sm90", fastest(prologue));
  prologue.query_prologue = SparseAttention::QueryPrologue{.rope_dim = 64};
  EXPECT_EQ("cuda", fastest(prologue));
  EXPECT_EQ(0, split_for_hopper(problem(64, 64, 128), kH200, true).cost);
}

/// The same of bf16 rows.
TEST(HopperCost, ChoosesWhatWasFasterWithBf16Rows) {
  const auto fastest = [](std::int64_t tokens, std::int64_t heads, std::int64_t second) -> std::string {
    SparseAttention::Problem p = problem(tokens, heads, 128, second);
    for (int s = 0; s < p.scopes; ++s) p.scope[static_cast<std::size_t>(s)].format = &bf16_rows();
    return split_for_hopper(p, kH200, false).cost < split_attention(p, kH200, false).cost ? "sm90" : "cuda";
  };
  for (const std::int64_t heads : {64, 128}) {
    SCOPED_TRACE(testing::Message() << heads << " heads");
    EXPECT_EQ("cuda", fastest(1, heads, 64));
    EXPECT_EQ("cuda", fastest(16, heads, 64));
    EXPECT_EQ("cuda", fastest(1, heads, 1024));
    EXPECT_EQ("sm90", fastest(64, heads, 1024));
    EXPECT_EQ("sm90", fastest(128, heads, 512));
    EXPECT_EQ("sm90", fastest(128, heads, 1024));
    EXPECT_EQ("sm90", fastest(16, heads, 8192));
    EXPECT_EQ("sm90", fastest(64, heads, 8192));
    EXPECT_EQ("sm90", fastest(128, heads, 8192));
  }
  EXPECT_EQ("sm90", fastest(64, 128, 512));
}

TEST(AttentionSplit, BlocksThatFetchCodeRunWhereMultiprocessorsAreIdle) {
  const AttentionSplit split = split_attention(problem(1, 64, 128), kH200, false);
  EXPECT_EQ(4, split.code_blocks(1));
  EXPECT_EQ(4, split.code_blocks(128));
  EXPECT_EQ(0, split.code_blocks(129)) << "three of 132 multiprocessors are idle";
  EXPECT_EQ(0,
            split_attention(problem(1, 64, 128), {.multiprocessors = 4, .shared_bytes = 232448}, false).code_blocks(1));
}

TEST(HopperCost, IsToldInMicroseconds) { EXPECT_EQ("9.9 us, 2.3 us with cuda", compare_costs(10'000, 0, "cuda")); }

}  // namespace
}  // namespace smla
