// DSpark in the engine: layers that draft in blocks before the stack verifies, over context that the stack makes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "property/block_rows.h"
#include "property/small_model.h"
#include "sparsemla/engine.h"
#include "sparsemla/run_check.h"

namespace smla {
namespace {

using test::BlockRows;
using test::expect_same_blocks;
using testing::HasSubstr;

EngineOptions dspark_options() {
  EngineOptions o;
  o.model = test::small_model();
  o.model.num_mtp_layers = 2;
  o.layers = {0, 1, 2};
  o.dspark_layers = {3, 4};
  o.layer.deterministic = true;
  o.layer.threads = 1;
  o.max_batched_tokens = 96;
  o.max_seqs = 4;
  o.num_blocks = 1000;
  o.max_model_len = 400;
  o.speculative = 4;
  o.draft_acceptance = 0.5;
  return o;
}

/// Blocks begin on all sides of a window of 128 tokens and of blocks of 64.
const std::vector<RequestSpec> kRequests{{.id = 0, .prompt_tokens = 170, .output_tokens = 30},
                                         {.id = 1, .prompt_tokens = 1, .output_tokens = 80},
                                         {.id = 2, .prompt_tokens = 120, .output_tokens = 40},
                                         {.id = 3, .prompt_tokens = 60, .output_tokens = 3},
                                         {.id = 4, .prompt_tokens = 90, .output_tokens = 2}};

struct Outcome {
  std::map<std::int64_t, std::uint64_t> digests;
  RunTotals totals;
};

Outcome run(const EngineOptions& options, EngineObserver* observer = nullptr,
            const std::vector<RequestSpec>& specs = kRequests) {
  Engine engine(options, observer);
  for (const RequestSpec& s : specs) engine.submit(s);
  while (engine.step([] { return 0.0; })) {
  }
  Outcome out{.digests = {}, .totals = engine.totals()};
  for (const RequestResult& r : engine.results()) {
    EXPECT_EQ(r.state, RequestResult::State::kFinished) << r.refusal;
    out.digests[r.spec.id] = r.digest;
  }
  const std::int64_t kept = engine.prefix_cache() == nullptr ? 0 : engine.prefix_cache()->stats().blocks;
  EXPECT_EQ(engine.pool().free_blocks() + kept, options.num_blocks) << "blocks were lost";
  return out;
}

TEST(DSparkEngine, OutputsAreThoseWithoutDrafts) {
  EngineOptions options = dspark_options();
  const Outcome drafted = run(options);
  EXPECT_GT(drafted.totals.draft_blocks, 30);
  EXPECT_GT(drafted.totals.rejected_drafts, 0);
  options.dspark_layers.clear();
  EXPECT_EQ(run(options).totals.draft_blocks, 0);
  options.speculative = 0;
  EXPECT_EQ(run(options).digests, drafted.digests);
}

TEST(DSparkEngine, BlocksAreTheFloat64Layers) {
  struct Way {
    const char* name;
    std::function<void(EngineOptions&)> set;
  };
  const std::vector<Way> ways{{"flashmla", [](EngineOptions&) {}},
                              {"flashinfer", [](EngineOptions& o) { o.layer.front_end = FrontEnd::kFlashInfer; }},
                              {"sm120", [](EngineOptions& o) { o.layer.front_end = FrontEnd::kSm120; }},
                              {"float32", [](EngineOptions& o) { o.layer.precision = Precision::kF32; }},
                              {"per-tensor rows, e4m3 q",
                               [](EngineOptions& o) {
                                 o.layer.caches.rows = &fp8_per_tensor_rows();
                                 o.layer.caches.kv_scale = 0.02F;
                                 o.layer.q_scale = 0.02F;
                               }},
                              {"adaptive", [](EngineOptions& o) { o.adaptive_speculation = true; }},
                              {"one layer drafts", [](EngineOptions& o) { o.dspark_layers = {3}; }},
                              {"a layer of the stack drafts", [](EngineOptions& o) { o.dspark_layers = {0}; }}};
  for (const Way& way : ways) {
    SCOPED_TRACE(way.name);
    EngineOptions options = dspark_options();
    way.set(options);
    RunCheck check(kRequests, options, 40);
    run(options, &check);
    const CheckReport report = check.finish();
    EXPECT_EQ(report.computed, 40);
    int drafting = 0;
    for (const CheckedSample& s : report.samples) {
      EXPECT_LE(s.relative_l2, s.bound) << "layer " << s.layer << ", request " << s.request << ", token " << s.position;
      drafting += s.computed && s.layer >= 3 ? 1 : 0;
    }
    EXPECT_EQ(drafting, 40 * std::ssize(options.dspark_layers) / (3 + std::ssize(options.dspark_layers)));
    EXPECT_TRUE(report.passed);
  }
}

TEST(DSparkEngine, APlantedErrorIsSeenInTheBlocks) {
  EngineOptions options = dspark_options();
  options.planted_error = PlantedError::kPosition;
  RunCheck check(kRequests, options, 40);
  run(options, &check);
  bool seen = false;
  for (const CheckedSample& s : check.finish().samples) seen = seen || (s.layer >= 3 && !(s.relative_l2 <= s.bound));
  EXPECT_TRUE(seen);
}

/// A block is a function of its request, its place and its length: neither batch nor chunks, earlier verdicts nor
/// preemptions change a bit of it.
TEST(DSparkEngine, NothingAroundABlockChangesIt) {
  EngineOptions options = dspark_options();
  options.max_batched_tokens = 300;
  BlockRows together;
  run(options, &together);
  EngineOptions other = options;
  other.max_seqs = 1;
  BlockRows alone;
  run(other, &alone);
  EXPECT_EQ(expect_same_blocks(alone, together), alone.by_block.size());

  other = options;
  other.draft_acceptance = 0.9;
  BlockRows accepted;
  run(other, &accepted);
  EXPECT_GT(expect_same_blocks(accepted, together), 10U);

  other = options;
  other.max_batched_tokens = 30;
  const KvLayout layout = engine_layout(other);
  other.num_blocks = 0;
  for (const RequestSpec& s : kRequests)
    other.num_blocks = std::max(other.num_blocks, blocks_needed(layout, s, other.max_batched_tokens) + 3);
  BlockRows scarce;
  EXPECT_GT(run(other, &scarce).totals.preemptions, 0);
  EXPECT_GT(expect_same_blocks(scarce, together), 50U);
}

TEST(DSparkEngine, ALentPrefixBringsItsContext) {
  EngineOptions options = dspark_options();
  options.max_model_len = 700;
  std::vector<RequestSpec> specs;
  for (std::int64_t id = 0; id < 3; ++id)
    specs.push_back({.id = id,
                     .prompt_tokens = 520 + 5 * id,
                     .output_tokens = 12,
                     .prompt_ids = {7, 8, 9, 10},
                     .prompt_id_tokens = 128});
  options.max_seqs = 1;
  BlockRows computed;
  const Outcome plain = run(options, &computed, specs);
  options.prefix_cache = PrefixCacheOptions{.retention_interval = 256};
  BlockRows lent;
  const Outcome cached = run(options, &lent, specs);
  EXPECT_GT(cached.totals.cached_tokens, 0);
  EXPECT_EQ(cached.digests, plain.digests);
  EXPECT_EQ(expect_same_blocks(lent, computed), lent.by_block.size());
  RunCheck check(specs, options, 20);
  run(options, &check, specs);
  EXPECT_TRUE(check.finish().passed);
}

/// Saved before every step, so also where the next block sees one row more than the next token.
TEST(DSparkEngine, AMovedRequestDraftsOn) {
  EngineOptions options = dspark_options();
  options.draft_acceptance = 0;  // one position a step
  const std::vector<RequestSpec> specs{{.id = 5, .prompt_tokens = 186, .output_tokens = 12}};
  BlockRows stayed;
  const Outcome plain = run(options, &stayed, specs);
  BlockRows moved;
  auto engine = std::make_unique<Engine>(options, &moved);
  engine->submit(specs[0]);
  int moves = 0;
  while (true) {
    const bool more = engine->step([] { return 0.0; });
    if (!more || engine->idle()) break;
    const auto snapshot = engine->save_request(5);
    engine = std::make_unique<Engine>(options, &moved);
    engine->restore_request(snapshot);
    ++moves;
  }
  EXPECT_GT(moves, 10);
  EXPECT_EQ(engine->results()[0].digest, plain.digests.at(5));
  EXPECT_EQ(expect_same_blocks(moved, stayed), stayed.by_block.size());

  EngineOptions without = options;
  without.dspark_layers.clear();
  Engine other(without);
  Engine source(options);
  source.submit(specs[0]);
  source.step([] { return 0.0; });
  EXPECT_THROW(other.restore_request(source.save_request(5)), InvalidArgument) << "it has other layers";
}

TEST(DSparkEngine, NamesWhatIsImpossible) {
  const auto error_of = [](const std::function<void(EngineOptions&)>& set) -> std::string {
    EngineOptions options = dspark_options();
    set(options);
    try {
      const Engine engine(options);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  EXPECT_THAT(error_of([](EngineOptions& o) { o.speculative = 0; }),
              HasSubstr("speculative: got 0, expected 1 or more draft tokens with dspark_layers"));
  EXPECT_THAT(error_of([](EngineOptions& o) { o.dspark_layers = {1}; }),
              HasSubstr("dspark_layers: got layer 1 of compress_ratio 4, expected window-only layers"));
  EXPECT_THAT(error_of([](EngineOptions& o) { o.dspark_layers = {5}; }), HasSubstr("got layer 5, expected 0 to 4"));
  EXPECT_EQ(error_of([](EngineOptions& o) {
              o.layer.strict = true;
              o.dspark_layers = {3, 3};
            }),
            "Duplicate layer name: layers.3.attn");
}

}  // namespace
}  // namespace smla
