#include "sparsemla/ops/topk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace smla {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class TopkTest : public testing::TestWithParam<const char*> {
 protected:
  std::vector<std::int32_t> select(const std::vector<float>& x, std::int64_t k, std::int32_t len) const {
    const auto n = static_cast<std::int64_t>(x.size());
    std::vector<std::int32_t> out(static_cast<std::size_t>(k), 77);
    Plan<TopK>({.rows = 1, .width = n, .k = k}, {.implementation = GetParam()})
        .run({.logits = view_of(x.data(), {1, n}),
              .lens = view_of(static_cast<const std::int32_t*>(&len), {1}),
              .indices = view_of(out.data(), {1, k})});
    return out;
  }
  std::vector<std::int32_t> select(const std::vector<float>& x, std::int64_t k) const {
    return select(x, k, static_cast<std::int32_t>(x.size()));
  }
};

TEST_P(TopkTest, BestColumnsInAscendingOrder) { EXPECT_THAT(select({1, 5, 3, 4, 2}, 3), ElementsAre(1, 2, 3)); }

TEST_P(TopkTest, RowsNotLongerThanKAreTheirColumns) {
  EXPECT_THAT(select({9, kNan, 7}, 3), ElementsAre(0, 1, 2));
  EXPECT_THAT(select({9, 8, 7}, 5), ElementsAre(0, 1, 2, -1, -1));
}

TEST_P(TopkTest, LengthsAreClamped) {
  EXPECT_THAT(select({1, 2, 3}, 2, -7), ElementsAre(-1, -1));
  EXPECT_THAT(select({1, 2, 3}, 2, 0), ElementsAre(-1, -1));
  EXPECT_THAT(select({1, 2, 3}, 2, 1), ElementsAre(0, -1));
  EXPECT_THAT(select({3, 2, 1}, 2, std::numeric_limits<std::int32_t>::max()), ElementsAre(0, 1));
  EXPECT_THAT(select({3, 2, 1}, 2, std::numeric_limits<std::int32_t>::min()), ElementsAre(-1, -1));
}

TEST_P(TopkTest, TiesGoToTheLowestColumn) {
  EXPECT_THAT(select({2, 2, 2, 2}, 2), ElementsAre(0, 1));
  EXPECT_THAT(select({1, 2, 1, 3, 1}, 3), ElementsAre(0, 1, 3));
}

TEST_P(TopkTest, SignedZerosAreEqual) {
  EXPECT_THAT(select({-0.0F, 0.0F, -0.0F}, 1), ElementsAre(0));
  EXPECT_THAT(select({-1, -0.0F, 0.0F}, 1), ElementsAre(1));
}

TEST_P(TopkTest, NanComesAfterEveryNumber) {
  EXPECT_THAT(select({kNan, -kInfinity, -kNan, 1}, 2), ElementsAre(1, 3));
  EXPECT_THAT(select({kNan, -kInfinity, -kNan, 1}, 3), ElementsAre(0, 1, 3));
  EXPECT_THAT(select({kInfinity, -1, kInfinity, 2}, 2), ElementsAre(0, 2));
}

TEST_P(TopkTest, ZeroKWritesNothing) { EXPECT_THAT(select({1, 2}, 0), ElementsAre()); }

INSTANTIATE_TEST_SUITE_P(Implementations, TopkTest, testing::Values("ref", "cpu"));

TEST(TopkErrors, NameTheTensor) {
  std::vector<float> logits(6);
  std::vector<std::int32_t> lens(2);
  std::vector<std::int32_t> out(4);
  const Plan<TopK> plan({.rows = 2, .width = 3, .k = 2});
  const auto text = [&](const TopK::Args& args) -> std::string {
    try {
      plan.run(args);
    } catch (const InvalidArgument& e) {
      return e.what();
    }
    return "no error";
  };
  const TopK::Args good{.logits = view_of(logits.data(), {2, 3}),
                        .lens = view_of(lens.data(), {2}),
                        .indices = view_of(out.data(), {2, 2})};
  EXPECT_EQ(text(good), "no error");
  TopK::Args bad = good;
  bad.logits = view_of(logits.data(), {2, 2});
  EXPECT_THAT(text(bad), HasSubstr("topk: logits: got [2, 2] F32"));
  bad = good;
  bad.lens = view_of(logits.data(), {2});
  EXPECT_THAT(text(bad), HasSubstr("topk: lens: got [2] F32, expected [2] I32"));
  bad = good;
  bad.indices = {};
  EXPECT_THAT(text(bad), HasSubstr("topk: indices: got no tensor"));
  EXPECT_THROW(Plan<TopK>({.rows = -1, .width = 3, .k = 2}), InvalidArgument);
  EXPECT_THROW(Plan<TopK>({.rows = 1, .width = 3, .k = -2}), InvalidArgument);
  for (const std::int64_t block : {std::int64_t{1} << 31, std::int64_t{0}, std::int64_t{-1}})
    EXPECT_THROW(Plan<TopK>({.rows = 1, .width = 3, .k = 2, .slots = {{.storage_block = block}}}), InvalidArgument);
  EXPECT_THROW(Plan<TopK>({.rows = 1, .width = 3, .k = 2}, {.implementation = "radix"}), InvalidArgument);
}

}  // namespace
}  // namespace smla
