#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <map>

#include "property/few_cases.h"
#include "property/small_model.h"
#include "sparsemla/engine.h"
#include "sparsemla/run_check.h"

namespace smla {
namespace {

EngineOptions small_options(std::int64_t max_model_len) {
  EngineOptions o;
  o.model = test::small_model();
  o.layers = {0, 1, 2};
  o.layer.deterministic = true;
  o.layer.implementations = {{"projection", "ref"}};
  o.max_batched_tokens = 64;
  o.max_seqs = 8;
  o.num_blocks = 4000;
  o.max_model_len = max_model_len;
  return o;
}

struct Outcome {
  std::map<std::int64_t, std::uint64_t> digests;
  RunTotals totals;
};

Outcome run(const EngineOptions& options, const std::vector<RequestSpec>& specs) {
  Engine engine(options);
  for (const RequestSpec& s : specs) engine.submit(s);
  for (int i = 0; i < 100000 && engine.step([] { return 0.0; }); ++i) {
  }
  Outcome out{.digests = {}, .totals = engine.totals()};
  for (const RequestResult& r : engine.results()) {
    EXPECT_EQ(r.state, RequestResult::State::kFinished) << r.refusal;
    EXPECT_EQ(r.generated, r.spec.output_tokens);
    out.digests[r.spec.id] = r.digest;
  }
  EXPECT_EQ(engine.pool().free_blocks(), options.num_blocks) << "blocks were lost";
  return out;
}

std::vector<RequestSpec> some_requests(unsigned seed) {
  std::vector<RequestSpec> specs;
  for (int i = 0; i < 4; ++i) {
    seed = seed * 1664525U + 1013904223U;
    specs.push_back({.id = i,
                     .arrival_seconds = 0,
                     .prompt_tokens = 1 + (seed >> 8) % 170,
                     .output_tokens = 1 + (seed >> 20) % 20});
  }
  return specs;
}

std::int64_t longest(const std::vector<RequestSpec>& specs) {
  std::int64_t n = 0;
  for (const RequestSpec& s : specs) n = std::max(n, s.positions());
  return n;
}

TEST(EngineProperty, PreemptionChangesNoOutput) {
  test::check_few("preemption", 3, [] {
    const auto specs = some_requests(*rc::gen::arbitrary<unsigned>());
    EngineOptions options = small_options(longest(specs));
    const Outcome plenty = run(options, specs);
    RC_ASSERT(plenty.totals.preemptions == 0);
    const KvLayout layout =
        make_kv_layout(std::vector<LayerConfig>{options.model.layer(0), options.model.layer(1), options.model.layer(2)},
                       options.layer.caches);
    options.num_blocks = 0;
    for (const RequestSpec& s : specs)
      options.num_blocks = std::max(options.num_blocks, blocks_needed(layout, s, options.max_batched_tokens));
    const Outcome scarce = run(options, specs);
    RC_ASSERT(scarce.digests == plenty.digests);
    RC_CLASSIFY(scarce.totals.preemptions > 0, "preempted");
  });
}

TEST(EngineProperty, ATightPoolDoesPreempt) {
  const std::vector<RequestSpec> specs{{.id = 0, .prompt_tokens = 100, .output_tokens = 40},
                                       {.id = 1, .prompt_tokens = 100, .output_tokens = 40}};
  EngineOptions options = small_options(longest(specs));
  const Outcome plenty = run(options, specs);
  const KvLayout layout =
      make_kv_layout(std::vector<LayerConfig>{options.model.layer(0), options.model.layer(1), options.model.layer(2)},
                     options.layer.caches);
  options.num_blocks = blocks_needed(layout, specs[0], options.max_batched_tokens) + 2;
  const Outcome scarce = run(options, specs);
  EXPECT_GT(scarce.totals.preemptions, 0);
  EXPECT_GT(scarce.totals.recomputed_tokens, 0);
  EXPECT_EQ(scarce.digests, plenty.digests);
}

TEST(EngineProperty, BatchCompositionChangesNoOutput) {
  test::check_few("batch order, chunk size, speculation", 3, [] {
    const auto seed = *rc::gen::arbitrary<unsigned>();
    auto specs = some_requests(seed);
    EngineOptions options = small_options(longest(specs));
    const Outcome base = run(options, specs);
    std::ranges::reverse(specs);
    options.max_batched_tokens = 5 + seed % 40;
    options.max_seqs = 1 + seed % 4;
    options.speculative = static_cast<int>(seed % 4);
    RC_ASSERT(run(options, specs).digests == base.digests);
  });
}

TEST(EngineProperty, DraftsAreRejectedAndNothingElseChanges) {
  const std::vector<RequestSpec> specs{{.id = 3, .prompt_tokens = 30, .output_tokens = 60}};
  EngineOptions options = small_options(longest(specs));
  const Outcome plain = run(options, specs);
  for (const double acceptance : {0.0, 0.5, 1.0}) {
    options.speculative = 3;
    options.draft_acceptance = acceptance;
    const Outcome drafted = run(options, specs);
    EXPECT_EQ(drafted.digests, plain.digests);
    EXPECT_EQ(drafted.totals.decode_tokens, plain.totals.decode_tokens);
    EXPECT_EQ(drafted.totals.rejected_drafts == 0, acceptance == 1.0);
    EXPECT_EQ(drafted.totals.rejected_drafts == drafted.totals.draft_tokens, acceptance == 0.0);
  }
}

}  // namespace
}  // namespace smla
