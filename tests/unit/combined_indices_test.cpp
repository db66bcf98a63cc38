#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "sparsemla/ops/index.h"

namespace smla {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

using Ints = std::vector<std::int32_t>;

constexpr std::int32_t kMax = std::numeric_limits<std::int32_t>::max();
constexpr std::int32_t kMin = std::numeric_limits<std::int32_t>::min();

std::int64_t count(const auto& v) { return static_cast<std::int64_t>(v.size()); }
auto view(const auto& v) { return view_of(v.data(), {count(v)}); }
auto view(auto& v) { return view_of(v.data(), {count(v)}); }
auto rows(const Ints& v, std::int64_t n) { return view_of(v.data(), {n, n == 0 ? 0 : count(v) / n}); }

struct Rows {
  Ints indices;
  Ints lens;
  std::int64_t width = 0;
  std::int32_t at(std::int64_t row, std::int64_t column) const {
    return indices[static_cast<std::size_t>(row * width + column)];
  }
};

Rows combine(CombineTopkWindow::Problem problem, std::int64_t width, const Ints& topk, const Ints& start,
             const Ints& seq, const Ints& gather) {
  problem.requests = count(seq);
  Rows out{Ints(static_cast<std::size_t>(problem.tokens * width), 99),
           Ints(static_cast<std::size_t>(problem.tokens), 99), width};
  Plan<CombineTopkWindow>(problem).run({.topk = rows(topk, problem.tokens),
                                        .query_start_loc = view(start),
                                        .seq_lens = view(seq),
                                        .gather_lens = view(gather),
                                        .indices = view_of(out.indices.data(), {problem.tokens, width}),
                                        .lens = view(out.lens)});
  return out;
}

TEST(CombineTopkWindow, GoldenG8) {
  // One request of 200 tokens, 5 of them new: 132 gathered window rows behind N = 50 entries, M = 182.
  Ints topk;
  for (int t = 0; t < 5; ++t) {
    for (int j = 0; j < 512; ++j) topk.push_back(j < (195 + t + 1) / 4 ? j : -1);
  }
  const Rows r = combine({.tokens = 5, .top_k = 512, .m = 182, .n = 50}, 640, topk, {0, 5}, {200}, {132});
  EXPECT_THAT(r.lens, ElementsAre(177, 177, 177, 177, 178));
  for (std::int64_t t = 0; t < 5; ++t) {
    const std::int64_t entries = t < 4 ? 49 : 50;
    for (std::int64_t j = 0; j < entries; ++j) ASSERT_EQ(r.at(t, j), j);
    for (std::int64_t i = 0; i < 128; ++i) ASSERT_EQ(r.at(t, entries + i), 50 + t + i);
    for (std::int64_t c = entries + 128; c < 640; ++c) ASSERT_EQ(r.at(t, c), -1);
  }
}

TEST(CombineTopkWindow, SecondRequestOfAChunkWithABase) {
  // Two requests of a chunk that begins at token 7; window 2, ratio 4, M = 10, N = 4.
  const Ints topk{0, -1, /**/ 1, 0};
  const Rows r =
      combine({.tokens = 2, .window = 2, .ratio = 4, .top_k = 2, .m = 10, .n = 4}, 5, topk, {7, 8, 9}, {4, 8}, {2, 2});
  EXPECT_THAT(r.lens, ElementsAre(3, 4));
  EXPECT_THAT(r.indices, ElementsAre(0, 4, 5, -1, -1, /**/ 11, 10, 14, 15, -1));
}

TEST(CombineTopkWindow, LeavesTheRestAloneWhenAsked) {
  const Rows r =
      combine({.tokens = 1, .window = 2, .ratio = 1, .m = 10, .n = 4, .clear_rest = false}, 4, {}, {0, 1}, {1}, {1});
  EXPECT_THAT(r.lens, ElementsAre(1));
  EXPECT_THAT(r.indices, ElementsAre(4, 99, 99, 99));
}

TEST(CombineTopkWindow, HostileValuesLeadNowhere) {
  const Rows r = combine({.tokens = 4, .window = 2, .ratio = 1, .top_k = 1, .m = kMax, .n = kMax}, 3,
                         {-5, kMax, kMin, 3}, {kMin, 2, kMax, 0}, {kMax, kMin, kMax}, {kMin, kMax, 0});
  for (const std::int32_t v : r.indices) EXPECT_GE(v, -1);
  const Rows none = combine({.tokens = 2, .window = 2, .ratio = 1, .top_k = 1}, 3, {0, 0}, {0, 2}, {-4}, {0});
  EXPECT_THAT(none.lens, Each(0));
  EXPECT_THAT(none.indices, Each(-1));
}

struct Mixed {
  MixedSparseIndices::Problem problem;
  Ints window = {};
  Ints compressed = {};
  Ints decode_lens = {};
  Ints topk = {};
  std::vector<std::uint8_t> valid = {};
  Ints start, seq, requests, window_table;
  Ints compressed_table = {};

  Rows run() {
    problem.requests = count(seq);
    problem.tokens = count(requests);
    const std::int64_t width = problem.window_width + problem.compressed_width;
    Rows out{Ints(static_cast<std::size_t>(problem.tokens * width), 99), Ints(requests.size(), 99), width};
    MixedSparseIndices::Args args;
    if (problem.decode_tokens > 0) args.decode_window = rows(window, problem.decode_tokens);
    if (!compressed.empty()) args.decode_compressed = rows(compressed, problem.decode_tokens);
    if (!decode_lens.empty()) args.decode_lens = view(decode_lens);
    if (!valid.empty()) args.decode_valid = ConstTensorView(valid.data(), DType::kBool, {count(valid)});
    if (!topk.empty()) args.prefill_topk = rows(topk, problem.tokens - problem.decode_tokens);
    args.query_start_loc = view(start);
    args.seq_lens = view(seq);
    args.token_to_req = view(requests);
    args.window_table = rows(window_table, problem.requests);
    if (!compressed_table.empty()) args.compressed_table = rows(compressed_table, problem.requests);
    args.indices = view_of(out.indices.data(), {problem.tokens, width});
    args.lens = view(out.lens);
    Plan<MixedSparseIndices>(problem).run(args);
    return out;
  }
};

TEST(MixedSparseIndices, ExampleOfSection73) {
  Mixed m{
      .problem = {.window = 4, .window_width = 8}, .start = {0, 1}, .seq = {4}, .requests = {0}, .window_table = {0}};
  const Rows r = m.run();
  EXPECT_THAT(r.indices, ElementsAre(0, 1, 2, 3, -1, -1, -1, -1));
  EXPECT_THAT(r.lens, ElementsAre(8));
}

Mixed decode_and_prefill() {
  // Two decode tokens (the second is padding), then a prefill of two tokens at positions 3 and 4; blocks of 2 in spans
  // of 5.
  return {.problem = {.decode_tokens = 2,
                      .window = 2,
                      .window_width = 3,
                      .ratio = 2,
                      .top_k = 2,
                      .compressed_width = 4,
                      .window_block = 2,
                      .compressed_block = 2,
                      .window_span = 5},
          .window = {3, -1, 6, /**/ 1, -1, -1},
          .compressed = {1, -1, 2, /**/ 0, 1, -1},
          .decode_lens = {},
          .topk = {1, 0, /**/ -1, 1},
          .valid = {1, 0},
          .start = {0, 1, 2, 4},
          .seq = {9, 9, 5},
          .requests = {0, 1, 2, 2},
          .window_table = {4, 5, 6, /**/ 4, 5, 6, /**/ 3, 9, 2},
          .compressed_table = {7, 8, /**/ -1, 1, /**/ 5, 6}};
}

TEST(MixedSparseIndices, LocalDecodeRowsAreLookedUp) {
  Mixed m = decode_and_prefill();
  const Rows r = m.run();
  EXPECT_THAT(r.lens, ElementsAre(3 + 2, 3, 3 + 2, 3 + 2));
  EXPECT_THAT(r.indices,
              ElementsAre(6, -1, 15, 15, -1, 16, -1,     // 3 -> 1*5+1, 6 -> 3*5; entries 1 and 2 in blocks 7 and 8
                          1, -1, -1, -1, -1, -1, -1,     // padding: its entries stand in a negative block
                          45, 46, -1, 11, 10, -1, -1,    // positions 2, 3 in block 9
                          46, 10, -1, -1, 11, -1, -1));  // positions 3, 4 in blocks 9 and 2
}

TEST(MixedSparseIndices, GlobalDecodeRowsAreCopied) {
  Mixed m = decode_and_prefill();
  m.problem.local = false;
  m.problem.compressed_span = 10;
  EXPECT_THAT(m.run().lens, ElementsAre(6, 6, 5, 5));  // without lens all columns count
  m.decode_lens = {1, kMax};
  const Rows r = m.run();
  EXPECT_THAT(r.lens, ElementsAre(4, 6, 5, 5));
  EXPECT_THAT(Ints(r.indices.begin() + 3, r.indices.begin() + 7), ElementsAre(1, -1, 10, -1));
  EXPECT_THAT(Ints(r.indices.begin() + 10, r.indices.begin() + 14), ElementsAre(0, 1, -1, -1));
}

TEST(MixedSparseIndices, HostileValuesLeadNowhere) {
  Mixed m = decode_and_prefill();
  m.window = {kMax, kMin, -7, kMax, 0, 1};
  m.compressed = {kMax, kMin, 4, 0, 0, 0};
  m.topk = {kMax, kMin, kMin, 4};
  m.requests = {7, -1, 3, 2};
  m.seq = {kMax, kMin, 5};
  m.window_table = {kMax, kMax, kMax, -1, -1, -1, kMax, kMin, -2};
  m.compressed_table = {kMax, kMin, 0, 0, kMax, kMax};
  const Rows r = m.run();
  for (const std::int32_t v : r.indices) EXPECT_GE(v, -1);
  EXPECT_THAT(r.lens, ElementsAre(3 + 2, 3, 0, 3 + 2));
  EXPECT_THAT(Ints(r.indices.begin() + 14, r.indices.begin() + 21), Each(-1));
}

/// Lengths are int32: a row of more columns could not say how many of them count. Nothing is read or written.
TEST(CombinedIndexErrors, RowsAreNoWiderThanTheirLengthsCount) {
  std::int32_t number = 0;
  const auto row = [&](std::int64_t columns) { return TensorView(&number, DType::kI32, {1, columns}); };
  const std::int64_t many = std::int64_t{1} << 31;
  const ConstTensorView one(&number, DType::kI32, {1});
  const ConstTensorView two(&number, DType::kI32, {2});
  EXPECT_THAT(
      [&] {
        Plan<CombineTopkWindow>({.requests = 1, .tokens = 1, .window = 2})
            .run({.query_start_loc = two,
                  .seq_lens = one,
                  .gather_lens = one,
                  .indices = row(many),
                  .lens = TensorView(&number, DType::kI32, {1})});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("columns of indices: got 2147483648, expected at most 2^31-1")));
}

TEST(CombinedIndexErrors, NameTheTensor) {
  EXPECT_THAT([] { Plan<CombineTopkWindow>({.requests = 1, .tokens = 2, .top_k = -1}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("combine_topk_window: problem.top_k: got -1")));
  EXPECT_THAT([] { Plan<MixedSparseIndices>({.requests = 1, .tokens = 2, .window = 128, .window_width = 64}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("problem.window_width: got 64, expected 128")));
  EXPECT_THAT([] { Plan<MixedSparseIndices>({.requests = 1, .tokens = 2, .window_block = 64, .window_span = 63}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("problem.window_span: got 63, expected 64")));
  EXPECT_THAT(
      [] {
        combine({.tokens = 1, .window = 2, .top_k = 2}, 3, {0, 0}, {0, 1}, {1}, {1});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("columns of indices: got 3, expected at least 4, top_k + window")));
  EXPECT_THAT(
      [] {
        combine({.tokens = 1, .window = 2, .top_k = 2}, 4, {0}, {0, 1}, {1}, {1});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("columns of topk: got 1, expected at least 2")));
}

}  // namespace
}  // namespace smla
