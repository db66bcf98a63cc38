#include "sparsemla/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sparsemla/run_check.h"

namespace smla {
namespace {

using testing::HasSubstr;

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

template <class F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(Engine, RefusesByNameWhatCanNeverFitAndRunsTheRest) {
  EngineOptions options = tiny_options();
  options.num_blocks = 50;
  Engine engine(options);
  engine.submit({.id = 7, .prompt_tokens = 20, .output_tokens = 3});
  engine.submit({.id = 8, .prompt_tokens = 399, .output_tokens = 2});
  engine.submit({.id = 9, .prompt_tokens = 400, .output_tokens = 2});
  engine.submit({.id = 10, .prompt_tokens = 1, .output_tokens = 1});
  while (engine.step([] { return 1.0; })) {
  }
  const auto results = engine.results();
  EXPECT_EQ(results[0].state, RequestResult::State::kFinished);
  EXPECT_EQ(results[1].state, RequestResult::State::kRefused);
  EXPECT_THAT(results[1].refusal, HasSubstr("request 8: needs"));
  EXPECT_THAT(results[1].refusal, HasSubstr("the pool has 50"));
  EXPECT_THAT(results[2].refusal, HasSubstr("request 9: got 401 positions, expected at most max_model_len 400"));
  EXPECT_EQ(results[3].state, RequestResult::State::kFinished);
  EXPECT_EQ(results[3].generated, 1);
}

TEST(Engine, NamesWhatIsImpossible) {
  Engine engine(tiny_options());
  EXPECT_THAT(error_of([&] { engine.submit({.id = 1, .prompt_tokens = 0, .output_tokens = 1}); }), HasSubstr("request 1: prompt tokens: got 0"));
  EXPECT_THAT(error_of([&] { engine.submit({.id = 1, .prompt_tokens = 1, .output_tokens = -4}); }), HasSubstr("request 1: output tokens: got -4"));
  engine.submit({.id = 1, .prompt_tokens = 1, .output_tokens = 1});
  EXPECT_THAT(error_of([&] { engine.submit({.id = 1, .prompt_tokens = 1, .output_tokens = 1}); }), HasSubstr("request 1: id: got 1"));
  EngineOptions options = tiny_options();
  options.num_blocks = 0;
  EXPECT_THAT(error_of([&] { Engine e(options); }), HasSubstr("num_blocks: got 0"));
  options = tiny_options();
  options.layers = {99};
  EXPECT_THAT(error_of([&] { Engine e(options); }), HasSubstr("99"));
  options = tiny_options();
  options.max_model_len = std::int64_t{1} << 40;
  EXPECT_THAT(error_of([&] { Engine e(options); }), HasSubstr("max_model_len"));
}

TEST(RunCheck, PassesASoundRunAndFailsAPlantedError) {
  const std::vector<RequestSpec> specs{{.id = 0, .prompt_tokens = 190, .output_tokens = 6}, {.id = 1, .prompt_tokens = 140, .output_tokens = 8}};
  for (const char* rows : {"bf16", "fp8_ds_mla", "fp8_per_tensor"}) {
    for (const PlantedError planted : {PlantedError::kNone, PlantedError::kPosition, PlantedError::kBlock}) {
      EngineOptions options = tiny_options();
      options.layer.caches.rows = &row_format(rows);
      if (options.layer.caches.rows->scale == ScaleKind::kPerTensor) {
        options.layer.q = DType::kE4M3;
        options.layer.caches.kv_scale = 0.01F;
        options.layer.q_scale = 0.01F;
      }
      options.planted_error = planted;
      RunCheck check(specs, options, 9);
      Engine engine(options, &check);
      for (const RequestSpec& s : specs) engine.submit(s);
      while (engine.step([] { return 1.0; })) {
      }
      const CheckReport report = check.finish(engine);
      EXPECT_EQ(report.passed, planted == PlantedError::kNone)
          << rows << ", planted " << static_cast<int>(planted) << ": worst " << report.samples[static_cast<std::size_t>(report.worst)].relative_l2;
      for (const CheckedSample& s : report.samples) EXPECT_TRUE(s.computed);
    }
  }
}

}  // namespace
}  // namespace smla
