// Index scores on Hopper's FP8 products ("sm90"): how far their sums may be off, where tiles end, which calls the
// kernel takes.
#include <gmock/gmock.h>

#include <random>
#include <set>

#include "core/codecs.h"
#include "device/launch_hook.h"
#include "gpu/indexer_gpu.h"
#include "parity/gathered_cases.h"
#include "parity/indexer_cases.h"

namespace smla {
namespace {

using cases::IndexerLogitsCase;
using cases::IndexerLogitsInputs;
using gathered_cases::RaggedCase;
using gathered_cases::RaggedInputs;
using test::Bits;
using test::check;
using test::compare;
using test::score;
using testing::HasSubstr;

constexpr std::string_view kKernel = "indexer_logits score_warpgroups";

std::string refusal(const IndexerLogits::Problem& problem, const std::string& name) {
  for (const Candidate& c : explain<IndexerLogits>(problem, {.device = DeviceKind::kCuda, .implementation = name}))
    if (c.name == "sm90") return c.refusal;
  return "no such implementation";
}

/// Tests that need a Hopper GPU, code for it, and as much shared memory as Hopper has.
class IndexerHopperGpu : public test::IndexerGpuTest {
 protected:
  void SetUp() override {
    IndexerGpuTest::SetUp();
    if (IsSkipped()) return;
    const std::string missing =
        refusal({.rows = 1, .heads = 1, .dim = 128, .width = 1, .format = &index_fp8_rows()}, "sm90");
    if (missing.starts_with("it runs on sm_90") || missing.starts_with("this build has no code") ||
        missing.starts_with("shared memory of"))
      GTEST_SKIP() << missing;
  }
};

/// The kernels that `f` launches.
template <class F>
std::set<std::string> kernels_of(const F& f) {
  static std::set<std::string> names;
  names.clear();
  device::launch_hook = [](const char* kernel) { names.insert(kernel); };
  f();
  device::launch_hook = nullptr;
  return names;
}

/// Who runs a problem where nobody is named.
template <class Op>
std::string chosen(const typename Op::Problem& problem, bool deterministic) {
  return std::string(Plan<Op>(problem, {.device = DeviceKind::kCuda, .deterministic = deterministic}).implementation());
}

TEST_F(IndexerHopperGpu, IsChosenForE4M3RowsOf128) {
  IndexerLogits::Problem problem{.rows = 1, .heads = 64, .dim = 128, .width = 9, .format = &index_fp8_rows()};
  RaggedIndexerLogits::Problem ragged{.rows = 1, .keys = 9, .heads = 64, .dim = 128, .format = &index_fp8_rows()};
  for (const bool deterministic : {false, true}) {
    problem.format = ragged.format = &index_fp8_rows();
    EXPECT_EQ(chosen<IndexerLogits>(problem, deterministic), "sm90");
    EXPECT_EQ(chosen<RaggedIndexerLogits>(ragged, deterministic), "sm90");
    problem.format = ragged.format = &index_mxfp4_rows();
    EXPECT_EQ(chosen<IndexerLogits>(problem, deterministic), "cuda");
    EXPECT_EQ(chosen<RaggedIndexerLogits>(ragged, deterministic), "cuda");
  }
  EXPECT_EQ(refusal(problem, ""), "index_mxfp4 rows of 128 numbers; it takes e4m3 rows of 128");
  EXPECT_EQ(refusal(problem, "sm90"), "index_mxfp4 rows of 128 numbers; it takes e4m3 rows of 128");
  problem.format = &index_f32_rows();
  EXPECT_EQ(refusal(problem, "sm90"), "index_f32 rows of 128 numbers; it takes e4m3 rows of 128");
}

/// Row `row` of a call alone.
IndexerLogits::Args alone(const IndexerLogits::Args& args, std::int64_t row) {
  IndexerLogits::Args one = args;
  one.q = args.q.slice(0, row, row + 1);
  one.weights = args.weights.slice(0, row, row + 1);
  one.row_to_req = args.row_to_req.slice(0, row, row + 1);
  one.lens = args.lens.slice(0, row, row + 1);
  return one;
}

/// Every row of a call has the bits that it has alone, and the Hopper kernel runs both ways or neither.
void expect_rows_as_alone(const IndexerLogitsCase& c, const IndexerLogits::Args& args, bool hopper) {
  Bits all;
  EXPECT_EQ(kernels_of([&] { all = score<IndexerLogits>(c.problem(), args, "sm90"); }).count(std::string(kKernel)),
            hopper ? 1U : 0U);
  IndexerLogits::Problem one = c.problem();
  one.rows = 1;
  for (std::int64_t row = 0; row < c.rows; ++row) {
    Bits got;
    const auto kernels = kernels_of([&] { got = score<IndexerLogits>(one, alone(args, row), "sm90"); });
    EXPECT_EQ(kernels.count(std::string(kKernel)), hopper ? 1U : 0U) << "row " << row;
    const auto begin = all.begin() + row * (c.width + test::kPadding);
    ASSERT_EQ(got, Bits(begin, begin + c.width + test::kPadding)) << "row " << row;
  }
}

TEST_F(IndexerHopperGpu, ARowsBitsDoNotDependOnTheBatchOrOnTheQueriesOfItsRequest) {
  const std::int64_t heads[] = {16, 17, 64, 100};
  for (std::uint32_t queries = 1; queries <= 9; ++queries) {
    const IndexerLogitsCase c{.rows = 3 * queries,
                              .requests = 3,
                              .heads = heads[queries % 4],
                              .width = 200,
                              .block_size = 64,
                              .format = &index_fp8_rows(),
                              .lens = {200, 199, 64, 5, 130},
                              .seed = queries};
    SCOPED_TRACE(testing::Message() << c);
    const IndexerLogitsInputs inputs(c);
    expect_rows_as_alone(c, inputs.args(c), true);
    if (HasFailure()) return;
  }
}

TEST_F(IndexerHopperGpu, ARowOfQueriesAtOddStridesGoesWhereAllOfThemGo) {
  const IndexerLogitsCase c{.rows = 4, .requests = 2, .heads = 6, .width = 70, .format = &index_fp8_rows()};
  const IndexerLogitsInputs inputs(c);
  IndexerLogits::Args args = inputs.args(c);
  const std::int64_t row_bytes = c.heads * 128;
  const std::int64_t stride = row_bytes + 4;  // row 0 at a multiple of 16, the others not
  std::vector<std::uint8_t> q(static_cast<std::size_t>(c.rows * stride));
  for (std::int64_t row = 0; row < c.rows; ++row)
    std::memcpy(q.data() + row * stride, inputs.q.data() + row * row_bytes, static_cast<std::size_t>(row_bytes));
  args.q.data = q.data();
  args.q.stride[0] = stride;
  expect_rows_as_alone(c, args, false);
  // A row that is all of its tensor may have any stride.
  IndexerLogits::Problem one = c.problem();
  one.rows = 1;
  args.q.stride[0] = 1;
  EXPECT_EQ(kernels_of([&] { score<IndexerLogits>(one, alone(args, 0), "sm90"); }).count(std::string(kKernel)), 1U);
}

TEST_F(IndexerHopperGpu, LengthsAroundTilesOfOneToEightQueries) {
  const std::int64_t heads[] = {1, 64, 17, 65, 33, 16, 128, 100};
  const std::int64_t blocks[] = {64, 1, 16, 2, 256, 4};
  for (std::uint32_t queries = 1; queries <= 8; ++queries) {
    const IndexerLogitsCase c{.rows = 3 * queries,
                              .requests = 3,
                              .heads = heads[queries - 1],
                              .width = 300,
                              .block_size = blocks[queries % 6],
                              .format = &index_fp8_rows(),
                              .lens = {129, 65, 64, 63, 1, 0, 128, 127, 300, 257, 256},
                              .seed = queries};
    SCOPED_TRACE(testing::Message() << c);
    const IndexerLogitsInputs inputs(c);
    EXPECT_THAT(kernels_of([&] { score<IndexerLogits>(c.problem(), inputs.args(c), "sm90"); }),
                testing::ElementsAre(std::string(kKernel)));
    check<IndexerLogits>(c.problem(), inputs.args(c));
    if (HasFailure()) return;
  }
}

TEST_F(IndexerHopperGpu, RangesAroundTiles) {
  RaggedCase c{.format = &index_fp8_rows(), .heads = 9, .keys = 400, .starts = {}, .ends = {}, .seed = 3};
  for (const std::int32_t start : {0, 1, 63, 64, 65, 200}) {
    for (const std::int32_t length : {0, 1, 62, 63, 64, 65, 129, 200}) {
      c.starts.push_back(start);
      c.ends.push_back(start + length);
    }
  }
  const RaggedInputs inputs(c);
  check<RaggedIndexerLogits>(c.problem(), inputs.args(c));
}

TEST_F(IndexerHopperGpu, TensorsAtOddAddressesGoToTheKernelForAnyGpu) {
  const IndexerLogitsCase c{.rows = 3,
                            .requests = 2,
                            .heads = 5,
                            .width = 70,
                            .block_size = 3,  // blocks of 3 x 132 bytes, no multiple of 16
                            .format = &index_fp8_rows()};
  const IndexerLogitsInputs inputs(c);
  IndexerLogits::Args args = inputs.args(c);
  const std::int64_t stride = block_bytes(*c.format, c.block_size);
  ASSERT_NE(stride % 16, 0);
  std::vector<std::uint8_t> memory(static_cast<std::size_t>(inputs.cache.num_blocks * stride));
  for (std::int64_t block = 0; block < inputs.cache.num_blocks; ++block)
    std::memcpy(memory.data() + block * stride, inputs.cache.block(block), static_cast<std::size_t>(stride));
  args.cache.base = memory.data();
  args.cache.block_stride_bytes = stride;
  Bits got;
  const auto kernels = kernels_of([&] { got = score<IndexerLogits>(c.problem(), args, "sm90"); });
  EXPECT_EQ(kernels.count(std::string(kKernel)), 0U);
  EXPECT_EQ(got, score<IndexerLogits>(c.problem(), args, "cuda"));
}

/// How far a sum of 128 products may be off that is made 32 products at a time, of numbers cut off below 2^-13 of the
/// largest: 34 cuts each time.
double bound_of_dot(const std::uint8_t* q, const std::uint8_t* key) {
  double largest = 0;
  double sum = 0;
  for (int d = 0; d < 128; ++d) {
    const double product = static_cast<double>(to_float(E4M3{q[d]})) * to_float(E4M3{key[d]});
    largest = std::max(largest, std::abs(product));
    sum += product;
    if (d % 32 == 31) largest = std::max(largest, std::abs(sum));
  }
  return 1.02 * 4 * 34 * 0x1p-13 * largest;  // the sums that are compared are themselves off by 1.7 %
}

/// Checks every score of gathered rows against the bound of its own products. Returns the largest part of a bound that
/// was used.
double check_bounds(const RaggedIndexerLogits::Problem& problem, const RaggedIndexerLogits::Args& args) {
  const Bits want = score<RaggedIndexerLogits>(problem, args, "ref");
  const Bits got = score<RaggedIndexerLogits>(problem, args, "sm90");
  double used = 0;
  for (std::int64_t row = 0; row < problem.rows; ++row) {
    for (std::int64_t j = 0; j < problem.keys; ++j) {
      const auto at = static_cast<std::size_t>(row * (problem.keys + test::kPadding) + j);
      if (want[at] == test::kPoison) continue;
      double bound = 0;
      double size = 0;
      for (std::int64_t h = 0; h < problem.heads; ++h) {
        const double weight = std::abs(args.weights.as<float>()[row * args.weights.stride[0] + h]);
        const double dot =
            bound_of_dot(static_cast<const std::uint8_t*>(args.q.data) + row * args.q.stride[0] + h * args.q.stride[1],
                         args.values.as<std::uint8_t>() + j * args.values.stride[0]);
        bound += weight * dot;
        size += weight * dot * 0x1p13 / 128;
      }
      float scale = 0;
      std::memcpy(&scale, args.scales.as<std::uint8_t>() + j * args.scales.stride[0], 4);
      bound = std::abs(scale) * (bound + size * 0x1p-20);  // and the fp32 sum over heads
      const double off = std::abs(std::bit_cast<float>(got[at]) - std::bit_cast<float>(want[at]));
      EXPECT_LE(off, bound) << "row " << row << " column " << j << ": got " << std::bit_cast<float>(got[at])
                            << ", want " << std::bit_cast<float>(want[at]);
      if (testing::Test::HasFailure()) return used;
      if (bound > 0) used = std::max(used, off / bound);
    }
  }
  return used;
}

TEST_F(IndexerHopperGpu, SumsStayWithinTheirBound) {
  for (const std::int64_t heads : {1, 3, 64}) {
    RaggedCase c{.format = &index_fp8_rows(), .heads = heads, .keys = 200, .starts = {0, 3}, .ends = {200, 199}};
    c.seed = static_cast<std::uint32_t>(heads);
    const RaggedInputs any(c);
    const double used = check_bounds(c.problem(), any.args(c));
    std::printf("[ of the bound ] %.3f with %d heads\n", used, static_cast<int>(heads));
    // Large products that cancel and many small ones behind them: what is left is small beside what is cut off.
    RaggedInputs cancelling(c);
    const auto code = [](float x) { return to_e4m3(x).bits; };
    for (std::size_t i = 0; i < cancelling.q.size(); ++i) cancelling.q[i] = code(i % 32 < 2 ? 448.0F : 1.0F);
    for (std::size_t j = 0; j < 200; ++j) {
      for (std::size_t d = 0; d < 128; ++d) {
        const float large = d % 2 == 0 ? 448.0F : -448.0F;
        cancelling.values[j * (128 + RaggedInputs::kGap) + d] =
            code(d % 32 < 2 ? large : 1.0F + static_cast<float>(j % 8) / 8);
      }
    }
    std::printf("[ of the bound ] %.3f cancelling\n", check_bounds(c.problem(), cancelling.args(c)));
  }
}

}  // namespace
}  // namespace smla
