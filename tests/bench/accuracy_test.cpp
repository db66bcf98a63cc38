#include "bench/accuracy.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "sparsemla/error.h"

namespace smla::bench {
namespace {

AccuracyOptions tiny() {
  AccuracyOptions o;
  o.sizes = {
      .hidden = 128, .heads = 2, .o_groups = 1, .lora = 128, .index_heads = 2, .index_topk = 32, .vocabulary = 64};
  o.contexts = {400};
  o.measured = 16;
  return o;
}

std::map<std::string, AccuracyRow> measured(const AccuracyOptions& options) {
  std::map<std::string, AccuracyRow> out;
  measure_accuracy(
      options, [](const std::string&) {}, [&](const AccuracyRow& row) { out[row.name] = row; });
  return out;
}

TEST(BenchAccuracy, FormatsErrAsTheirBitsSay) {
  AccuracyOptions options = tiny();
  options.groups = {"cache", "index"};
  std::map<std::string, AccuracyRow> rows = measured(options);
  const AccuracyRow& f32 = rows.at("f32 throughout");
  EXPECT_LT(f32.stack, 1e-5);
  EXPECT_LT(f32.own_stack, 1e-5);
  EXPECT_EQ(f32.entries, 0);
  EXPECT_EQ(f32.queries, 0);
  EXPECT_EQ(f32.agreement, 1);
  for (const std::size_t kind : {0U, 1U, 2U}) {
    EXPECT_GT(f32.kinds[kind], 1e-9);
    EXPECT_LT(f32.kinds[kind], 1e-5);
    // Half a step of e4m3 is 2^-4 of a number at most, of bf16 2^-8.
    EXPECT_GT(rows.at("bf16").kinds[kind], 1e-3);
    EXPECT_LT(rows.at("bf16").kinds[kind], 1.5e-2);
    EXPECT_GT(rows.at("fp8_ds_mla").kinds[kind], 1.5e-2);
    EXPECT_LT(rows.at("fp8_ds_mla").kinds[kind], 6e-2);
    EXPECT_GT(rows.at("fp8_ds_mla, e4m3 queries").kinds[kind], rows.at("fp8_ds_mla").kinds[kind]);
  }
  // With float64's choice the index rows do not matter; without it theirs do.
  EXPECT_EQ(rows.at("index_mxfp4").stack, rows.at("index_fp8").stack);
  EXPECT_GT(rows.at("index_mxfp4").entries, 1.3 * rows.at("index_fp8").entries);
  EXPECT_GT(rows.at("index_fp8").entries, rows.at("index_f32").entries);
  EXPECT_GT(rows.at("index_mxfp4").own_stack, rows.at("index_fp8").own_stack);
  EXPECT_GT(rows.at("index_fp8").queries, rows.at("index_fp8").entries);
}

TEST(BenchAccuracy, WeightsErrAsTheirBitsSay) {
  AccuracyOptions options = tiny();
  options.groups = {"weights"};
  std::map<std::string, AccuracyRow> rows = measured(options);
  EXPECT_LT(rows.at("fp8, dequantised").stack, rows.at("fp8 as stored").stack);
  EXPECT_LT(rows.at("fp8 as stored").stack, rows.at("nvfp4").stack);
  EXPECT_LT(rows.at("bf16, fp8 output projection").stack, rows.at("fp8, dequantised").stack);
}

TEST(BenchAccuracy, EveryKernelIsNearFloat64) {
  AccuracyOptions options = tiny();
  options.contexts = {200};
  options.measured = 8;
  options.groups = {"kernel"};
  int ran = 0;
  for (const auto& [name, row] : measured(options)) {
    if (!row.skipped.empty()) {
      EXPECT_NE(row.skipped.find("got "), std::string::npos) << name;
      continue;
    }
    ++ran;
    EXPECT_LT(row.stack, name.ends_with("f32 throughout") ? 1e-5 : 6e-2) << name;
  }
  EXPECT_GE(ran, 4);  // ref and cpu run everywhere
}

TEST(BenchAccuracy, RefusesWhatItCannotMeasure) {
  AccuracyOptions options = tiny();
  options.groups = {"weather"};
  EXPECT_THROW(measured(options), InvalidArgument);
  options = tiny();
  options.contexts = {8};
  EXPECT_THROW(measured(options), InvalidArgument);
  options = tiny();
  options.sizes.o_groups = 3;
  EXPECT_THROW(measured(options), InvalidArgument);
}

}  // namespace
}  // namespace smla::bench
