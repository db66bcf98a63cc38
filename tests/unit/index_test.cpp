#include "sparsemla/ops/index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace smla {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

using Ints = std::vector<std::int32_t>;
using Longs = std::vector<std::int64_t>;

constexpr std::int32_t kMax = std::numeric_limits<std::int32_t>::max();
constexpr std::int32_t kMin = std::numeric_limits<std::int32_t>::min();

std::int64_t count(const auto& v) { return static_cast<std::int64_t>(v.size()); }
auto view(const auto& v) { return view_of(v.data(), {count(v)}); }
auto view(auto& v) { return view_of(v.data(), {count(v)}); }
auto table(const Ints& v, std::int64_t requests) {
  return view_of(v.data(), {requests, requests == 0 ? 0 : count(v) / requests});
}

TEST(TokenToReq, PaddingIsRequestZero) {
  const Ints start{0, 3, 3, 5};
  Ints out(8, 99);
  Plan<TokenToReq>({.requests = 3, .tokens = 8}).run({.query_start_loc = view(start), .token_to_req = view(out)});
  EXPECT_THAT(out, ElementsAre(0, 0, 0, 2, 2, 0, 0, 0));
}

TEST(TokenToReq, HostileStartsStayInside) {
  const Ints start{-4, 2, kMax, kMin, kMax};
  Ints out(4, 99);
  Plan<TokenToReq>({.requests = 4, .tokens = 4}).run({.query_start_loc = view(start), .token_to_req = view(out)});
  EXPECT_THAT(out, ElementsAre(3, 3, 3, 3));
  Ints none;
  const Ints zero{0};
  Plan<TokenToReq>({.requests = 0, .tokens = 0})
      .run({.query_start_loc = view(zero), .token_to_req = view_of(none.data(), {0})});
}

Longs slots_of(const Ints& start, const Longs& positions, const Ints& requests, const Ints& blocks,
               std::int64_t block_size) {
  Longs out(positions.size(), 99);
  const std::int64_t n = count(start) - 1;
  Plan<SlotMapping>({.requests = n, .tokens = count(positions), .block_size = block_size})
      .run({.query_start_loc = view(start),
            .positions = view(positions),
            .token_to_req = view(requests),
            .block_table = table(blocks, n),
            .slots = view(out)});
  return out;
}

TEST(SlotMapping, FollowsTheTableAndMarksPadding) {
  EXPECT_THAT(slots_of({0, 2, 4}, {63, 64, 5, 130, 0, 1}, {0, 0, 1, 1, 0, 0}, {7, 3, 2, 9, 4, 8}, 64),
              ElementsAre(7 * 64 + 63, 3 * 64, 9 * 64 + 5, 8 * 64 + 2, -1, -1));
}

TEST(SlotMapping, HostileValuesLeadNowhere) {
  const std::int64_t far = std::numeric_limits<std::int64_t>::max();
  EXPECT_THAT(slots_of({0, 8}, {-1, 128, far, 0, 0, 0, 64, 63}, {0, 0, 0, -1, 1, kMax, 0, 0}, {kMax, -2}, 64),
              ElementsAre(-1, -1, -1, -1, -1, -1, -1, std::int64_t{kMax} * 64 + 63));
  EXPECT_THAT(slots_of({0, 2}, {0, 3}, {0, 0}, {}, 1), Each(-1));  // a table without columns
}

TEST(CompressedSlotMapping, ExampleOfSection55) {
  // G10: r = 4, 240 computed, 40 new, blocks 5 and 7 of 64 entries; the output is longer than the step.
  const Ints start{0, 40};
  const Ints seq{280};
  const Ints blocks{5, 7};
  Longs out(50, 99);
  Plan<CompressedSlotMapping>({.requests = 1, .tokens = 50, .ratio = 4, .storage_block = 64})
      .run(
          {.query_start_loc = view(start), .seq_lens = view(seq), .block_table = table(blocks, 1), .slots = view(out)});
  Longs expected(50, -1);
  for (std::int64_t i = 0; i < 10; ++i)
    expected[static_cast<std::size_t>(3 + 4 * i)] = i < 4 ? 5 * 64 + 60 + i : 7 * 64 + i - 4;
  EXPECT_EQ(out, expected);
}

TEST(CompressedSlotMapping, NegativeEntriesAreBlockZeroAndForeignColumnsNothing) {
  const Ints start{0, 4, 6};
  const Ints seq{4, 1};  // the second request is shorter than its query: positions -1 and 0
  const Ints blocks{-7, -7};
  Longs out(6, 99);
  Plan<CompressedSlotMapping>({.requests = 2, .tokens = 6, .ratio = 1, .storage_block = 3})
      .run(
          {.query_start_loc = view(start), .seq_lens = view(seq), .block_table = table(blocks, 2), .slots = view(out)});
  EXPECT_THAT(out, ElementsAre(0, 1, 2, -1, -1, 0));
}

TEST(CompressedSlotMapping, HostileStartsStayInside) {
  const Ints start{kMin, kMax, -3, 0};
  const Ints seq{kMax, kMin, kMax};
  const Ints blocks{1, 1, 1};
  Longs out(5, 99);
  Plan<CompressedSlotMapping>({.requests = 3, .tokens = 5, .ratio = 1, .storage_block = 2})
      .run(
          {.query_start_loc = view(start), .seq_lens = view(seq), .block_table = table(blocks, 3), .slots = view(out)});
  EXPECT_THAT(out,
              ElementsAre(2, 3, -1, -1, -1));  // the first request covers all, from position 0 on; the others nothing
}

struct Window {
  Ints indices;
  Ints lens;
};
Window windows(const Ints& start, const Ints& seq, const Ints& requests, const Longs& slots, const Ints& blocks,
               std::int64_t window, std::int64_t block_size, std::int64_t width) {
  const std::int64_t tokens = count(slots);
  Window out{Ints(static_cast<std::size_t>(tokens * width), 99), Ints(slots.size(), 99)};
  Plan<WindowIndices>({.requests = count(seq), .tokens = tokens, .window = window, .block_size = block_size})
      .run({.query_start_loc = view(start),
            .seq_lens = view(seq),
            .token_to_req = view(requests),
            .slot_mapping = view(slots),
            .block_table = table(blocks, count(seq)),
            .indices = view_of(out.indices.data(), {tokens, width}),
            .lens = view(out.lens)});
  return out;
}

TEST(WindowIndices, GoldenG7) {
  const std::int64_t width = 192;
  const Window w = windows({0, 2}, {131}, {0, 0}, {1, 1}, {7, 3, 9}, 128, 64, width);
  EXPECT_THAT(w.lens, ElementsAre(128, 128));
  const auto at = [&](std::int64_t row, std::int64_t column) {
    return w.indices[static_cast<std::size_t>(row * width + column)];
  };
  EXPECT_EQ(at(0, 0), 450);
  EXPECT_EQ(at(0, 1), 451);
  EXPECT_EQ(at(0, 62), 192);
  EXPECT_EQ(at(0, 126), 576);
  EXPECT_EQ(at(0, 127), 577);
  EXPECT_EQ(at(1, 0), 451);
  EXPECT_EQ(at(1, 61), 192);
  EXPECT_EQ(at(1, 125), 576);
  EXPECT_EQ(at(1, 127), 578);
  for (std::int64_t column = 128; column < width; ++column) EXPECT_EQ(at(0, column), -1);
}

TEST(WindowIndices, InvalidAndHostileTokensHaveEmptyRows) {
  // Padding (slot -1), a foreign request, a negative sequence; then a row whose table misses a block and whose blocks
  // are negative or too large.
  const Window w =
      windows({0, 3, 4, 5}, {9, -2, 3}, {0, 7, -1, 1, 2}, {-1, 5, 5, 5, 5}, {0, 0, 0, -1, kMax, 0}, 4, 2, 4);
  EXPECT_THAT(w.lens, ElementsAre(0, 0, 0, 0, 3));
  EXPECT_THAT(Ints(w.indices.begin(), w.indices.begin() + 16), Each(-1));
  EXPECT_THAT(Ints(w.indices.begin() + 16, w.indices.end()), ElementsAre(kMax == 0 ? 0 : -1, -1, 0, -1));
}

TEST(WindowIndices, BlockOfOne) {
  const Window w = windows({0, 3}, {3}, {0, 0, 0}, {0, 0, 0}, {5, -1, 6}, 2, 1, 2);
  EXPECT_THAT(w.lens, ElementsAre(1, 2, 2));
  EXPECT_THAT(w.indices, ElementsAre(5, -1, 5, -1, -1, 6));
}

struct Rows {
  Ints indices;
  Ints lens;
};
Rows dense(const Longs& positions, const Ints& requests, const Longs& slots, const Ints& blocks, std::int64_t n,
           std::int64_t ratio, std::int64_t storage_block, std::int64_t width, bool global) {
  const std::int64_t tokens = count(positions);
  Rows out{Ints(static_cast<std::size_t>(tokens * width), 99), Ints(positions.size(), 99)};
  Plan<DenseCompressedIndices>({.requests = n,
                                .tokens = tokens,
                                .ratio = ratio,
                                .storage_block = storage_block,
                                .width = width,
                                .global = global})
      .run({.positions = view(positions),
            .token_to_req = view(requests),
            .slot_mapping = view(slots),
            .block_table = table(blocks, n),
            .indices = view_of(out.indices.data(), {tokens, width}),
            .lens = view(out.lens)});
  return out;
}

TEST(DenseCompressedIndices, GoldenG9) {
  const Rows r = dense({383}, {0}, {0}, {4, 11}, 1, 128, 2, 8, true);
  EXPECT_THAT(r.lens, ElementsAre(3));
  EXPECT_THAT(r.indices, ElementsAre(8, 9, 22, -1, -1, -1, -1, -1));
}

TEST(DenseCompressedIndices, GoldenG6Visibility) {
  const Rows r = dense({126, 127, 255, -1, std::numeric_limits<std::int64_t>::max()}, {0, 0, 0, 0, 0}, {0, 0, 0, 0, 0},
                       {1}, 1, 128, 2, 2, false);
  EXPECT_THAT(r.lens, ElementsAre(0, 1, 2, 0, 2));
  EXPECT_THAT(r.indices, ElementsAre(-1, -1, 0, -1, 0, 1, -1, -1, 0, 1));
  EXPECT_THAT(dense({2, 3, 6, 7}, {0, 0, 0, 0}, {0, 0, 0, 0}, {1}, 1, 4, 64, 2, false).lens, ElementsAre(0, 1, 1, 2));
}

TEST(DenseCompressedIndices, InvalidTokensAndForeignBlocksAreMinusOne) {
  const Rows r = dense({9, 9, 9, 9}, {0, 1, -1, 2}, {-1, 0, 0, 0}, {0, 1, -3, kMax}, 2, 1, 2, 6, true);
  EXPECT_THAT(r.lens, ElementsAre(0, 6, 6, 6));
  EXPECT_THAT(r.indices, Each(-1));  // padding; negative, too large and missing blocks; requests outside the table
}

TEST(ShortContextTopk, GoldenG6Visibility) {
  const Longs positions{2, 3, 6, 7, -5, 1000};
  Ints out(18, 99);
  Plan<ShortContextTopk>({.tokens = 6, .ratio = 4, .k = 3})
      .run({.positions = view(positions), .indices = view_of(out.data(), {6, 3})});
  EXPECT_THAT(out, ElementsAre(-1, -1, -1, 0, -1, -1, 0, -1, -1, 0, 1, -1, -1, -1, -1, 0, 1, 2));
}

TEST(ShortContextTopk, TheLargestPositionDoesNotOverflow) {
  const Longs positions{std::numeric_limits<std::int64_t>::max()};
  for (const std::int64_t ratio : {1, 2, 4}) {
    Ints out(3, 99);
    Plan<ShortContextTopk>({.tokens = 1, .ratio = ratio, .k = 3})
        .run({.positions = view(positions), .indices = view_of(out.data(), {1, 3})});
    EXPECT_THAT(out, ElementsAre(0, 1, 2)) << ratio;
  }
}

Rows global(const Ints& topk, std::int64_t k, const Ints& requests, const Ints& blocks, std::int64_t n,
            std::vector<std::uint8_t> valid, bool compact) {
  const std::int64_t tokens = count(requests);
  Rows out{Ints(topk.size(), 99), Ints(requests.size(), 99)};
  Plan<GlobalTopk>({.requests = n, .tokens = tokens, .k = k, .storage_block = 2, .compact = compact})
      .run({.topk = view_of(topk.data(), {tokens, k}),
            .token_to_req = view(requests),
            .block_table = table(blocks, n),
            .valid = ConstTensorView(valid.data(), DType::kBool, {tokens}),
            .indices = view_of(out.indices.data(), {tokens, k}),
            .lens = view(out.lens)});
  return out;
}

TEST(GlobalTopk, MapsInPlaceOrCompacted) {
  const Ints topk{3, -1, 0, 4, /**/ 1, 2, -1, -1, /**/ 0, kMax, kMin, 1};
  const Ints blocks{5, 9, /**/ -1, 2};
  const Rows plain = global(topk, 4, {0, 1, 3}, blocks, 2, {1, 0, 1}, false);
  EXPECT_THAT(plain.indices, ElementsAre(19, -1, 10, -1, /**/ -1, 4, -1, -1, /**/ -1, -1, -1, -1));
  EXPECT_THAT(plain.lens, ElementsAre(2, 0, 0));
  const Rows compact = global(topk, 4, {0, 1, -1}, blocks, 2, {1, 1, 1}, true);
  EXPECT_THAT(compact.indices, ElementsAre(19, 10, -1, -1, /**/ 4, -1, -1, -1, /**/ -1, -1, -1, -1));
  EXPECT_THAT(compact.lens, ElementsAre(2, 1, 0));
}

TEST(IndexErrors, NameTheTensor) {
  Ints ints(64);
  Longs longs(64);
  const auto text = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const InvalidArgument& e) {
      return e.what();
    }
    return "no error";
  };
  EXPECT_THAT(text([&] {
                Plan<WindowIndices>({.requests = 1, .tokens = 2, .window = 8, .block_size = 4})
                    .run({.query_start_loc = view_of(ints.data(), {2}),
                          .seq_lens = view_of(ints.data(), {1}),
                          .token_to_req = view_of(ints.data(), {2}),
                          .slot_mapping = view_of(longs.data(), {2}),
                          .block_table = view_of(ints.data(), {1, 4}),
                          .indices = view_of(ints.data(), {2, 7}),
                          .lens = view_of(ints.data(), {2})});
              }),
              HasSubstr("window_indices: columns of indices: got 7, expected at least the window of 8"));
  EXPECT_THAT(text([&] {
                SlotMapping::Args args;
                args.query_start_loc = view_of(ints.data(), {1});
                Plan<SlotMapping>({.requests = 1, .tokens = 2, .block_size = 4}).run(args);
              }),
              HasSubstr("slot_mapping: query_start_loc: got [1] I32, expected [2] I32"));
  EXPECT_THAT(text([] { Plan<SlotMapping>({.requests = 1, .tokens = 2, .block_size = 0}); }),
              HasSubstr("problem.block_size: got 0"));
  EXPECT_THAT(text([] { Plan<CompressedSlotMapping>({.requests = 1, .tokens = 2, .ratio = -4}); }),
              HasSubstr("problem.ratio: got -4"));
  EXPECT_THAT(text([] { Plan<GlobalTopk>({.requests = 1, .tokens = 2, .k = -1}); }), HasSubstr("problem.k: got -1"));
}

}  // namespace
}  // namespace smla
