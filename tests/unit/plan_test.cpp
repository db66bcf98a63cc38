#include "sparsemla/plan.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "sparsemla/error.h"

namespace smla {
namespace {

// Spec 6.8's check.
TEST(PrefillChunks, ExampleOfTheSpec) {
  const std::vector<std::int32_t> seq{80, 96, 112, 128, 144};
  const std::vector<std::int32_t> query(5, 4);
  const ChunkLimits limits{.requests = 4, .window = 64, .max_model_len = 1024, .max_batched_tokens = 128};
  EXPECT_EQ(plan_prefill_chunks(seq, query, 4, limits), (std::vector<PrefillChunk>{{.begin = 0, .end = 5, .n = 36, .m = 103}}));
}

TEST(PrefillChunks, EveryRequestOnceAndWithinTheArea) {
  const ChunkLimits limits{.requests = 2, .window = 128, .max_model_len = 512, .max_batched_tokens = 256};
  const std::vector<std::int32_t> seq{10, 500, 512, 1, 0, 300, 512, 512};
  const std::vector<std::int32_t> query{10, 100, 256, 1, 0, 300, 3, 200};
  for (const std::int64_t ratio : {1, 4, 128}) {
    const std::int64_t area = limits.requests * ((ratio > 1 ? limits.max_model_len / ratio : 0) + limits.window + limits.max_batched_tokens);
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
          EXPECT_EQ(local_length(length, rank, ranks, interleave), owned[static_cast<std::size_t>(rank)]) << length << " " << rank << "/" << ranks;
        }
      }
    }
  }
  EXPECT_THROW((void)local_length(5, 2, 2, 1), InvalidArgument);
}

TEST(Plan, WidthsAndBudgets) {
  EXPECT_EQ(draft_window_width(128, 5), 192);
  EXPECT_EQ(draft_window_width(512, 5), 9 * 64);
  EXPECT_EQ(draft_window_width(1024, 0), 1024);
  EXPECT_EQ(score_rows(1024, 1 << 20), 256);
  EXPECT_EQ(score_rows(1 << 30, 1 << 20), 1);
  EXPECT_EQ(score_rows(0, 4096), 1024);
}

}  // namespace
}  // namespace smla
