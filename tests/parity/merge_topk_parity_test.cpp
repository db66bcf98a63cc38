#include <gtest/gtest.h>

#include "parity/merge_topk_cases.h"
#include "sparsemla/op.h"

namespace smla {
namespace {

/// What TopK chooses among all entries of all ranks, whatever their order and scores.
TEST(MergeTopkParity, EveryImplementationChoosesWhatTopkChoosesOfTheWhole) {
  for (const cases::MergeCase& c : cases::merge_cases()) {
    SCOPED_TRACE(testing::Message() << c);
    const cases::MergeInputs inputs(c);
    for (const Candidate& candidate : explain<MergeTopK>(c.problem())) {
      if (!candidate.refusal.empty()) continue;
      for (const bool wanted : {true, false}) {
        std::vector<std::int32_t> chosen(inputs.chosen.size(), 0x5A5A), own(inputs.own.size(), 0x5A5A);
        MergeTopK::Args args{.scores = view_of(inputs.scores.data(), {c.share.ranks, c.rows, c.k}),
                             .indices = view_of(inputs.indices.data(), {c.share.ranks, c.rows, c.k}),
                             .own = view_of(own.data(), {c.rows, c.k})};
        if (wanted) args.chosen = view_of(chosen.data(), {c.rows, c.k});
        Plan<MergeTopK>(c.problem(), {.implementation = candidate.name}).run(args);
        ASSERT_EQ(own, inputs.own) << candidate.name;
        if (wanted) {
          ASSERT_EQ(chosen, inputs.chosen) << candidate.name;
        }
      }
    }
  }
}

TEST(MergeTopkParity, ScoresOfTheChosenComeWithThem) {
  for (const cases::TopkCase& c : cases::slot_cases()) {
    SCOPED_TRACE(testing::Message() << c);
    const cases::TopkInputs inputs(c);
    for (const Candidate& candidate : explain<TopK>(c.problem())) {
      if (!candidate.refusal.empty()) continue;
      std::vector<std::int32_t> indices(static_cast<std::size_t>(c.rows * c.k));
      std::vector<float> scores(indices.size(), 5);
      Plan<TopK>(c.problem(), {.implementation = candidate.name})
          .run({.logits = inputs.view(c),
                .lens = view_of(inputs.lens.data(), {c.rows}),
                .indices = view_of(indices.data(), {c.rows, c.k}),
                .scores = view_of(scores.data(), {c.rows, c.k})});
      for (std::size_t i = 0; i < indices.size(); ++i) {
        const std::int64_t row = static_cast<std::int64_t>(i) / c.k;
        const float want = indices[i] < 0 ? -std::numeric_limits<float>::infinity()
                                          : inputs.logits[static_cast<std::size_t>(row * inputs.stride + indices[i])];
        ASSERT_EQ(scores[i], want) << candidate.name << " row " << row;
      }
    }
  }
}

}  // namespace
}  // namespace smla
