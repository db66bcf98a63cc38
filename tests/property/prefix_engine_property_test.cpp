// Requests that begin with somebody else's prefix: the tokens that are found, and the bits that come out.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <map>
#include <random>

#include "engine/prompt.h"
#include "property/few_cases.h"
#include "property/small_model.h"
#include "sparsemla/engine.h"
#include "sparsemla/run_check.h"

namespace smla {
namespace {

constexpr std::int64_t kUnit = 256;
constexpr std::int64_t kIdTokens = 96;  // of a block of a prompt: its ends fall inside of the cache's blocks

EngineOptions small_options(std::int64_t blocks) {
  EngineOptions o;
  o.model = test::small_model();
  o.layers = {0, 1, 2};
  o.layer.deterministic = true;
  o.max_batched_tokens = 160;
  o.max_seqs = 4;
  o.num_blocks = blocks;
  o.max_model_len = 1200;
  o.prefix_cache = PrefixCacheOptions{.retention_interval = kUnit};
  return o;
}

/// Prompts whose ids are paths through a small tree: an id names a block and all that is before it.
std::vector<RequestSpec> some_requests(unsigned seed, int count) {
  std::mt19937 random(seed);
  std::vector<RequestSpec> specs;
  for (int i = 0; i < count; ++i) {
    RequestSpec spec{.id = i,
                     .prompt_tokens = 200 + static_cast<std::int64_t>(random() % 600),
                     .output_tokens = 1 + static_cast<std::int64_t>(random() % 12),
                     .prompt_id_tokens = kIdTokens};
    std::int64_t path = 1;
    for (std::int64_t at = 0; at + kIdTokens / 2 < spec.prompt_tokens; at += kIdTokens) {
      path = path * 4 + (at % 384 == 288 ? static_cast<std::int64_t>(random() % 2) : 3);
      spec.prompt_ids.push_back(path);
    }
    specs.push_back(std::move(spec));
  }
  return specs;
}

struct Outcome {
  std::map<std::int64_t, std::uint64_t> digests;
  std::vector<RequestResult> results;
  RunTotals totals;
  PrefixCacheStats prefixes;
};

Outcome run(const EngineOptions& options, const std::vector<RequestSpec>& specs) {
  Engine engine(options);
  for (const RequestSpec& s : specs) engine.submit(s);
  for (int i = 0; i < 100000 && engine.step([] { return 0.0; }); ++i) {
  }
  Outcome out{.digests = {}, .results = engine.results(), .totals = engine.totals(), .prefixes = {}};
  for (const RequestResult& r : out.results) {
    EXPECT_EQ(r.state, RequestResult::State::kFinished) << r.refusal;
    EXPECT_EQ(r.generated, r.spec.output_tokens);
    out.digests[r.spec.id] = r.digest;
  }
  if (engine.prefix_cache() != nullptr) out.prefixes = engine.prefix_cache()->stats();
  EXPECT_EQ(engine.pool().free_blocks() + out.prefixes.blocks, options.num_blocks) << "blocks were lost";
  EXPECT_EQ(engine.pool().blocks().idle_blocks(), out.prefixes.blocks);
  return out;
}

Outcome run_without(EngineOptions options, const std::vector<RequestSpec>& specs) {
  options.prefix_cache.reset();
  return run(options, specs);
}

/// Blocks with which the largest request can run alone.
std::int64_t least_blocks(const EngineOptions& options, const std::vector<RequestSpec>& specs) {
  std::vector<LayerConfig> configs;
  for (const std::int64_t layer : options.layers) configs.push_back(options.model.layer(layer));
  const KvLayout layout = make_kv_layout(configs, options.layer.caches);
  std::int64_t least = 0;
  for (const RequestSpec& s : specs) least = std::max(least, blocks_needed(layout, s, options.max_batched_tokens));
  return least;
}

/// Tokens that a request finds behind earlier ones, each of which was computed as a whole.
std::int64_t allowed(const PrefixCacheOptions& rule, const std::vector<RequestSpec>& specs, std::size_t index) {
  std::int64_t best = 0;
  for (std::size_t i = 0; i < index; ++i) {
    const std::int64_t most = std::min({common_prefix(specs[i], specs[index]), specs[index].prompt_tokens - 1});
    for (std::int64_t n = kUnit; n <= most; n += kUnit) {
      const bool end = rule.keep_prompt_end && n == specs[i].prompt_tokens / kUnit * kUnit;
      if (n % rule.retention_interval == 0 || end) best = std::max(best, n);
    }
  }
  return best;
}

TEST(PrefixEngineProperty, HitsAreWhatTheIdsAllow) {
  for (const std::int64_t interval : {kUnit, 2 * kUnit}) {
    for (const bool end : {true, false}) {
      const auto specs = some_requests(7, 8);
      EngineOptions options = small_options(20000);
      options.max_seqs = 1;
      options.prefix_cache = PrefixCacheOptions{.retention_interval = interval, .keep_prompt_end = end};
      const Outcome out = run(options, specs);
      std::int64_t sum = 0;
      std::int64_t requests = 0;
      for (std::size_t i = 0; i < specs.size(); ++i) {
        const std::int64_t want = allowed(*options.prefix_cache, specs, i);
        EXPECT_EQ(out.results[i].cached_tokens, want) << i;
        sum += want;
        requests += want > 0 ? 1 : 0;
      }
      EXPECT_GT(sum, 0);
      EXPECT_EQ(out.totals.cached_tokens, sum);
      EXPECT_EQ(out.totals.cached_requests, requests);
      std::int64_t prompts = 0;
      for (const RequestSpec& s : specs) prompts += s.prompt_tokens;
      EXPECT_EQ(out.totals.prefill_tokens, prompts - sum);
    }
  }
}

TEST(PrefixEngineProperty, OutputsAreThoseOfARunWithoutTheCache) {
  test::check_few("prefix cache, drafts, short hashes", 3, [] {
    const auto seed = *rc::gen::arbitrary<unsigned>();
    const auto specs = some_requests(seed, 6);
    EngineOptions options = small_options(20000);
    options.speculative = static_cast<int>(seed % 3);
    options.draft_acceptance = 0.5;
    options.max_seqs = 1 + seed % 3;
    options.prefix_cache->hash_bits = seed % 2 == 0 ? 1 : 64;
    const Outcome cached = run(options, specs);
    RC_ASSERT(cached.totals.cached_tokens > 0);
    RC_ASSERT(cached.digests == run_without(options, specs).digests);
  });
}

TEST(PrefixEngineProperty, PreemptedRequestsFindTheirOwnPrefix) {
  std::vector<RequestSpec> specs;  // few blocks to begin with, many at the end, nothing shared
  for (std::int64_t i = 0; i < 4; ++i) specs.push_back({.id = i, .prompt_tokens = 700 + 10 * i, .output_tokens = 120});
  EngineOptions options = small_options(20000);
  const Outcome plenty = run_without(options, specs);
  const std::int64_t least = least_blocks(options, specs);
  RunTotals sum;
  std::int64_t evicted = 0;
  for (const std::int64_t more : {20, 50, 80}) {
    for (const int drafts : {0, 3}) {
      options.num_blocks = least + more;
      options.speculative = drafts;
      options.draft_acceptance = 0.5;
      const Outcome scarce = run(options, specs);
      EXPECT_EQ(scarce.digests, plenty.digests);
      EXPECT_EQ(scarce.totals.cached_tokens, 0);
      sum.preemptions += scarce.totals.preemptions;
      sum.recovered_tokens += scarce.totals.recovered_tokens;
      evicted += scarce.prefixes.evicted_tails;
    }
  }
  EXPECT_GT(sum.preemptions, 0);
  EXPECT_GT(sum.recovered_tokens, 0);
  EXPECT_GT(evicted, 0);
}

/// No block more than the longest request needs: what is kept must never stand in its way.
/// A request that waits for blocks is looked up once an admission, however many steps it waits.
TEST(PrefixEngineProperty, WaitingRequestsAreCountedOnce) {
  std::vector<RequestSpec> specs = some_requests(7, 5);
  for (RequestSpec& s : specs) s.output_tokens = 40;
  EngineOptions options = small_options(0);
  options.num_blocks = least_blocks(options, specs);
  const Outcome out = run(options, specs);
  const auto admissions = static_cast<std::int64_t>(specs.size()) + out.totals.preemptions;
  EXPECT_GT(out.totals.steps, 2 * admissions);
  EXPECT_EQ(out.prefixes.lookups, admissions);
  EXPECT_EQ(out.prefixes.hit_tokens, out.totals.cached_tokens + out.totals.recovered_tokens);
}

TEST(PrefixEngineProperty, APoolOfOneRequestsSizeIsEnough) {
  const auto specs = some_requests(11, 4);
  EngineOptions options = small_options(20000);
  const Outcome plenty = run_without(options, specs);
  for (const std::int64_t chunk : {7, 160}) {
    options.max_batched_tokens = chunk;
    options.num_blocks = least_blocks(options, specs);
    EXPECT_EQ(run(options, specs).digests, plenty.digests) << chunk;
  }
}

TEST(PrefixEngineProperty, ALentPrefixMovesWithItsRequest) {
  auto specs = some_requests(5, 2);
  for (RequestSpec& s : specs) {
    s.prompt_tokens = 600;
    s.prompt_ids = {1, 2, 3, 4, 5, 6};
  }
  specs[1].output_tokens = 20;
  const EngineOptions options = small_options(20000);
  const Outcome want = run_without(options, specs);
  Engine here(options);
  const auto now = [] { return 0.0; };
  here.submit(specs[0]);
  while (here.step(now)) {
  }
  here.submit(specs[1]);
  here.step(now);
  ASSERT_GT(here.results()[1].cached_tokens, 0);
  const std::vector<std::uint8_t> snapshot = here.save_request(1);
  EngineOptions other = options;
  other.prefix_cache.reset();
  Engine there(other);
  EXPECT_EQ(there.restore_request(snapshot), 1);
  while (there.step(now)) {
  }
  EXPECT_EQ(there.results()[0].digest, want.digests.at(1));
  while (here.step(now)) {
  }
  EXPECT_EQ(here.results()[1].digest, want.digests.at(1));
}

TEST(PrefixEngineProperty, SamplesOfLentRowsAreChecked) {
  const auto specs = some_requests(7, 6);
  const EngineOptions options = small_options(20000);
  RunCheck check(specs, options, 24);
  Engine engine(options, &check);
  for (const RequestSpec& s : specs) engine.submit(s);
  while (engine.step([] { return 0.0; })) {
  }
  EXPECT_GT(engine.totals().cached_tokens, 0);
  const CheckReport report = check.finish();
  EXPECT_TRUE(report.passed);
  EXPECT_GT(report.computed, 10);
}

}  // namespace
}  // namespace smla
