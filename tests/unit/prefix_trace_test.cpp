// The bundled conversation trace at full lengths through the scheduler and the prefix cache, without layers.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "engine/prompt.h"
#include "engine/scheduler.h"
#include "property/prefix_model.h"
#include "sparsemla/trace.h"

namespace smla {
namespace {

std::vector<RequestSpec> conversation() {
  std::vector<RequestSpec> specs;
  for (const TraceRequest& t : read_trace(SMLA_SOURCE_DIR "/data/conversation.jsonl")) {
    specs.push_back({.id = static_cast<std::int64_t>(specs.size()),
                     .prompt_tokens = t.input_length,
                     .output_tokens = t.output_length,
                     .prompt_ids = t.hash_ids,
                     .prompt_id_tokens = kTraceBlockTokens});
  }
  return specs;
}

/// What the trace's ids and the rule allow when requests run one after the other; nothing of the cache's is used.
std::vector<std::int64_t> allowed(const std::vector<RequestSpec>& specs, std::int64_t interval, bool prompt_end) {
  std::map<std::pair<std::int64_t, std::int64_t>, bool> kept;  // id of the last block and the position in the prompt
  std::vector<std::int64_t> out;
  for (const RequestSpec& s : specs) {
    const auto name = [&](std::int64_t position) {
      return std::pair(s.prompt_ids[static_cast<std::size_t>((position - 1) / kTraceBlockTokens)], position);
    };
    std::int64_t best = 0;
    for (std::int64_t n = 256; n < s.prompt_tokens; n += 256) best = kept.contains(name(n)) ? n : best;
    out.push_back(best);
    for (std::int64_t n = 256; n <= s.prompt_tokens; n += 256) {
      if (n % interval == 0 || (prompt_end && n == s.prompt_tokens / 256 * 256)) kept[name(n)] = true;
    }
  }
  return out;
}

/// Steps until all are done, as Engine::step without its layers.
std::vector<std::int64_t> serve(const std::vector<RequestSpec>& specs, std::int64_t blocks,
                                const PrefixCacheOptions& rule, std::int64_t seats, PrefixCacheStats& stats) {
  KvPool pool(test::groups_alone(), blocks);
  PrefixCache prefixes(pool.layout(), pool.blocks(), rule);
  Scheduler scheduler(pool, 8192, seats, 0, false, &prefixes);
  std::vector<std::unique_ptr<Request>> requests;
  for (const RequestSpec& spec : specs) {
    requests.push_back(std::make_unique<Request>(spec, pool.layout()));
    requests.back()->accept();
    scheduler.add(requests.back().get());
  }
  while (!scheduler.idle()) {
    for (const Scheduled& part : scheduler.schedule()) {
      Request& r = *part.request;
      const bool emits = r.decoding() || r.computed + part.tokens == r.known();
      const std::int64_t before = r.computed;
      r.computed += part.tokens;
      extend_keys(r.keys, r.result.spec, prefixes.unit(), r.computed);
      prefixes.keep(r.keys, r.blocks, before, r.computed, r.result.spec.prompt_tokens);
      r.blocks.slide(pool, r.computed);
      r.result.generated += emits ? 1 : 0;
      if (r.result.generated >= r.result.spec.output_tokens) scheduler.finish(&r);
    }
  }
  stats = prefixes.stats();
  EXPECT_EQ(pool.blocks().idle_blocks(), pool.num_blocks() - pool.free_blocks());
  std::vector<std::int64_t> lent;
  for (const auto& r : requests) lent.push_back(r->result.cached_tokens);
  return lent;
}

std::int64_t sum(const std::vector<std::int64_t>& v) {
  std::int64_t out = 0;
  for (const std::int64_t n : v) out += n;
  return out;
}

TEST(PrefixTrace, HitsOfTheBundledTraceAreWhatItsIdsAllow) {
  const std::vector<RequestSpec> specs = conversation();
  ASSERT_EQ(specs.size(), 400U);
  PrefixCacheStats stats;
  for (const auto& [interval, end, expected] :
       {std::tuple{256, true, 781312}, {512, true, 781312}, {2048, true, 578560}, {4096, false, 516096}}) {
    const std::vector<std::int64_t> want = allowed(specs, interval, end);
    EXPECT_EQ(sum(want), expected);
    EXPECT_EQ(serve(specs, 200'000, {.retention_interval = interval, .keep_prompt_end = end}, 1, stats), want)
        << interval;
    EXPECT_EQ(stats.evicted_tails, 0);
  }
}

TEST(PrefixTrace, ManyAtOnceFindNoMoreAndFewBlocksFindLess) {
  const std::vector<RequestSpec> specs = conversation();
  PrefixCacheStats stats;
  const std::int64_t most = sum(allowed(specs, 512, true));
  const std::int64_t at_once = sum(serve(specs, 200'000, {}, 16, stats));
  EXPECT_LE(at_once, most);
  EXPECT_GT(at_once, most / 2);
  const std::int64_t tight = sum(serve(specs, 12'000, {}, 16, stats));
  EXPECT_GT(stats.evicted_tails, 0);
  EXPECT_LE(tight, at_once);
  EXPECT_GT(tight, 0);
}

}  // namespace
}  // namespace smla
