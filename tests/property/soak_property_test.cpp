// An engine under load: what a soak sees when all is right, and that it sees what is wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "engine/soak.h"
#include "property/small_model.h"

namespace smla {
namespace {

using testing::HasSubstr;

/// Prompts that begin alike. All come at once, so that steps alone decide what happens.
std::vector<RequestSpec> some_requests() {
  std::mt19937 random(3);
  std::vector<RequestSpec> specs;
  for (std::int64_t i = 0; i < 12; ++i) {
    specs.push_back({.id = 10 + i,
                     .prompt_tokens = 20 + static_cast<std::int64_t>(random() % 500),
                     .output_tokens = 1 + static_cast<std::int64_t>(random() % 30),
                     .prompt_ids = {1, 2, 3 + i % 2},
                     .prompt_id_tokens = 128});
  }
  return specs;
}

/// Hardly more blocks than the longest request needs.
EngineOptions loaded_options() {
  EngineOptions o;
  o.model = test::small_model();
  o.layers = {0, 1, 2};
  o.layer.deterministic = true;
  o.layer.threads = 1;
  o.max_batched_tokens = 160;
  o.max_seqs = 5;
  o.max_model_len = 700;
  o.speculative = 2;
  o.draft_acceptance = 0.5;
  o.prefix_cache = PrefixCacheOptions{.retention_interval = 256};
  const KvLayout layout = make_kv_layout(layer_configs(o), o.layer.caches);
  for (const RequestSpec& s : some_requests())
    o.num_blocks = std::max(o.num_blocks, blocks_needed(layout, s, o.max_batched_tokens) + 20);
  return o;
}

struct Outcome {
  SoakReport report;
  std::vector<SoakCheck> checks;
  bool passed(const std::string& name) const { return find(name).outcome == SoakCheck::Outcome::kPass; }
  const SoakCheck& find(const std::string& name) const {
    return *std::ranges::find(checks, name, [](const SoakCheck& c) { return c.name; });
  }
};

/// What the requests give alone, on each kind of ranks.
const std::map<std::int64_t, std::uint64_t>& alone(const ParallelOptions& parallel) {
  static std::map<std::pair<int, int>, std::map<std::int64_t, std::uint64_t>> known;
  auto& digests = known[{parallel.tensor, parallel.context}];
  EngineOptions options = loaded_options();
  if (digests.empty()) digests = digests_alone(options, parallel, some_requests());
  return digests;
}

Outcome run(const EngineOptions& options, const SoakOptions& how, const ParallelOptions& parallel = {}) {
  const auto specs = some_requests();
  EXPECT_EQ(alone(parallel).size(), specs.size());
  ParallelEngine engine(options, parallel);
  Outcome out{.report = soak(engine, options, specs, alone(parallel), how), .checks = {}};
  out.checks = soak_checks(out.report, options, how);
  return out;
}

/// Memory that stays as it is: a short run is all warm-up.
SoakOptions short_soak(std::int64_t arrivals) {
  return {.seconds = 3600, .arrivals = arrivals, .cancelled_share = 0.2, .warm_up_steps = 0, .host_bytes = [] {
            return std::int64_t{1} << 20;
          }};
}

/// All checks passed; a soak that saw little says nothing.
void expect_all_is_right(const Outcome& out) {
  for (const SoakCheck& c : out.checks) EXPECT_TRUE(out.passed(c.name)) << c.name << ": " << c.text;
  EXPECT_GT(out.report.finished, 12) << "ids come again";
  EXPECT_GT(out.report.cancelled, 0);
  EXPECT_EQ(out.report.finished + out.report.cancelled, out.report.submitted);
  EXPECT_GT(out.report.totals.preemptions, 0);
  EXPECT_GT(out.report.totals.rejected_drafts, 0);
  EXPECT_LT(out.report.totals.rejected_drafts, out.report.totals.draft_tokens);
}

TEST(SoakProperty, UnderLoadEveryRequestIsWhatItIsAlone) {
  const Outcome out = run(loaded_options(), short_soak(60));
  expect_all_is_right(out);
  EXPECT_GT(out.report.totals.cached_tokens, 0);
  EXPECT_GT(out.report.prefixes.evicted_tails, 0);
}

TEST(SoakProperty, LayersThatDraftUnderLoad) {
  EngineOptions options = loaded_options();
  options.model.num_mtp_layers = 2;
  options.dspark_layers = {3, 4};
  const KvLayout layout = engine_layout(options);
  options.num_blocks = 0;
  for (const RequestSpec& s : some_requests())
    options.num_blocks = std::max(options.num_blocks, blocks_needed(layout, s, options.max_batched_tokens) + 20);
  const Outcome out = run(options, short_soak(30));
  expect_all_is_right(out);
  EXPECT_GT(out.report.totals.draft_blocks, 100);
  EXPECT_GT(out.report.totals.cached_tokens, 0);
}

TEST(SoakProperty, RanksUnderLoad) {
  expect_all_is_right(run(loaded_options(), short_soak(30), {.tensor = 2}));
  EngineOptions options = loaded_options();
  options.prefix_cache.reset();
  expect_all_is_right(run(options, short_soak(30), {.context = 2}));
}

TEST(SoakProperty, OtherOutputsAreSeen) {
  for (const PlantedError planted : {PlantedError::kBlock, PlantedError::kPosition}) {
    EngineOptions options = loaded_options();
    options.planted_error = planted;
    const Outcome out = run(options, short_soak(12));
    EXPECT_FALSE(out.passed("outputs"));
    EXPECT_THAT(out.find("outputs").text, HasSubstr("not so: "));
    EXPECT_FALSE(soak_passed(out.report, options, short_soak(12)));
    EXPECT_TRUE(out.passed("blocks"));
  }
}

TEST(SoakProperty, GrowingMemoryIsSeen) {
  for (const std::int64_t growth : {9, 11}) {  // of 1,000, from the third look on that counts
    SoakOptions how = short_soak(24);
    how.warm_up_share = 0;
    int looks = 0;
    how.host_bytes = [&] { return ++looks < 3 ? std::int64_t{1000} : 1000 + growth; };
    const EngineOptions options = loaded_options();
    ParallelEngine engine(options, {});
    const SoakReport report = soak(engine, options, {some_requests()[0]}, alone({}), how, [&](const SoakReport& r) {
      if (r.finished + r.cancelled == 0) looks = 0;
      return true;
    });
    EXPECT_EQ(soak_passed(report, options, how), growth == 9);
  }
}

TEST(SoakProperty, MemoryIsNotJudgedBeforeTheWarmUpIsOver) {
  SoakOptions how = short_soak(12);
  how.warm_up_steps = 100000;
  const Outcome out = run(loaded_options(), how);
  EXPECT_EQ(out.find("memory").outcome, SoakCheck::Outcome::kSkip);
  EXPECT_TRUE(soak_passed(out.report, loaded_options(), how));
}

TEST(SoakProperty, ARequestThatStaysTooLongIsSeen) {
  SoakOptions how = short_soak(12);
  how.stall_seconds = 1e-9;
  const Outcome out = run(loaded_options(), how);
  EXPECT_FALSE(out.passed("progress"));
  EXPECT_FALSE(out.passed("blocks"));
  EXPECT_THAT(out.find("progress").text, HasSubstr("has been there for"));
}

TEST(SoakProperty, LaterRoundsComeAsInTheTrace) {
  const EngineOptions options = loaded_options();
  std::vector<RequestSpec> specs = some_requests();
  specs.resize(2);
  specs[1].arrival_seconds = 0.2;  // so that the next round begins after 0.4
  ParallelEngine engine(options, {});
  const SoakReport report = soak(engine, options, specs, alone({}), short_soak(6));
  EXPECT_EQ(report.submitted, 6);
  EXPECT_GE(report.wall_seconds, 0.6);
}

TEST(SoakProperty, AnInterruptedSoakGivesEverythingBack) {
  const EngineOptions options = loaded_options();
  ParallelEngine engine(options, {});
  const SoakReport report = soak(engine, options, some_requests(), alone({}), short_soak(0),
                                 [](const SoakReport& so_far) { return so_far.finished < 5; });
  EXPECT_TRUE(report.interrupted);
  EXPECT_EQ(report.lost_blocks, 0);
  EXPECT_TRUE(engine.idle());
  EXPECT_EQ(report.finished + report.cancelled, report.submitted);
}

TEST(SoakProperty, WantsDeterministicResultsAndRequestsThatCanRun) {
  EngineOptions options = loaded_options();
  ParallelEngine engine(options, {});
  EXPECT_THROW(soak(engine, options, {}, {}, short_soak(1)), InvalidArgument);
  EXPECT_THROW(soak(engine, options, some_requests(), {}, short_soak(1)), InvalidArgument);
  options.layer.deterministic = false;
  EXPECT_THROW(soak(engine, options, some_requests(), alone({}), short_soak(1)), InvalidArgument);
}

TEST(Soak, ResidentMemoryCountsWhatIsWritten) {
  const std::int64_t before = resident_bytes();
  EXPECT_GT(before, 0);
  std::vector<char> block(64 << 20, 1);
  EXPECT_GT(resident_bytes(), before + (60 << 20)) << block[1000];
}

}  // namespace
}  // namespace smla
