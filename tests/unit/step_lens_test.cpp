// visible_entries, prefill_lens, draft_positions, add_rows.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/host_tensor.h"
#include "sparsemla/ops/index.h"
#include "sparsemla/ops/norm_rope.h"
#include "sparsemla/ops/validate.h"
#include "sparsemla/plan.h"

namespace smla {
namespace {

constexpr std::int64_t kLast = std::numeric_limits<std::int64_t>::max();

TEST(VisibleEntries, CountsWholeGroupsOfRealTokens) {
  const std::vector<std::int64_t> positions{0, 3, 4, 7, 7, -1, kLast};
  const std::vector<std::int64_t> slots{5, 5, 5, 5, -1, 5, 5};
  std::vector<std::int32_t> lens(7, 99);
  std::vector<std::int32_t> topk(7, 99);
  HostTensor valid(DType::kBool, {7});
  Plan<VisibleEntries>({.tokens = 7, .ratio = 4, .top_k = 1})
      .run({.positions = view_of(positions.data(), {7}),
            .slot_mapping = view_of(slots.data(), {7}),
            .valid = valid.view(),
            .lens = view_of(lens.data(), {7}),
            .topk_lens = view_of(topk.data(), {7})});
  EXPECT_EQ(lens, (std::vector<std::int32_t>{0, 1, 1, 2, 0, 0, INT32_MAX}));
  EXPECT_EQ(topk, (std::vector<std::int32_t>{0, 1, 1, 1, 0, 0, 1}));
  for (int t = 0; t < 7; ++t) EXPECT_EQ(valid.as<bool>()[t], t != 4) << t;
}

/// Each of the three outputs is optional: those that are asked for are what they are beside the others, and the memory
/// around them stays as it was.
TEST(VisibleEntries, WhatIsNotWantedIsNotWritten) {
  const std::vector<std::int64_t> positions{8, 40, 3};
  const std::vector<std::int64_t> slots{0, -1, 2};
  const std::vector<std::int32_t> want_lens{2, 0, 1};
  const std::vector<std::int32_t> want_topk{1, 0, 1};
  const std::vector<std::uint8_t> want_valid{1, 0, 1};
  for (const Candidate& candidate : explain<VisibleEntries>({.tokens = 3, .ratio = 4, .top_k = 1})) {
    if (!candidate.refusal.empty()) continue;
    for (unsigned wanted = 0; wanted < 8; ++wanted) {
      SCOPED_TRACE(candidate.name + ", outputs " + std::to_string(wanted));
      std::vector<std::int32_t> lens(5, 99);
      std::vector<std::int32_t> topk(5, 99);
      std::vector<std::uint8_t> valid(5, 99);
      VisibleEntries::Args args{.positions = view_of(positions.data(), {3}),
                                .slot_mapping = view_of(slots.data(), {3})};
      if ((wanted & 1U) != 0) args.valid = TensorView(valid.data() + 1, DType::kBool, {3});
      if ((wanted & 2U) != 0) args.lens = view_of(lens.data() + 1, {3});
      if ((wanted & 4U) != 0) args.topk_lens = view_of(topk.data() + 1, {3});
      Plan<VisibleEntries>({.tokens = 3, .ratio = 4, .top_k = 1}, {.implementation = candidate.name}).run(args);
      const auto expect = [](const auto& got, const auto& want, bool written) {
        EXPECT_EQ(got.front(), 99);
        EXPECT_EQ(got.back(), 99);
        for (std::size_t t = 0; t < 3; ++t) EXPECT_EQ(got[t + 1], written ? want[t] : 99) << "token " << t;
      };
      expect(valid, want_valid, (wanted & 1U) != 0);
      expect(lens, want_lens, (wanted & 2U) != 0);
      expect(topk, want_topk, (wanted & 4U) != 0);
    }
  }
}

TEST(PrefillLens, LeavesTheDecodesOutAndBoundsTheWindow) {
  const std::vector<std::int32_t> start{0, 1, 3, 203, 203, 200};
  const std::vector<std::int32_t> seq{9, 2, 1000, 50, -7};
  std::vector<std::int32_t> gather(4, -5);
  std::vector<std::int32_t> counts(4, -5);
  const PrefillLens::Args args{.query_start_loc = view_of(start.data(), {6}),
                               .seq_lens = view_of(seq.data(), {5}),
                               .gather_lens = view_of(gather.data(), {4}),
                               .entry_counts = view_of(counts.data(), {4})};
  Plan<PrefillLens>({.requests = 5, .decodes = 1, .window = 128, .ratio = 4}).run(args);
  EXPECT_EQ(gather, (std::vector<std::int32_t>{2, 327, 50, 0}));
  EXPECT_EQ(counts, (std::vector<std::int32_t>{0, 250, 12, 0}));
  EXPECT_THROW(validate<PrefillLens>({.requests = 5, .decodes = 1}, args), InvalidArgument)
      << "the last request ends before it starts";
  EXPECT_THROW(Plan<PrefillLens>({.requests = 2, .decodes = 3}), InvalidArgument);
}

TEST(DraftPositions, LastTokenOfEachRequest) {
  const std::vector<std::int32_t> seq{5, 0, INT32_MIN};
  std::vector<std::int64_t> positions(3);
  Plan<DraftPositions>({.requests = 3})
      .run({.seq_lens = view_of(seq.data(), {3}), .positions = view_of(positions.data(), {3})});
  EXPECT_EQ(positions, (std::vector<std::int64_t>{4, -1, std::int64_t{INT32_MIN} - 1}));
}

TEST(DraftPositions, RequestsThatTakePartGrow) {
  std::vector<std::int32_t> seq{5, 0, -3, INT32_MAX - 1};
  std::vector<std::int64_t> positions(4);
  Plan<DraftPositions>({.requests = 4, .longer = 2})
      .run({.seq_lens = view_of(std::as_const(seq).data(), {4}),
            .positions = view_of(positions.data(), {4}),
            .next_lens = view_of(seq.data(), {4})});
  EXPECT_EQ(seq, (std::vector<std::int32_t>{7, 0, -3, INT32_MAX})) << "in place; a request that sits out stays so";
  EXPECT_EQ(positions, (std::vector<std::int64_t>{6, -1, -4, INT32_MAX - 1}));
  EXPECT_THROW(Plan<DraftPositions>({.requests = 4, .longer = -1}), InvalidArgument);
}

}  // namespace
}  // namespace smla
