// What several threads of a host may do at once. Its place to fail is the build with ThreadSanitizer (./dev tsan);
// elsewhere it looks at results only.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <thread>

#include "ops/catalog.h"
#include "parity/attention_cases.h"
#include "parity/topk_cases.h"
#include "property/layer_harness.h"
#include "property/small_model.h"
#include "sparsemla/case.h"
#include "sparsemla/engine.h"
#include "sparsemla/ops/index.h"
#include "sparsemla/ops/validate.h"

namespace smla {
namespace {

/// Runs `work` on `count` threads at once; work(i) must not use gtest's fatal assertions.
void on_threads(int count, const std::function<void(int)>& work) {
  std::atomic<int> ready{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      ++ready;
      while (ready < count) std::this_thread::yield();
      work(i);
    });
  }
  for (std::thread& t : threads) t.join();
}

/// OpenMP threads an op may take inside each of these threads.
int inner_threads() {
  const char* given = std::getenv("SMLA_TEST_OMP_THREADS");
  return given == nullptr ? 2 : std::atoi(given);
}

TEST(Threads, PlansAreMadeAndTableReadEverywhere) {
  std::atomic<std::size_t> seen{0};
  on_threads(4, [&](int i) {
    for (int round = 0; round < 20; ++round) {
      for (const OpInfo& op : op_catalog()) seen += op.candidates({}).size();
      const Plan<TopK> plan({.rows = 1 + i, .width = 10, .k = 3});
      const Plan<TopK> copy = plan;
      seen += copy.implementation().size();
      (void)row_format("fp8_ds_mla");
      (void)model_preset("tiny");
    }
  });
  EXPECT_GT(seen, 0U);
}

TEST(Threads, OnePlanRunsOnManyThreads) {
  const cases::TopkCase c{
      .rows = 60, .width = 2000, .k = 64, .padding = 3};  // enough that the op takes threads of its own
  const cases::TopkInputs inputs(c);
  const Plan<TopK> plan(c.problem(), {.threads = inner_threads()});
  std::vector<std::vector<std::int32_t>> results(4, std::vector<std::int32_t>(static_cast<std::size_t>(c.rows * c.k)));
  on_threads(4, [&](int i) {
    for (int round = 0; round < 5; ++round) {
      plan.run({.logits = inputs.view(c),
                .lens = view_of(inputs.lens.data(), {c.rows}),
                .indices = view_of(results[static_cast<std::size_t>(i)].data(), {c.rows, c.k})});
    }
  });
  for (const auto& r : results) EXPECT_EQ(r, results[0]);
}

TEST(Threads, AttentionOverOneCacheWithAWorkspaceEach) {
  attention_cases::AttentionInputs in = attention_cases::make_inputs(
      {.tokens = 4, .heads = 8, .scopes = {{.width = 100}, {.format = "bf16", .width = 40}}});
  const std::vector<std::uint8_t> want = attention_cases::run(in, "", 1).o;
  std::vector<attention_cases::AttentionInputs> each(3, in);
  for (attention_cases::AttentionInputs& mine : each) mine.args();
  std::vector<std::vector<std::uint8_t>> results(3);
  on_threads(3, [&](int i) {
    for (int round = 0; round < 3; ++round) {
      results[static_cast<std::size_t>(i)] =
          attention_cases::run(each[static_cast<std::size_t>(i)], "", inner_threads()).o;
    }
  });
  for (const auto& r : results) EXPECT_EQ(r, want);
}

TEST(Threads, ErrorsAreThrownEverywhere) {
  std::atomic<int> caught{0};
  on_threads(4, [&](int i) {
    for (int round = 0; round < 20; ++round) {
      try {
        if (i % 2 == 0) {
          Plan<TopK>({.rows = -1, .width = 1, .k = 1});
        } else {
          Plan<TopK>({.rows = 1, .width = 1, .k = 1}, {.implementation = "abacus"});
        }
      } catch (const InvalidArgument&) {
        ++caught;
      }
    }
  });
  EXPECT_EQ(caught, 80);
}

TEST(Threads, CallsAreWatchedWhileTheyRun) {
  const std::string folder =
      (std::filesystem::temp_directory_path() / ("smla_threads_" + std::to_string(::getpid()))).string();
  const std::int64_t before = recorded_calls();
  std::atomic<bool> wrong{false};
  on_threads(4, [&](int i) {
    const std::vector<std::int32_t> start{0, 2};
    for (int round = 0; round < 30; ++round) {
      if (i == 0) {  // one thread turns watching on and off
        if (round % 3 == 0) record_calls(folder);
        if (round % 3 == 1) validate_calls(true);
        if (round % 3 == 2) record_calls("");
        continue;
      }
      std::vector<std::int32_t> out(3, 9);
      Plan<TokenToReq>({.requests = 1, .tokens = 3})
          .run({.query_start_loc = view_of(start.data(), {2}), .token_to_req = view_of(out.data(), {3})});
      wrong = wrong || out != std::vector<std::int32_t>{0, 0, 0};
    }
  });
  record_calls("");
  EXPECT_FALSE(wrong);
  EXPECT_GE(recorded_calls(), before);
  std::filesystem::remove_all(folder);
}

LayerOptions options() {
  LayerOptions o;
  o.deterministic = true;
  o.threads = inner_threads();
  return o;
}

TEST(Threads, OneLayerServesSeveralThreads) {
  for (const int ratio : {1, 4, 128}) {
    const test::LayerHarness layer(ratio, options(), {131});
    const test::Steps steps{{{.request = 0, .begin = 0, .end = 128}}, {{.request = 0, .begin = 128, .end = 131}}};
    std::vector<test::Trace> traces(3);
    on_threads(3, [&](int i) {
      traces[static_cast<std::size_t>(i)] = layer.run(steps, {.block_seed = static_cast<unsigned>(i)});
    });
    for (const test::Trace& t : traces) EXPECT_EQ(t.output, traces[0].output);
  }
}

std::uint64_t digest_of_a_run(std::uint64_t seed) {
  EngineOptions o;
  o.model = test::small_model();
  o.layers = {0, 1, 2};
  o.layer = options();
  o.max_batched_tokens = 48;
  o.max_seqs = 4;
  o.num_blocks = 300;
  o.max_model_len = 160;
  o.speculative = 1;
  o.seed = seed;
  Engine engine(o);
  engine.submit({.id = 0, .arrival_seconds = 0, .prompt_tokens = 130, .output_tokens = 3});
  engine.submit({.id = 1, .arrival_seconds = 0, .prompt_tokens = 7, .output_tokens = 6});
  for (int i = 0; i < 1000 && engine.step([] { return 0.0; }); ++i) {
  }
  std::uint64_t digest = 0;
  for (const RequestResult& r : engine.results())
    digest = digest * 31 + (r.state == RequestResult::State::kFinished ? r.digest : 1);
  return digest;
}

TEST(Threads, TwoEnginesAtOnce) {
  const std::uint64_t want[] = {digest_of_a_run(1), digest_of_a_run(2)};
  std::uint64_t got[2] = {};
  on_threads(2, [&](int i) { got[i] = digest_of_a_run(static_cast<std::uint64_t>(i) + 1); });
  EXPECT_EQ(got[0], want[0]);
  EXPECT_EQ(got[1], want[1]);
  EXPECT_NE(got[0], got[1]);
}

}  // namespace
}  // namespace smla
