#include "sparsemla/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "sparsemla/error.h"

namespace smla {
namespace {

// Spec 6.8's example.
TEST(PrefillChunks, ExampleOfTheSpec) {
  const std::vector<std::int32_t> seq{80, 96, 112, 128, 144};
  const std::vector<std::int32_t> query(5, 4);
  const ChunkLimits limits{.requests = 4, .window = 64, .max_model_len = 1024, .max_batched_tokens = 128};
  EXPECT_EQ(plan_prefill_chunks(seq, query, 4, limits),
            (std::vector<PrefillChunk>{{.begin = 0, .end = 5, .n = 36, .m = 103}}));
}

TEST(PrefillChunks, EveryRequestOnceAndWithinTheArea) {
  const ChunkLimits limits{.requests = 2, .window = 128, .max_model_len = 512, .max_batched_tokens = 256};
  const std::vector<std::int32_t> seq{10, 500, 512, 1, 0, 300, 512, 512};
  const std::vector<std::int32_t> query{10, 100, 256, 1, 0, 300, 3, 200};
  for (const std::int64_t ratio : {1, 4, 128}) {
    const std::int64_t area =
        limits.requests * ((ratio > 1 ? limits.max_model_len / ratio : 0) + limits.window + limits.max_batched_tokens);
    std::int64_t next = 0;
    for (const PrefillChunk& c : plan_prefill_chunks(seq, query, ratio, limits)) {
      EXPECT_EQ(c.begin, next);
      EXPECT_TRUE(c.end - c.begin == 1 || (c.end - c.begin) * c.m <= area);
      for (std::int64_t i = c.begin; i < c.end; ++i) {
        const auto r = static_cast<std::size_t>(i);
        EXPECT_LE(ratio > 1 ? seq[r] / ratio : 0, c.n);
        EXPECT_LE(gather_length(seq[r], query[r]), c.m - c.n);
      }
      next = c.end;
    }
    EXPECT_EQ(next, 8);
  }
  EXPECT_TRUE(plan_prefill_chunks({}, {}, 4, limits).empty());
  const std::vector<std::int32_t> longer(8, 600);
  EXPECT_THROW(plan_prefill_chunks(seq, longer, 4, limits), InvalidArgument);
  EXPECT_THROW(plan_prefill_chunks(seq, {}, 4, limits), InvalidArgument);
}

TEST(Plan, LocalLengthsAddUpToTheWhole) {
  for (std::int64_t ranks = 1; ranks <= 8; ++ranks) {
    for (const std::int64_t interleave : {1, 2, 64}) {
      for (const std::int64_t length : {0, 1, 2, 7, 63, 64, 65, 128, 1000}) {
        std::vector<std::int64_t> owned(static_cast<std::size_t>(ranks), 0);
        for (std::int64_t i = 0; i < length; ++i) ++owned[static_cast<std::size_t>(i / interleave % ranks)];
        for (std::int64_t rank = 0; rank < ranks; ++rank) {
          EXPECT_EQ(local_length(length, rank, ranks, interleave), owned[static_cast<std::size_t>(rank)])
              << length << " " << rank << "/" << ranks;
        }
      }
    }
  }
  EXPECT_THROW((void)local_length(5, 2, 2, 1), InvalidArgument);
}

TEST(Plan, WidthsAndBudgets) {
  EXPECT_EQ(dense_width(1048576), 8192);
  EXPECT_EQ(dense_width(128 * 128 + 1), 256);
  EXPECT_EQ(draft_window_width(128, 5), 192);
  EXPECT_EQ(draft_window_width(512, 5), 9 * 64);
  EXPECT_EQ(draft_window_width(1024, 0), 1024);
  EXPECT_EQ(score_rows(1024, 1 << 20), 256);
  EXPECT_EQ(score_rows(1 << 30, 1 << 20), 1);
  EXPECT_EQ(score_rows(0, 4096), 1024);
}

TEST(Plan, LogitChunksByHand) {
  const auto plan = [](std::vector<std::int32_t> seq, std::vector<std::int32_t> query, const LogitLimits& limits) {
    return plan_logit_chunks(seq, query, 4, limits);
  };
  // 20 + 25 entries fit 50 rows, 30 more do not.
  EXPECT_EQ(plan({80, 100, 120}, {3, 4, 5}, {.key_rows = 50}),
            (std::vector<LogitChunk>{{.begin = 0, .end = 2, .query_begin = 0, .query_end = 7, .entries = 45},
                                     {.begin = 2, .end = 3, .query_begin = 7, .query_end = 12, .entries = 30}}));
  // 100 entries, room for 250 scores: two queries at a time, gathered once.
  EXPECT_EQ(plan({8, 400, 8}, {1, 5, 1}, {.key_rows = 1000, .logit_bytes = 1000}),
            (std::vector<LogitChunk>{
                {.begin = 0, .end = 1, .query_begin = 0, .query_end = 1, .entries = 2},
                {.begin = 1, .end = 2, .query_begin = 1, .query_end = 3, .entries = 100},
                {.begin = 1, .end = 2, .query_begin = 3, .query_end = 5, .entries = 100, .gather = false},
                {.begin = 1, .end = 2, .query_begin = 5, .query_end = 6, .entries = 100, .gather = false},
                {.begin = 2, .end = 3, .query_begin = 6, .query_end = 7, .entries = 2}}));
  // One query alone over budget is one chunk; what has no entry has none.
  EXPECT_EQ(plan({400}, {2}, {.key_rows = 100, .logit_bytes = 4}).size(), 2U);
  EXPECT_TRUE(plan({3, 2, 0}, {3, 1, 0}, {.key_rows = 0}).empty());
  EXPECT_TRUE(plan({}, {}, {}).empty());
  EXPECT_THROW(plan({404}, {1}, {.key_rows = 100}), InvalidArgument);
  EXPECT_THROW(plan({4}, {5}, {.key_rows = 100}), InvalidArgument);
  EXPECT_THROW(plan({4}, {-1}, {.key_rows = 100}), InvalidArgument);
  EXPECT_THROW(plan({4}, {}, {.key_rows = 100}), InvalidArgument);
}

// A bound of 40 sequences of max_model_len on the packed entries is four times what a buffer of 40 * max_model_len / 4
// rows holds.
TEST(Plan, LogitChunksNeverOverfillTheKeyBuffer) {
  const std::int64_t max_model_len = 1024;
  const std::vector<std::int32_t> seq(100, 1024);
  const std::vector<std::int32_t> query(100, 1);
  const LogitLimits limits{.key_rows = 40 * max_model_len / 4};
  const std::vector<LogitChunk> chunks = plan_logit_chunks(seq, query, 4, limits);
  ASSERT_EQ(chunks.size(), 3U);
  EXPECT_EQ(chunks[0].end, 40);
  for (const LogitChunk& c : chunks) EXPECT_LE(c.entries, limits.key_rows);
}

TEST(Plan, LogitChunksCoverEveryQueryOnceWithinTheLimits) {
  std::mt19937 random(5);
  const auto below = [&](int n) { return static_cast<std::int32_t>(random() % static_cast<unsigned>(n)); };
  for (int run = 0; run < 2000; ++run) {
    std::vector<std::int32_t> seq;
    std::vector<std::int32_t> query;
    for (int i = below(12); i > 0; --i) {
      seq.push_back(below(4) == 0 ? below(8) : below(900));
      query.push_back(std::min(seq.back(), below(60)));
    }
    const LogitLimits limits{.key_rows = 225 + below(500), .logit_bytes = 4 * below(3000)};
    std::int64_t next = 0;      // query tokens
    std::int64_t request = 0;   // of them
    std::int64_t gathered = 0;  // rows in the buffer
    for (const LogitChunk& c : plan_logit_chunks(seq, query, 4, limits)) {
      std::int64_t entries = 0;
      std::int64_t first = 0;
      std::int64_t last = 0;
      for (std::int64_t r = 0; r < c.end; ++r) {
        if (r < c.begin) first += query[static_cast<std::size_t>(r)];
        last += query[static_cast<std::size_t>(r)];
        if (r >= c.begin) entries += seq[static_cast<std::size_t>(r)] / 4;
      }
      // What was skipped has no entry or no query.
      for (std::int64_t r = request; r < c.begin; ++r) {
        const auto i = static_cast<std::size_t>(r);
        ASSERT_TRUE(seq[i] / 4 == 0 || query[i] == 0);
        next += query[i];
      }
      request = c.end;
      if (c.gather) gathered = entries;
      ASSERT_EQ(c.entries, entries);
      ASSERT_EQ(c.entries, gathered);
      ASSERT_GT(c.entries, 0);
      ASSERT_LE(c.entries, limits.key_rows);
      ASSERT_EQ(c.query_begin, next);
      ASSERT_GE(c.query_begin, first);
      ASSERT_LE(c.query_end, last);
      ASSERT_GT(c.query_end, c.query_begin);
      const bool one = c.query_end - c.query_begin == 1 && c.end - c.begin == 1;
      ASSERT_TRUE(one || (c.query_end - c.query_begin) * c.entries <= limits.logit_bytes / 4);
      ASSERT_TRUE(c.gather || c.end - c.begin == 1);
      next = c.query_end;
    }
    for (auto i = static_cast<std::size_t>(request); i < seq.size(); ++i) ASSERT_TRUE(seq[i] / 4 == 0 || query[i] == 0);
  }
}

}  // namespace
}  // namespace smla
