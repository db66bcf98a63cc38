// Index scores and their selection in one op on a GPU: each implementation chooses what TopK's reference chooses of the
// scores that IndexerLogits gives by the kernels of the same name.
#include <gmock/gmock.h>

#include <cstring>
#include <set>

#include "device/launch_hook.h"
#include "gpu/indexer_gpu.h"
#include "parity/indexer_topk_cases.h"

namespace smla {
namespace {

using cases::IndexerTopkCase;
using cases::IndexerTopkInputs;
using cases::IndexerTopkOutputs;

class IndexerTopkGpu : public test::GpuTest {};

constexpr std::string_view kOneLaunch = IndexerTopK::kOneLaunch;

/// What TopK's reference chooses of the scores of `name`.
IndexerTopkOutputs want(const IndexerTopkCase& c, const IndexerTopkInputs& inputs, const std::string& name) {
  const test::Bits scores = test::score<IndexerLogits>(c.scores.problem(), inputs.scores.args(c.scores), name);
  TopK::Problem problem = c.choice().problem();
  if (c.slots) problem.slots = c.problem().slots;
  TopK::Args args{.lens = view_of(inputs.scores.lens.data(), {c.scores.rows})};
  args.logits = ConstTensorView(scores.data(), DType::kF32, {c.scores.rows, c.scores.width});
  args.logits.stride[0] = c.scores.width + test::kPadding;
  IndexerTopkOutputs out(c, inputs, args);
  Plan<TopK>(problem, {.implementation = "ref"}).run(args);
  return out;
}

IndexerTopkOutputs got(const IndexerTopkCase& c, const IndexerTopkInputs& inputs, const std::string& name) {
  IndexerTopK::Args args = inputs.args(c);
  IndexerTopkOutputs out(c, inputs, args);
  test::run_on_gpu<IndexerTopK>(c.problem(), args, name);
  return out;
}

/// The kernels that `f` launches.
template <class F>
std::multiset<std::string> kernels_of(const F& f) {
  static std::multiset<std::string> names;
  names.clear();
  device::launch_hook = [](const char* kernel) { names.insert(kernel); };
  f();
  device::launch_hook = nullptr;
  return names;
}

/// Which implementation's scores an implementation chooses from.
std::string scores_of(const IndexerTopkCase& c, const std::string& name) {
  if (name == kOneLaunch) return std::string(kOneLaunch);
  const PlanOptions options{.device = DeviceKind::kCuda};
  return std::string(Plan<IndexerLogits>(c.scores.problem(), options).implementation());
}

TEST_F(IndexerTopkGpu, ChoosesWhatTopKChoosesOfItsScores) {
  std::set<std::string> ran;
  for (const IndexerTopkCase& c : cases::indexer_topk_cases()) {
    SCOPED_TRACE(testing::Message() << c);
    const IndexerTopkInputs inputs(c);
    for (const std::string& name : test::gpu_implementations<IndexerTopK>(c.problem())) {
      SCOPED_TRACE(name);
      const IndexerTopkOutputs expected = want(c, inputs, scores_of(c, name));
      const IndexerTopkOutputs written = got(c, inputs, name);
      ASSERT_EQ(expected.indices, written.indices);
      ASSERT_EQ(expected.slots, written.slots);
      ASSERT_EQ(expected.lens, written.lens);
      ran.insert(name);
    }
  }
  EXPECT_TRUE(ran.contains("cuda"));
}

/// Rows too long for few blocks, many rows of a request, as in a prefill, and more scores than are kept at once.
TEST_F(IndexerTopkGpu, LongRowsAndPrefills) {
  const IndexerTopkCase grid[] = {
      {.scores = {.rows = 2, .requests = 2, .heads = 2, .width = 90'000, .block_size = 64, .lens = {90'000, 40'001}},
       .k = 512},
      {.scores = {.rows = 30, .requests = 1, .heads = 4, .width = 3000, .block_size = 64, .lens = {2990, 2995, 3000}},
       .k = 2048},
      {.scores = {.rows = 140, .requests = 140, .heads = 1, .width = 300, .block_size = 2}, .k = 33},
      {.scores = {.rows = 70,
                  .requests = 2,
                  .heads = 1,
                  .width = 280'000,
                  .block_size = 64,
                  .lens = {1500, 513, 512, 100, 2000}},
       .k = 512},
  };
  std::uint32_t seed = 50;
  for (IndexerTopkCase c : grid) {
    c.scores.format = &index_fp8_rows();
    c.scores.seed = ++seed;
    c.slots = true;
    SCOPED_TRACE(testing::Message() << c);
    const IndexerTopkInputs inputs(c);
    for (const std::string& name : test::gpu_implementations<IndexerTopK>(c.problem())) {
      SCOPED_TRACE(name);
      ASSERT_EQ(want(c, inputs, scores_of(c, name)), got(c, inputs, name));
    }
  }
}

/// Tests of the kernel of one launch.
class IndexerTopkHopperGpu : public IndexerTopkGpu {
 protected:
  void SetUp() override {
    IndexerTopkGpu::SetUp();
    if (IsSkipped()) return;
    const std::string missing = refusal({.rows = 1, .width = 9, .k = 2, .format = &index_fp8_rows()});
    if (missing.starts_with("it runs on sm_90") || missing.starts_with("this build has no code") ||
        missing.starts_with("9 entries, which do not fit"))
      GTEST_SKIP() << missing;
  }
  static std::string refusal(const IndexerTopK::Problem& problem) {
    const PlanOptions named{.device = DeviceKind::kCuda, .implementation = std::string(kOneLaunch)};
    for (const Candidate& c : explain<IndexerTopK>(problem, named))
      if (c.name == kOneLaunch) return c.refusal;
    return "no such implementation";
  }
};

IndexerTopkCase small_case() {
  return {.scores = {.rows = 6,
                     .requests = 3,
                     .heads = 64,
                     .width = 700,
                     .block_size = 64,
                     .format = &index_fp8_rows(),
                     .lens = {700, 699, 100, 64, 650},
                     .seed = 5},
          .k = 64,
          .slots = true};
}

TEST_F(IndexerTopkHopperGpu, IsOneLaunchOfTheSameBitsEveryTime) {
  const IndexerTopkCase c = small_case();
  const IndexerTopkInputs inputs(c);
  const IndexerTopkOutputs first = got(c, inputs, std::string(kOneLaunch));
  EXPECT_EQ(kernels_of([&] { got(c, inputs, std::string(kOneLaunch)); }),
            (std::multiset<std::string>{"indexer_topk score_and_select"}));
  for (int i = 0; i < 20; ++i) ASSERT_EQ(first, got(c, inputs, std::string(kOneLaunch)));
}

TEST_F(IndexerTopkHopperGpu, TensorsThatItCannotReadGoToTheTwoOps) {
  const IndexerTopkCase c = small_case();
  const IndexerTopkInputs inputs(c);
  IndexerTopK::Args args = inputs.args(c);
  const std::int64_t row = c.scores.heads * 128;
  // The first row at a multiple of 16, the next ones not.
  std::vector<std::uint8_t> wide(static_cast<std::size_t>(c.scores.rows * (row + 4)));
  for (std::int64_t r = 0; r < c.scores.rows; ++r)
    std::memcpy(wide.data() + r * (row + 4), inputs.scores.q.data() + r * row, static_cast<std::size_t>(row));
  args.q.data = wide.data();
  args.q.stride[0] = row + 4;
  IndexerTopkOutputs out(c, inputs, args);
  const auto kernels = kernels_of([&] { test::run_on_gpu<IndexerTopK>(c.problem(), args, std::string(kOneLaunch)); });
  EXPECT_FALSE(kernels.contains("indexer_topk score_and_select"));
  EXPECT_EQ(out, want(c, inputs, "cuda"));  // whose kernels take any place, with the same bits
}

TEST_F(IndexerTopkHopperGpu, SaysWhatItDoesNotTake) {
  IndexerTopK::Problem p{.rows = 1, .width = 9, .k = 0, .format = &index_fp8_rows()};
  EXPECT_EQ(refusal(p), "0 entries to choose; it chooses 1 to 2048");
  p.k = 2049;
  EXPECT_EQ(refusal(p), "2049 entries to choose; it chooses 1 to 2048");
  p = {.rows = 1, .width = 1 << 22, .k = 512, .format = &index_fp8_rows()};
  EXPECT_EQ(refusal(p), "4194304 entries, which do not fit the shared memory of a cluster of 16 blocks");
  p = {.rows = 1, .width = 9, .k = 2, .format = &index_mxfp4_rows()};
  EXPECT_EQ(refusal(p), "index_mxfp4 rows of 128 numbers; it takes e4m3 rows of 128");
}

}  // namespace
}  // namespace smla
