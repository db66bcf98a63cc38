#include "sparsemla/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <span>
#include <tuple>

#include "cache/snapshot_records.h"
#include "sparsemla/run_check.h"
#include "sparsemla/snapshot.h"

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

TEST(Engine, EndedRequestsAreTakenAndTheirIdsComeAgain) {
  const RequestSpec one{.id = 1, .prompt_tokens = 300, .output_tokens = 4};
  const RequestSpec other{.id = 1, .prompt_tokens = 290, .output_tokens = 7};
  EngineOptions options = tiny_options();
  options.layer.deterministic = true;
  const auto alone = [&](const RequestSpec& spec) {
    Engine engine(options);
    engine.submit(spec);
    while (engine.step([] { return 0.0; })) {
    }
    return engine.results()[0].digest;
  };
  const std::uint64_t want_one = alone(one), want_other = alone(other);
  Engine engine(options);
  EXPECT_TRUE(engine.take_ended().empty());
  for (int round = 0; round < 3; ++round) {
    for (const RequestSpec& spec : {one, other}) {
      engine.submit(spec);
      engine.submit({.id = 2, .prompt_tokens = 1000, .output_tokens = 1});
      engine.submit({.id = 3, .prompt_tokens = 10, .output_tokens = 1});
      engine.submit({.id = 4, .prompt_tokens = 10, .output_tokens = 90});
      engine.cancel(3);
      while (engine.results()[0].state != RequestResult::State::kFinished) engine.step([] { return 0.0; });
      const std::vector<RequestResult> taken = engine.take_ended();
      ASSERT_EQ(taken.size(), 3U) << "request 4 still runs";
      EXPECT_EQ(taken[0].digest, spec.output_tokens == one.output_tokens ? want_one : want_other);
      EXPECT_EQ(taken[1].state, RequestResult::State::kRefused);
      EXPECT_EQ(taken[2].state, RequestResult::State::kCancelled);
      EXPECT_EQ(engine.results().size(), 1U);
      EXPECT_ANY_THROW(engine.submit({.id = 4, .prompt_tokens = 1, .output_tokens = 1})) << "it is there";
      engine.cancel(4);
      EXPECT_EQ(engine.take_ended().size(), 1U);
    }
  }
  EXPECT_EQ(engine.pool().free_blocks(), engine.pool().num_blocks());
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
  EXPECT_THAT(error_of([&] { engine.submit({.id = 1, .prompt_tokens = 0, .output_tokens = 1}); }),
              HasSubstr("request 1: prompt tokens: got 0"));
  EXPECT_THAT(error_of([&] { engine.submit({.id = 1, .prompt_tokens = 1, .output_tokens = -4}); }),
              HasSubstr("request 1: output tokens: got -4"));
  engine.submit({.id = 1, .prompt_tokens = 1, .output_tokens = 1});
  EXPECT_THAT(error_of([&] { engine.submit({.id = 1, .prompt_tokens = 1, .output_tokens = 1}); }),
              HasSubstr("request 1: id: got 1"));
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

/// Keeps every C4A layer's chosen entries by (layer, request, position).
class TopkRows : public EngineObserver {
 public:
  void on_layer(std::int64_t layer, std::span<const StepRow> rows, const ConstTensorView&, const ConstTensorView&,
                const ConstTensorView& topk) override {
    if (topk.absent()) return;
    for (std::size_t t = 0; t < rows.size(); ++t) {
      const auto* row = topk.as<std::int32_t>() + static_cast<std::int64_t>(t) * topk.stride[0];
      by_row[{layer, rows[t].request, rows[t].position}].assign(row, row + topk.size(1));
    }
  }
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t>, std::vector<std::int32_t>> by_row;
};

TEST(Engine, IndexCacheReusesTheChoosersTopk) {
  EngineOptions options = tiny_options();
  options.layers = {1, 2, 3};  // C4A, C128A, C4A
  std::map<std::int64_t, bool> same;
  for (const std::int64_t freq : {1, 2}) {
    options.model.index_topk_freq = freq;
    TopkRows rows;
    const std::vector<RequestSpec> specs{{.id = 0, .prompt_tokens = 300, .output_tokens = 3}};
    Engine engine(options, &rows);
    engine.submit(specs[0]);
    while (engine.step([] { return 0.0; })) {
    }
    EXPECT_EQ(engine.results()[0].state, RequestResult::State::kFinished);
    same[freq] = true;
    for (const auto& [key, chosen] : rows.by_row) {
      if (std::get<0>(key) == 0)
        same[freq] = same[freq] && rows.by_row.at({2, std::get<1>(key), std::get<2>(key)}) == chosen;
    }
    EXPECT_EQ(engine.pool().layout().find(2, CacheRole::kIndex) == nullptr, freq == 2)
        << "a layer that reuses keeps no index rows";
    EXPECT_EQ(engine.weights(2).index_wq_b.absent(), freq == 2) << "and has no weights of an indexer";
  }
  EXPECT_FALSE(same[1]);
  EXPECT_TRUE(same[2]);
  options.layers = {3, 2};
  EXPECT_THAT(error_of([&] { Engine e(options); }), HasSubstr("got layer 3, which reuses an earlier layer's top-k"));
}

TEST(Engine, APatternSaysWhichLayersReuseTheTopk) {
  EngineOptions options = tiny_options();
  options.model.num_layers = 5;
  options.model.compress_ratios = {4, 4, 128, 4, 4};
  options.layers = {0, 1, 2, 3, 4};
  options.index_topk_pattern = "FSFS";
  const std::vector<RequestSpec> specs{{.id = 0, .prompt_tokens = 300, .output_tokens = 3}};
  TopkRows rows;
  Engine engine(options, &rows);
  engine.submit(specs[0]);
  while (engine.step([] { return 0.0; })) {
  }
  EXPECT_EQ(engine.results()[0].state, RequestResult::State::kFinished);
  bool apart = false;
  for (const auto& [key, chosen] : rows.by_row) {
    const auto& [layer, request, position] = key;
    if (layer == 0 || layer == 3) {
      EXPECT_EQ(rows.by_row.at({layer + 1, request, position}), chosen);
    }
    if (layer == 0) apart = apart || rows.by_row.at({3, request, position}) != chosen;
  }
  EXPECT_TRUE(apart);
  for (const std::int64_t layer : {0, 1, 3, 4})
    EXPECT_EQ(engine.pool().layout().find(layer, CacheRole::kIndex) == nullptr, layer == 1 || layer == 4) << layer;

  RunCheck check(specs, options, 6);
  Engine checked(options, &check);
  checked.submit(specs[0]);
  while (checked.step([] { return 0.0; })) {
  }
  EXPECT_TRUE(check.finish().passed);

  // F alone is a model without a frequency, whatever the model says.
  options.index_topk_pattern = "FFFF";
  options.model.index_topk_freq = 3;
  for (const LayerConfig& config : layer_configs(options)) EXPECT_FALSE(config.reuses_topk);
  for (const char* pattern : {"SFFF", "FSF", "FSFSF", "FxFS", "fsfs"}) {
    options.index_topk_pattern = pattern;
    EXPECT_THAT(error_of([&] { Engine e(options); }), HasSubstr("index_topk_pattern: got " + std::string(pattern) +
                                                                ", expected F and then F or S, 4 in all"));
  }
}

TEST(Engine, ASavedRequestGoesOnElsewhereBitForBit) {
  EngineOptions options = tiny_options();
  options.layers = {0, 1, 2, 3};
  options.speculative = 2;
  options.layer.deterministic = true;  // it has other neighbours on its ways
  const auto now = [] { return 0.0; };
  const RequestSpec moved{.id = 5, .prompt_tokens = 150, .output_tokens = 40};
  Engine alone(options);
  alone.submit(moved);
  while (alone.step(now)) {
  }
  const RequestResult want = alone.results()[0];

  for (const int steps : {1, 2, 3, 9}) {  // in the prompt, at its end, among the output
    Engine from(options);
    from.submit({.id = 1, .prompt_tokens = 60, .output_tokens = 30});
    from.submit(moved);
    for (int i = 0; i < steps; ++i) from.step(now);
    const std::vector<std::uint8_t> snapshot = from.save_request(5);
    from.cancel(5);
    while (from.step(now)) {
    }
    EXPECT_EQ(from.results()[1].state, RequestResult::State::kCancelled);
    EXPECT_EQ(from.pool().free_blocks(), from.pool().num_blocks());

    options.num_blocks = 700;
    Engine to(options);
    to.submit({.id = 2, .prompt_tokens = 33, .output_tokens = 50});
    to.step(now);
    EXPECT_EQ(to.restore_request(snapshot), 5);
    while (to.step(now)) {
    }
    EXPECT_EQ(to.results()[1].state, RequestResult::State::kFinished);
    EXPECT_EQ(to.results()[1].generated, want.generated);
    EXPECT_EQ(to.results()[1].digest, want.digest) << steps << " steps before the move";
    EXPECT_EQ(to.totals().recomputed_tokens, 0) << "the snapshot's last token was computed again";
    EXPECT_THAT(error_of([&] { to.restore_request(snapshot); }), HasSubstr("id of the snapshot: got 5"));
    EXPECT_THAT(error_of([&] { to.save_request(5); }), HasSubstr("id: got 5, expected a running request's"));
  }
}

TEST(Engine, RefusesASnapshotItCannotTake) {
  const EngineOptions options = tiny_options();
  Engine from(options);
  from.submit({.id = 5, .prompt_tokens = 150, .output_tokens = 40});
  from.step([] { return 0.0; });
  const std::vector<std::uint8_t> good = from.save_request(5);
  const auto refused = [](const EngineOptions& o, const std::vector<std::uint8_t>& snapshot) {
    Engine to(o);
    std::string text = error_of([&] { to.restore_request(snapshot); });
    EXPECT_TRUE(to.idle());
    EXPECT_EQ(to.pool().free_blocks(), to.pool().num_blocks());
    return text;
  };
  std::vector<std::uint8_t> damaged = good;
  damaged[damaged.size() / 2] ^= 4;
  EXPECT_THAT(refused(options, damaged), HasSubstr("checksum"));
  EngineOptions other = options;
  other.num_blocks = 20;
  EXPECT_THAT(refused(other, good), HasSubstr("request 5: needs"));
  other = options;
  other.max_model_len = 100;
  EXPECT_THAT(refused(other, good), HasSubstr("expected at most max_model_len 100"));
  other = options;
  other.layers = {0, 1};
  EXPECT_THAT(refused(other, good), HasSubstr("layers"));
  other = options;
  other.layer.caches.rows = &bf16_rows();
  EXPECT_THAT(refused(other, good), HasSubstr("fp8_ds_mla"));
  // A snapshot that no engine wrote: its note says nothing of the request.
  KvPool pool(from.pool().layout(), 100);
  RequestBlocks blocks(pool.layout());
  ASSERT_TRUE(blocks.reserve(pool, 0, 96));
  EXPECT_THAT(refused(options, save_snapshot(pool, blocks, 96)), HasSubstr("bytes of the note: got 0"));
}

TEST(Engine, ANoteThatLiesCostsNoMemory) {
  const EngineOptions options = tiny_options();
  Engine from(options);
  from.submit({.id = 5, .prompt_tokens = 150, .output_tokens = 40});
  from.step([] { return 0.0; });
  const std::vector<std::uint8_t> good = from.save_request(5);
  std::uint32_t caches = 0;
  std::memcpy(&caches, good.data() + 12, sizeof caches);
  const std::size_t note = 48 + 104 * static_cast<std::size_t>(caches);  // docs/snapshot.md
  const auto refused = [&](std::size_t word, std::uint64_t value) {
    std::vector<std::uint8_t> forged = good;
    std::memcpy(forged.data() + note + 8 * word, &value, sizeof value);
    const std::uint64_t sum = snapshot_records::checksum(std::span(forged).first(forged.size() - 8));
    std::memcpy(forged.data() + forged.size() - 8, &sum, sizeof sum);
    Engine to(options);
    return error_of([&] { to.restore_request(forged); });
  };
  ASSERT_EQ(refused(3, 40), "no error");
  for (const int bits : {31, 32, 39}) EXPECT_THAT(refused(3, std::uint64_t{1} << bits), HasSubstr("max_model_len"));
  EXPECT_THAT(refused(3, std::uint64_t{1} << 50), HasSubstr("output tokens: got 1125899906842624"));
  for (const double bad : {std::nan(""), -1.0, std::numeric_limits<double>::infinity()})
    EXPECT_THAT(refused(8, std::bit_cast<std::uint64_t>(bad)), HasSubstr("arrival seconds"));
}

TEST(Engine, ARefusedRequestCostsNoMemory) {
  Engine engine(tiny_options());
  engine.submit({.id = 1, .prompt_tokens = std::int64_t{1} << 50, .output_tokens = 1});
  EXPECT_EQ(engine.results()[0].state, RequestResult::State::kRefused);
  EXPECT_THAT(engine.results()[0].refusal, HasSubstr("max_model_len"));
}

TEST(Engine, RefusesImplementationsThatDoNotExist) {
  EngineOptions options = tiny_options();
  options.layer.implementations = {{"*", "frob"}};
  EXPECT_THAT(error_of([&] { Engine e(options); }), HasSubstr("implementations: got frob, expected one of "));
  options.layer.implementations = {{"*", "cuda"}};
  EXPECT_THAT(error_of([&] { Engine e(options); }), HasSubstr("got cuda, expected one of "));
  options.layer.implementations = {{"sparse_atention", "ref"}};
  EXPECT_THAT(error_of([&] { Engine e(options); }), HasSubstr("sparse_attention"));
  options.layer.implementations = {{"sparse_attention", "frob"}};
  EXPECT_THAT(error_of([&] { Engine e(options); }), HasSubstr("got frob for sparse_attention, expected one of "));
  options.layer.implementations = {{"*", "ref"}, {"sparse_attention", "cpu"}};
  EXPECT_EQ(error_of([&] { Engine e(options); }), "no error");
}

TEST(Engine, StrictRefusesALayerTwice) {
  EngineOptions options = tiny_options();
  options.layers = {0, 1, 1};
  Engine engine(options);
  options.layer.strict = true;
  EXPECT_EQ(error_of([&] { Engine e(options); }), "Duplicate layer name: layers.1.attn");
}

TEST(Engine, EveryWayOfComputingGivesSoundOutputs) {
  struct Way {
    std::string name;
    std::function<void(EngineOptions&)> set;
  };
  const std::vector<Way> ways{
      {"flashinfer", [](EngineOptions& o) { o.layer.front_end = FrontEnd::kFlashInfer; }},
      {"sm120", [](EngineOptions& o) { o.layer.front_end = FrontEnd::kSm120; }},
      {"gathered", [](EngineOptions& o) { o.layer.gather_prefill = true; }},
      {"fp8 output", [](EngineOptions& o) { o.layer.fp8_output = OutputScale::kF32; }},
      {"fp8 output, ue8m0", [](EngineOptions& o) { o.layer.fp8_output = OutputScale::kUe8m0x4; }},
      {"hadamard", [](EngineOptions& o) { o.model.hadamard = true; }},
      {"mxfp4 index, hadamard",
       [](EngineOptions& o) {
         o.model.hadamard = true;
         o.layer.caches.index = &index_mxfp4_rows();
       }},
      {"mxfp4 index", [](EngineOptions& o) { o.layer.caches.index = &index_mxfp4_rows(); }},
      {"index cache", [](EngineOptions& o) { o.model.index_topk_freq = 2; }},
      {"padded heads", [](EngineOptions& o) { o.layer.padded_heads = 16; }},
      {"strict flashinfer",
       [](EngineOptions& o) {
         o.layer.front_end = FrontEnd::kFlashInfer;
         o.layer.caches.rows = &bf16_rows();
         o.layer.strict = true;
       }},
      {"speculation", [](EngineOptions& o) { o.speculative = 3; }},
      {"adaptive speculation", [](EngineOptions& o) {
         o.speculative = 5;
         o.adaptive_speculation = true;
       }}};
  const std::vector<RequestSpec> specs{{.id = 0, .prompt_tokens = 190, .output_tokens = 20},
                                       {.id = 1, .prompt_tokens = 140, .output_tokens = 30}};
  std::uint64_t plain_digest = 0;
  for (std::size_t i = 0; i <= ways.size(); ++i) {
    EngineOptions options = tiny_options();
    options.layers = {0, 1, 2, 3};
    options.num_blocks = 900;
    if (i > 0) ways[i - 1].set(options);
    const std::string name = i > 0 ? ways[i - 1].name : "plain";
    RunCheck check(specs, options, 12);
    Engine engine(options, &check);
    for (const RequestSpec& spec : specs) engine.submit(spec);
    while (engine.step([] { return 0.0; })) {
    }
    const CheckReport report = check.finish();
    EXPECT_TRUE(report.passed) << name << ": l2 " << report.samples[static_cast<std::size_t>(report.worst)].relative_l2
                               << " of " << report.bound;
    for (const CheckedSample& s : report.samples) EXPECT_TRUE(s.topk_ok) << name << ": " << s.topk_text;
    const std::uint64_t digest = engine.results()[0].digest;
    if (i == 0) plain_digest = digest;
    if (name.find("speculation") != std::string::npos) {
      EXPECT_GT(engine.totals().rejected_drafts, 0) << name;
    } else if (name.find("fp8") != std::string::npos || name.find("index") != std::string::npos) {
      EXPECT_NE(digest, plain_digest) << name << " changed nothing";
    }
  }
}

}  // namespace
}  // namespace smla
