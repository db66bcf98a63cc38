// Index scores and their selection in one op on the CPU: each implementation chooses what TopK's reference chooses of
// the scores of the op that it runs.
#include <gmock/gmock.h>

#include "aligned_workspace.h"
#include "parity/indexer_topk_cases.h"
#include "sparsemla/error.h"

namespace smla {
namespace {

using cases::IndexerTopkCase;
using cases::IndexerTopkInputs;
using cases::IndexerTopkOutputs;
using testing::HasSubstr;

template <class Op>
void run(const Plan<Op>& plan, const typename Op::Args& args) {
  const test::AlignedWorkspace workspace(plan.workspace_bytes());
  plan.run(args, workspace.get());
}

IndexerTopkOutputs want(const IndexerTopkCase& c, const IndexerTopkInputs& inputs, const std::string& name) {
  std::vector<float> scores(static_cast<std::size_t>(c.scores.rows * c.scores.width));
  IndexerLogits::Args scored = inputs.scores.args(c.scores);
  scored.logits = TensorView(scores.data(), DType::kF32, {c.scores.rows, c.scores.width});
  run(Plan<IndexerLogits>(c.scores.problem(), {.implementation = name}), scored);
  TopK::Problem problem = c.choice().problem();
  problem.slots = c.problem().slots;
  TopK::Args args{.logits = scored.logits, .lens = view_of(inputs.scores.lens.data(), {c.scores.rows})};
  IndexerTopkOutputs out(c, inputs, args);
  Plan<TopK>(problem, {.implementation = "ref"}).run(args);
  return out;
}

IndexerTopkOutputs got(const IndexerTopkCase& c, const IndexerTopkInputs& inputs, const std::string& name) {
  IndexerTopK::Args args = inputs.args(c);
  IndexerTopkOutputs out(c, inputs, args);
  run(Plan<IndexerTopK>(c.problem(), {.implementation = name}), args);
  return out;
}

TEST(IndexerTopkParity, ChoosesWhatTopKChoosesOfItsScores) {
  for (const IndexerTopkCase& c : cases::indexer_topk_cases()) {
    SCOPED_TRACE(testing::Message() << c);
    const IndexerTopkInputs inputs(c);
    ASSERT_EQ(want(c, inputs, "ref"), got(c, inputs, "ref"));
    ASSERT_EQ(want(c, inputs, ""), got(c, inputs, "cpu"));
  }
}

/// More scores than are kept at once: several pieces, the last one smaller.
TEST(IndexerTopkParity, PiecesOfManyRows) {
  const IndexerTopkCase c{.scores = {.rows = 70,
                                     .requests = 2,
                                     .heads = 1,
                                     .width = 280'000,
                                     .block_size = 64,
                                     .format = &index_fp8_rows(),
                                     .lens = {70'000, 512, 100, 65'000},
                                     .seed = 3},
                          .k = 5,
                          .slots = true};
  const IndexerTopkInputs inputs(c);
  const Plan<IndexerTopK> plan(c.problem(), {.implementation = "cpu"});
  EXPECT_LT(plan.workspace_bytes(), static_cast<std::size_t>(4 * c.scores.rows * c.scores.width));
  EXPECT_EQ(want(c, inputs, ""), got(c, inputs, "cpu"));
}

/// A layer reserves for its largest step.
TEST(IndexerTopkParity, FewerRowsAndColumnsNeedNoMoreWorkspace) {
  const auto bytes = [](std::int64_t rows, std::int64_t width) {
    const IndexerTopK::Problem p{.rows = rows, .width = width, .k = 512, .format = &index_fp8_rows()};
    return Plan<IndexerTopK>(p, {.implementation = "cpu", .threads = 1}).workspace_bytes();
  };
  std::size_t before = 0;
  for (const std::int64_t rows : {0, 1, 2, 60, 61, 1000, 100'000}) {
    EXPECT_GE(bytes(rows, 280'000), before) << rows;
    before = bytes(rows, 280'000);
  }
  before = 0;
  for (const std::int64_t width : {0, 1, 100, 60'000, 280'000, 16'000'000, 17'000'000, 2'000'000'000}) {
    EXPECT_GE(bytes(61, width), before) << width;
    before = bytes(61, width);
  }
}

TEST(IndexerTopkParity, ErrorsNameTheOp) {
  const auto text_of = [](const auto& f) -> std::string {
    try {
      f();
    } catch (const InvalidArgument& e) {
      return e.what();
    }
    return "no error";
  };
  EXPECT_THAT(text_of([] { Plan<IndexerTopK>({.rows = 1, .width = 3, .k = 2}); }),
              HasSubstr("indexer_topk: problem.format: got none"));
  EXPECT_THAT(text_of([] { Plan<IndexerTopK>({.rows = 1, .width = 3, .k = -2, .format = &index_fp8_rows()}); }),
              HasSubstr("indexer_topk: problem.k: got -2"));
  IndexerTopkCase c = cases::indexer_topk_cases().front();
  const IndexerTopkInputs inputs(c);
  IndexerTopK::Args args = inputs.args(c);
  IndexerTopkOutputs out(c, inputs, args);
  args.indices = args.indices.slice(0, 0, 1);
  EXPECT_THAT(text_of([&] { run(Plan<IndexerTopK>(c.problem()), args); }),
              HasSubstr("indexer_topk: indices: got [1, "));
}

}  // namespace
}  // namespace smla
