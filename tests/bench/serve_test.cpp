#include "bench/serve.h"

#include <gtest/gtest.h>

#include "sparsemla/error.h"

namespace smla::bench {
namespace {

StackTimes flat(double prefill, double step) {
  StackTimes times;
  times.prefill = prefill;
  times.set(1, 0, step);
  return times;
}

TEST(BenchServe, TimesAreInterpolatedAndConstantOutside) {
  StackTimes times;
  times.set(1, 100, 1);
  times.set(1, 200, 3);
  times.set(4, 100, 7);
  times.set(4, 200, 9);
  EXPECT_DOUBLE_EQ(times.decode(1, 150), 2);
  EXPECT_DOUBLE_EQ(times.decode(1, 50), 1);
  EXPECT_DOUBLE_EQ(times.decode(1, 900), 3);
  EXPECT_DOUBLE_EQ(times.decode(2, 150), 4);
  EXPECT_DOUBLE_EQ(times.decode(9, 200), 9);
  EXPECT_THROW((void)StackTimes().decode(1, 1), InvalidArgument);
}

TEST(BenchServe, OneRequestIsItsPromptAndItsSteps) {
  const ServeResult r = simulate(flat(5, 2), {.concurrent = 1, .total = 1, .prompt = 10, .output = 4});
  EXPECT_DOUBLE_EQ(r.ttft.mean, 5);
  EXPECT_DOUBLE_EQ(r.tpot.mean, 2);
  EXPECT_DOUBLE_EQ(r.seconds, 5 + 3 * 2);
}

TEST(BenchServe, PromptsGoFirstAndStallTheOthers) {
  // Two prompts, then two steps together; each later one waits for a prompt between.
  const ServeResult r = simulate(flat(5, 2), {.concurrent = 2, .total = 2, .prompt = 10, .output = 3});
  EXPECT_DOUBLE_EQ(r.ttft.median, 5);
  EXPECT_DOUBLE_EQ(r.ttft.p99, 10);
  EXPECT_DOUBLE_EQ(r.tpot.p99, (5 + 4) / 2.0);
  EXPECT_DOUBLE_EQ(r.tpot.median, 2);
  EXPECT_DOUBLE_EQ(r.seconds, 14);
  const ServeResult more = simulate(flat(5, 2), {.concurrent = 2, .total = 6, .prompt = 10, .output = 3});
  EXPECT_DOUBLE_EQ(more.seconds, 3 * 14);
  EXPECT_DOUBLE_EQ(simulate(flat(5, 2), {.concurrent = 3, .total = 3, .prompt = 10, .output = 1}).seconds, 15);
  EXPECT_THROW((void)simulate(flat(5, 2), {.concurrent = 0}), InvalidArgument);
}

TEST(BenchServe, RanksAreNearest) {
  std::vector<double> seconds;
  for (int i = 200; i > 0; --i) seconds.push_back(i);
  const Spread s = spread_of(seconds);
  EXPECT_EQ(s.median, 100);
  EXPECT_EQ(s.p99, 198);
  EXPECT_DOUBLE_EQ(s.mean, 100.5);
  EXPECT_EQ(spread_of({}).mean, 0);
}

TEST(BenchServe, TheStackIsTheModels) {
  const std::map<int, std::int64_t> layers = layers_by_ratio(model_preset("v4-flash"));
  std::int64_t all = 0;
  for (const auto& [ratio, n] : layers) all += n;
  EXPECT_EQ(all, 43);
  EXPECT_EQ(layers.size(), 3U);
}

}  // namespace
}  // namespace smla::bench
