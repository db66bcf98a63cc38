// Prefixes found by hashes: what is lent holds what the request would have written, and nothing is lost.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <array>
#include <memory>
#include <random>

#include "property/few_cases.h"
#include "property/prefix_model.h"
#include "sparsemla/error.h"

namespace smla::test {
namespace {

/// Prompts out of few pieces, so that many begin alike.
Tokens some_tokens(std::mt19937& random, std::int64_t most) {
  Tokens tokens;
  const auto size = static_cast<std::size_t>(1 + random() % static_cast<unsigned>(most));
  while (tokens.size() < size)
    tokens.insert(tokens.end(), random() % 8 == 0 ? 200 : 256, static_cast<std::int32_t>(random() % 2));
  tokens.resize(size);
  return tokens;
}

struct Outcome {
  std::int64_t lent = 0;
  std::int64_t expected = 0;
  std::int64_t preempted = 0;
  PrefixCacheStats stats;
};

/// Requests come, are computed in chunks with drafts, are preempted and end, in a random order.
Outcome serve(std::int64_t blocks, const PrefixCacheOptions& options, unsigned seed, int rounds) {
  std::mt19937 random(seed);
  PrefixHost host(blocks, options);
  std::vector<std::unique_ptr<HostRequest>> running;
  Outcome out;
  for (int round = 0; round < rounds; ++round) {
    if (running.size() < 4 && random() % 3 != 0) {
      Tokens tokens = some_tokens(random, 1500);
      const std::int64_t prompt = 1 + random() % tokens.size();
      running.push_back(std::make_unique<HostRequest>(host.pool().layout(), std::move(tokens), prompt));
      HostRequest& r = *running.back();
      const std::int64_t expected = host.expected(r);
      host.begin(r);
      out.expected += expected;
      out.lent += r.lent;
      EXPECT_LE(r.lent, expected);
    }
    for (std::size_t i = 0; i < running.size();) {
      HostRequest& r = *running[i];
      const std::int64_t accepted = std::min<std::int64_t>(1 + random() % 300, r.size() - r.computed);
      const std::int64_t drafts = random() % 4;
      if (!host.reserve(r, accepted + drafts)) {
        host.end(r);  // preempted, and admitted again at once
        host.begin(r);
        ++out.preempted;
        ++i;
        continue;
      }
      host.compute(r, accepted, drafts);
      if (testing::Test::HasFatalFailure()) return out;
      if (r.computed == r.size() || random() % 20 == 0) {
        host.end(r);
        running.erase(running.begin() + static_cast<std::ptrdiff_t>(i));
      } else {
        ++i;
      }
    }
  }
  for (const auto& r : running) host.end(*r);
  out.stats = host.cache().stats();
  EXPECT_EQ(host.pool().blocks().idle_blocks(), host.pool().num_blocks() - host.pool().free_blocks());
  host.cache().clear();
  EXPECT_EQ(host.pool().free_blocks(), host.pool().num_blocks()) << "blocks were lost";
  const PrefixCacheStats left = host.cache().stats();
  EXPECT_EQ(left.entries, 0);
  EXPECT_EQ(left.tails, 0);
  EXPECT_EQ(left.blocks, 0);
  return out;
}

TEST(PrefixCacheProperty, WithBlocksEnoughHitsAreThoseOfTheRetentionRule) {
  for (const std::int64_t interval : {256, 512, 1024}) {
    for (const bool prompt_end : {true, false}) {
      const Outcome out = serve(60000, {.retention_interval = interval, .keep_prompt_end = prompt_end}, 5, 300);
      EXPECT_EQ(out.lent, out.expected) << interval;
      EXPECT_GT(out.lent, 0) << interval;
      EXPECT_EQ(out.stats.evicted_tails, 0);
      EXPECT_EQ(out.stats.collisions, 0);
      ASSERT_FALSE(HasFailure());
    }
  }
}

TEST(PrefixCacheProperty, ShortHashesMeetAndNothingElseChanges) {
  const Outcome whole = serve(60000, {.retention_interval = 256}, 9, 200);
  for (const int bits : {0, 1, 3}) {
    const Outcome out = serve(60000, {.retention_interval = 256, .hash_bits = bits}, 9, 200);
    EXPECT_EQ(out.lent, whole.lent) << bits;
    EXPECT_EQ(out.stats.entries, whole.stats.entries) << bits;
    EXPECT_GT(out.stats.collisions, 100) << bits;
    ASSERT_FALSE(HasFailure());
  }
}

TEST(PrefixCacheProperty, UnderPressureWhatIsInUseStays) {
  check_few("prefixes in a tight pool", 6, [] {
    const auto seed = *rc::gen::arbitrary<unsigned>();
    // The longest request alone fits: chunks of at most 303 tokens.
    const Outcome out = serve(150, {.retention_interval = 256, .hash_bits = 2}, seed, 300);
    RC_ASSERT(!testing::Test::HasFailure());
    RC_ASSERT(out.stats.evicted_tails > 0);
    RC_ASSERT(out.preempted > 0);
    RC_ASSERT(out.lent > 0);
  });
}

/// Requests of one word a block, in any number, end as they came.
TEST(PrefixCacheProperty, AMillionAdmissionsAndReleasesLeakNothing) {
  constexpr int kAdmissions = 1'000'000;
  const KvLayout layout = groups_alone();
  KvPool pool(layout, 700);
  PrefixCache cache(layout, pool.blocks(), {.retention_interval = 256});
  std::mt19937 random(3);
  std::int64_t lent = 0;
  std::int64_t most_entries = 0;
  for (int i = 0; i < kAdmissions; ++i) {
    RequestBlocks blocks(layout);
    PrefixKeys keys;
    const std::int64_t units = 1 + random() % 3;
    for (std::int64_t u = 0; u < units; ++u) keys.append(std::array<std::uint64_t, 1>{random() % (u == 0 ? 64 : 8)});
    const std::int64_t begin = cache.adopt(keys, units * 256, blocks);
    lent += begin;
    // Rows of one block at a time, as an engine computes them.
    for (std::int64_t at = begin; at < units * 256; at += 256) {
      const std::int64_t missing = blocks.missing(layout, at, at + 256);
      ASSERT_TRUE(missing <= pool.free_blocks() || cache.make_room(missing));
      ASSERT_TRUE(blocks.reserve(pool, at, at + 256));
      cache.keep(keys, blocks, at, at + 256, units * 256);
      blocks.slide(pool, at + 256);
    }
    blocks.clear(pool);
    most_entries = std::max(most_entries, cache.stats().entries);
  }
  const PrefixCacheStats stats = cache.stats();
  EXPECT_EQ(stats.lookups, kAdmissions);
  EXPECT_GT(stats.evicted_tails, kAdmissions / 10);
  EXPECT_GT(lent, 0);
  EXPECT_LE(most_entries, pool.num_blocks());
  EXPECT_EQ(stats.kept_tails - stats.evicted_tails, stats.tails);
  EXPECT_EQ(stats.blocks, pool.num_blocks() - pool.free_blocks());
  cache.clear();
  EXPECT_EQ(pool.free_blocks(), pool.num_blocks());
  for (int g = 0; g < static_cast<int>(layout.groups.size()); ++g) EXPECT_EQ(pool.held(g), 0);
}

}  // namespace
}  // namespace smla::test
