#include "sparsemla/run_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <tuple>

#include "cache/row_codec.h"
#include "core/codecs.h"
#include "core/host_tensor.h"
#include "layer/reference_rounding.h"

namespace smla {
namespace {

const std::vector<RequestSpec> kRequests{{.id = 0, .prompt_tokens = 190, .output_tokens = 6},
                                         {.id = 1, .prompt_tokens = 140, .output_tokens = 8}};

EngineOptions tiny_options() {
  EngineOptions o;
  o.model = model_preset("tiny");
  o.layers = {0, 1, 2};
  o.max_batched_tokens = 96;
  o.max_seqs = 4;
  o.num_blocks = 600;
  o.max_model_len = 400;
  return o;
}

/// A run of `ran`, checked by what `expected` says should have run.
CheckReport check_of(const EngineOptions& expected, const EngineOptions& ran,
                     const std::vector<RequestSpec>& requests = kRequests, int samples = 9) {
  RunCheck check(requests, expected, samples);
  Engine engine(ran, &check);
  for (const RequestSpec& r : requests) engine.submit(r);
  while (engine.step([] { return 1.0; })) {
  }
  return check.finish();
}

std::string worst_of(const CheckReport& report) {
  std::string text = "computed " + std::to_string(report.computed);
  if (report.worst >= 0) {
    const CheckedSample& w = report.samples[static_cast<std::size_t>(report.worst)];
    text += ", worst " + std::to_string(w.relative_l2) + " of " + std::to_string(w.bound) + " in layer " +
            std::to_string(w.layer) + " at " + std::to_string(w.position);
  }
  for (const CheckedSample& s : report.samples) text += s.topk_text.empty() ? "" : "; " + s.topk_text;
  return text;
}

/// The ways a layer stores and computes, which the check must neither doubt when they are sound nor be blunted by.
struct Way {
  const char* name;
  std::function<void(EngineOptions&)> set;
  double bound = 0.01;
};
const std::vector<Way>& ways() {
  static const std::vector<Way> kWays{
      {"default rows", [](EngineOptions&) {}},
      {"bf16 rows", [](EngineOptions& o) { o.layer.caches.rows = &bf16_rows(); }},
      {"flashinfer, per-tensor rows, e4m3 queries",
       [](EngineOptions& o) {
         o.layer.front_end = FrontEnd::kFlashInfer;
         o.layer.caches.rows = &fp8_per_tensor_rows();
         o.layer.q = DType::kE4M3;
         o.layer.caches.kv_scale = 0.01F;
         o.layer.q_scale = 0.01F;
       },
       0.02},
      {"mxfp4 index, hadamard",
       [](EngineOptions& o) {
         o.layer.caches.index = &index_mxfp4_rows();
         o.model.hadamard = true;
       }},
      {"sm120", [](EngineOptions& o) { o.layer.front_end = FrontEnd::kSm120; }},
      {"fp8 output projection", [](EngineOptions& o) { o.layer.fp8_output = OutputScale::kF32; }, 0.02},
      {"bf16 rows, ue8m0 output projection",
       [](EngineOptions& o) {
         o.layer.caches.rows = &bf16_rows();
         o.layer.fp8_output = OutputScale::kUe8m0x4;
       },
       0.02},
      {"float32, fp8 output projection",
       [](EngineOptions& o) {
         o.layer.precision = Precision::kF32;
         o.layer.fp8_output = OutputScale::kF32;
       },
       0.02},
      {"float32", [](EngineOptions& o) { o.layer.precision = Precision::kF32; }, 1e-4}};
  return kWays;
}

/// Which of ways(), and a seed.
class RunCheckWays : public testing::TestWithParam<std::tuple<std::size_t, std::uint64_t>> {};

TEST_P(RunCheckWays, PassWithEverySeed) {
  const auto [which, seed] = GetParam();
  const Way way = ways().at(which);
  EngineOptions options = tiny_options();
  options.seed = seed;
  way.set(options);
  const CheckReport report = check_of(options, options);
  EXPECT_TRUE(report.passed) << way.name << ", seed " << seed << ": " << worst_of(report);
  EXPECT_LE(report.bound, way.bound) << way.name;
  EXPECT_EQ(report.computed, 9) << way.name;
}

INSTANTIATE_TEST_SUITE_P(Seeds, RunCheckWays,
                         testing::Combine(testing::Range(std::size_t{0}, ways().size()), testing::Values(0, 1, 2)));

TEST(RunCheck, EveryWayFailsWhereOneKeyIsDropped) {
  for (const Way& way : ways()) {
    EngineOptions options = tiny_options();
    way.set(options);
    EngineOptions narrow = options;
    narrow.model.window -= 1;
    const CheckReport report = check_of(options, narrow);
    EXPECT_FALSE(report.passed) << way.name << ": " << worst_of(report);
  }
}

/// The more keys, the less one of them weighs: 1/sqrt(keys) of the output.
TEST(RunCheck, OneKeyOfSixHundredIsMissed) {
  EngineOptions options = tiny_options();
  options.layers = {0};
  options.model.window = 600;
  options.max_batched_tokens = 512;
  options.max_model_len = 800;
  EngineOptions narrow = options;
  narrow.model.window = 599;
  const std::vector<RequestSpec> requests{{.id = 3, .prompt_tokens = 700, .output_tokens = 4}};
  const CheckReport report = check_of(options, narrow, requests, 8);
  EXPECT_FALSE(report.passed) << worst_of(report);
  EXPECT_LT(report.samples[static_cast<std::size_t>(report.worst)].relative_l2, 0.06) << "no test of a sharp bound";
  EXPECT_TRUE(check_of(options, options, requests, 8).passed);
}

TEST(RunCheck, EveryWayFailsAPlantedError) {
  for (const Way& way : ways()) {
    for (const PlantedError planted : {PlantedError::kPosition, PlantedError::kBlock, PlantedError::kRope}) {
      EngineOptions options = tiny_options();
      way.set(options);
      options.planted_error = planted;
      const CheckReport report = check_of(options, options);
      EXPECT_FALSE(report.passed) << way.name << ", planted " << static_cast<int>(planted) << ": " << worst_of(report);
    }
  }
}

/// Weights that the engine took from another place than the options say are seen, too.
TEST(RunCheck, AnotherLayersWeightsFail) {
  EngineOptions options = tiny_options();
  EngineOptions shifted = options;
  shifted.layers = {2, 1, 0};
  shifted.model.compress_ratios[0] = options.model.compress_ratios[2];
  shifted.model.compress_ratios[2] = options.model.compress_ratios[0];
  EXPECT_FALSE(check_of(options, shifted).passed);
}

TEST(RunCheck, ACheckOfNothingIsNoPass) {
  const EngineOptions options = tiny_options();
  RunCheck unsampled({}, options, 5);
  const CheckReport none = unsampled.finish();
  EXPECT_FALSE(none.passed);
  EXPECT_TRUE(none.samples.empty());
  RunCheck never_ran(kRequests, options, 5);
  const CheckReport report = never_ran.finish();
  EXPECT_FALSE(report.passed);
  EXPECT_EQ(report.computed, 0);
  EXPECT_EQ(report.worst, -1);
  EXPECT_EQ(report.samples.size(), 5U);
}

/// The reference's own rounding against the library's codecs, which it does not use.
TEST(ReferenceRounding, NumbersAreTheCodecs) {
  std::mt19937_64 random(7);
  std::normal_distribution<float> normal;
  for (int exponent = -20; exponent <= 10; ++exponent) {
    for (int i = 0; i < 200; ++i) {
      const float x = std::ldexp(normal(random), exponent);
      std::vector<double> v{static_cast<double>(x)};
      round_to_bf16(v);
      ASSERT_EQ(v[0], static_cast<double>(to_float(to_bf16(x)))) << x;
      v[0] = static_cast<double>(x);
      round_to_e4m3(v, 1.0);
      ASSERT_EQ(v[0], static_cast<double>(to_float(to_e4m3(std::clamp(x, -448.0F, 448.0F))))) << x;
    }
  }
}

TEST(ReferenceRounding, RowsAreTheCodecs) {
  std::mt19937_64 random(11);
  std::normal_distribution<float> normal;
  for (const RowFormat* format : all_row_formats()) {
    for (const ClampRule clamp : {ClampRule::kAmax, ClampRule::kScale}) {
      for (const float magnitude : {1e-6F, 1e-3F, 1.0F, 300.0F}) {
        std::vector<std::uint8_t> bytes(static_cast<std::size_t>(format->row_bytes()));
        const PagedCache cache{.format = format,
                               .base = bytes.data(),
                               .num_blocks = 1,
                               .block_size = 1,
                               .block_stride_bytes = format->row_bytes(),
                               .scale = 0.25F};
        std::vector<float> row(static_cast<std::size_t>(format->dim));
        for (float& x : row) x = magnitude * normal(random);
        std::vector<double> rounded(row.begin(), row.end());
        encode_row(cache, 0, row.data(), clamp);
        decode_row(cache, 0, row.data());
        round_row(*format, 0.25, clamp, rounded);
        for (std::size_t i = 0; i < row.size(); ++i)
          ASSERT_EQ(rounded[i], static_cast<double>(row[i])) << format->name << " x " << magnitude << " number " << i;
      }
    }
  }
}

}  // namespace
}  // namespace smla
