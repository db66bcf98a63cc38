#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "bench/choices.h"
#include "bench/device_inputs.h"
#include "bench/device_machine.h"
#include "bench/inputs.h"
#include "sparsemla/error.h"

namespace smla::bench {
namespace {

TEST(BenchStatistics, RanksAreNearest) {
  std::vector<double> seconds;
  for (int i = 100; i > 0; --i) seconds.push_back(i);
  const Timing t = summarize(seconds);
  EXPECT_EQ(t.runs, 100);
  EXPECT_EQ(t.best, 1);
  EXPECT_EQ(t.p10, 11);
  EXPECT_EQ(t.median, 51);
  EXPECT_EQ(t.p90, 91);
  EXPECT_EQ(summarize({3}).p90, 3);
  EXPECT_THROW(summarize({}), InvalidArgument);
}

TEST(BenchStatistics, AShuffleIsAPermutation) {
  for (const std::int64_t limit : {1, 2, 3, 63, 64, 65, 1000, 8192}) {
    const Shuffle order(limit);
    std::set<std::int64_t> seen;
    for (std::int64_t i = 0; i < limit; ++i) seen.insert(order.at(i, 42));
    EXPECT_EQ(static_cast<std::int64_t>(seen.size()), limit);
    EXPECT_GE(*seen.begin(), 0);
    EXPECT_LT(*seen.rbegin(), limit);
  }
  const Shuffle order(8192);
  int same = 0;
  int in_place = 0;
  for (std::int64_t i = 0; i < 8192; ++i) {
    same += order.at(i, 1) == order.at(i, 2) ? 1 : 0;
    in_place += order.at(i, 1) == i ? 1 : 0;
  }
  EXPECT_LT(same, 50) << "two keys, one order";
  EXPECT_LT(in_place, 50);
}

TEST(BenchStatistics, DriverVersion) {
  EXPECT_EQ(driver_version("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\nGCC "
                           "version: gcc 12.2.0\n"),
            "580.65.06");
  EXPECT_EQ(driver_version("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19"), "535.129.03");
  EXPECT_EQ(driver_version(""), "");
}

TEST(BenchCheck, OneWrongHeadIsFound) {
  const HostTensor want = random_numbers(DType::kBF16, {2, 64, 512}, 1, 1.0F);
  HostTensor got = want.clone();
  EXPECT_EQ(check_result(got, want, 4e-3).failure, "");
  for (std::int64_t d = 0; d < 512; ++d) got.as<BF16>()[(64 + 17) * 512 + d].bits ^= 0x8000;
  const Check wrong = check_result(got, want, 4e-3);
  EXPECT_TRUE(wrong.done);
  EXPECT_NE(wrong.failure, "");
  EXPECT_NEAR(wrong.l2, 2 / std::sqrt(128.0), 0.01);
}

TEST(BenchCheck, RoundingPassesAndASmallScaleDoesNot) {
  const HostTensor exact = random_numbers(DType::kF32, {64, 512}, 1, 1.0F);
  HostTensor rounded(DType::kBF16, {64, 512});
  HostTensor scaled(DType::kBF16, {64, 512});
  for (std::int64_t i = 0; i < exact.numel(); ++i) {
    rounded.as<BF16>()[i] = to_bf16(exact.as<float>()[i]);
    scaled.as<BF16>()[i] = to_bf16(exact.as<float>()[i] * 1.01F);
  }
  EXPECT_EQ(check_result(rounded, exact, 4e-3).failure, "");
  EXPECT_NE(check_result(scaled, exact, 4e-3).failure, "");
}

TEST(BenchCheck, NotANumberNeverPasses) {
  const HostTensor fine = random_numbers(DType::kBF16, {4, 512}, 1, 1.0F);
  HostTensor nan = fine.clone();
  nan.as<BF16>()[7] = {0xFFFF};
  EXPECT_NE(check_result(nan, fine, 4e-3).failure, "");
  EXPECT_NE(check_result(fine, nan, 4e-3).failure, "");
  EXPECT_NE(check_result(nan, nan, 4e-3).failure, "");
}

TEST(BenchCheck, SelectionsAreSets) {
  const std::vector<float> scores{0.5F, -1, 3, 2, 2, -4};
  const auto verdict = [&](std::vector<std::int32_t> chosen, double slack = 0) {
    return check_selection(chosen, scores, slack).failure;
  };
  EXPECT_EQ(verdict({2, 3, 4}), "");
  EXPECT_EQ(verdict({4, 2}), "") << "of two equals either";
  EXPECT_EQ(verdict({0, 1, 2, 3, 4, 5, -1, -1}), "");
  EXPECT_NE(verdict({2, 3, 0}), "") << "4 was better";
  EXPECT_EQ(verdict({2, 3, 0}, 0.5), "");
  EXPECT_NE(verdict({2, 2, 3}), "") << "twice";
  EXPECT_NE(verdict({2, 3, 6}), "") << "outside";
  EXPECT_NE(verdict({2, 3, -1}), "") << "too few";
  EXPECT_NE(verdict({0, 1, 2, 3, 4, 5, 0}), "") << "too many";
  EXPECT_NE(check_selection(std::vector<std::int32_t>{0}, {NAN}, 1).failure, "");
}

TEST(BenchCheck, TheWorseOfTwo) {
  const Check good{.done = true, .l2 = 1e-3, .failure = ""};
  const Check bad{.done = true, .l2 = 1e-4, .failure = "no"};
  EXPECT_EQ(worse(good, bad).failure, "no");
  EXPECT_EQ(worse(bad, good).failure, "no");
  EXPECT_EQ(worse(good, bad).l2, 1e-3);
  EXPECT_TRUE(worse({}, good).done);
  EXPECT_FALSE(worse({}, {}).done);
}

}  // namespace
}  // namespace smla::bench
