// Engines on several ranks of this process against one rank: tensor parallel within the rounding of the sum, context
// parallel with the same choice of entries.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "core/host_tensor.h"
#include "property/small_model.h"
#include "sparsemla/parallel_engine.h"
#include "sparsemla/run_check.h"

namespace smla {
namespace {

EngineOptions small_options() {
  EngineOptions o;
  o.model = test::small_model();
  o.model.num_heads = 4;
  o.model.o_groups = 4;
  o.layers = {0, 1, 2};
  o.layer.deterministic = true;
  o.layer.threads = 1;
  o.max_batched_tokens = 64;
  o.max_seqs = 8;
  o.num_blocks = 4000;
  o.max_model_len = 1100;
  return o;
}

/// Prompts without an entry, with fewer entries than ranks, with more than the indexer chooses, over several blocks.
std::vector<RequestSpec> requests() {
  std::vector<RequestSpec> out;
  for (const auto& [prompt, output] : {std::pair(1, 3), {2, 2}, {13, 9}, {130, 12}, {300, 6}, {1037, 5}})
    out.push_back({.id = static_cast<std::int64_t>(out.size()), .prompt_tokens = prompt, .output_tokens = output});
  return out;
}

/// The outputs and choices of all layers by place.
struct Seen : EngineObserver {
  struct Row {
    std::vector<float> input, output;
    std::vector<std::int32_t> topk;
  };
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t>, Row> rows;

  static std::vector<float> numbers(const ConstTensorView& v, std::int64_t row) {
    std::vector<float> out;
    for (std::int64_t i = row * v.stride[0]; i < row * v.stride[0] + v.size(1); ++i)
      out.push_back(v.dtype == DType::kF32 ? v.as<float>()[i] : to_float(v.as<BF16>()[i]));
    return out;
  }
  void on_layer(std::int64_t layer, std::span<const StepRow> batch, const ConstTensorView& input,
                const ConstTensorView& output, const ConstTensorView& topk) override {
    for (std::size_t t = 0; t < batch.size(); ++t) {
      if (batch[t].rejected) continue;
      Row& row = rows[{batch[t].request, batch[t].position, layer}];
      row.input = numbers(input, static_cast<std::int64_t>(t));
      row.output = numbers(output, static_cast<std::int64_t>(t));
      if (topk.absent()) continue;
      const auto* chosen = topk.as<std::int32_t>() + static_cast<std::int64_t>(t) * topk.stride[0];
      row.topk.assign(chosen, chosen + topk.size(1));
    }
  }
};

struct Outcome {
  Seen seen;
  std::vector<RequestResult> results;
  std::vector<std::int64_t> peak_full;  ///< blocks of compressed and index rows, of each rank
};

Outcome run(const EngineOptions& options, const ParallelOptions& parallel,
            const std::vector<RequestSpec>& specs = requests()) {
  Outcome out;
  ParallelEngine engine(options, parallel, &out.seen);
  for (const RequestSpec& s : specs) engine.submit(s);
  while (engine.step([] { return 0.0; })) {
  }
  out.results = engine.engine().results();
  for (int r = 0; r < engine.ranks(); ++r) {
    out.peak_full.push_back(engine.engine(r).pool().peak(0));
    EXPECT_EQ(engine.engine(r).pool().free_blocks(), options.num_blocks) << "blocks of rank " << r << " were lost";
    const auto results = engine.engine(r).results();
    for (std::size_t i = 0; i < results.size(); ++i) {
      EXPECT_EQ(results[i].state, RequestResult::State::kFinished) << results[i].refusal;
      EXPECT_EQ(results[i].digest, out.results[i].digest) << "rank " << r << " has other bits than rank 0";
    }
  }
  return out;
}

/// |got - want| / |want| of the first layer's outputs, whose inputs are the same bits.
double first_layer_distance(const Outcome& got, const Outcome& want) {
  double off = 0;
  double size = 0;
  EXPECT_EQ(got.seen.rows.size(), want.seen.rows.size());
  for (const auto& [place, row] : want.seen.rows) {
    if (std::get<2>(place) != 0) continue;
    const Seen::Row& other = got.seen.rows.at(place);
    EXPECT_EQ(other.input, row.input);
    for (std::size_t i = 0; i < row.output.size(); ++i) {
      const double d = static_cast<double>(other.output[i]) - static_cast<double>(row.output[i]);
      off += d * d;
      size += static_cast<double>(row.output[i]) * static_cast<double>(row.output[i]);
    }
  }
  return std::sqrt(off / size);
}

// A rank's part of an output and the sum are rounded to bf16 once each: relative l2 below 2^-8 where one rank rounds
// once. In float32 the parts are the same but for the order of a sum.
TEST(ParallelEngine, TensorParallelEqualsOneRankWithinTheRoundingOfTheSum) {
  for (const Precision precision : {Precision::kBF16, Precision::kF32}) {
    for (const std::int64_t layer : {0, 1, 2}) {
      EngineOptions options = small_options();
      options.layers = {layer};
      options.layer.precision = precision;
      const Outcome one = run(options, {});
      for (const int ranks : {2, 4}) {
        SCOPED_TRACE(testing::Message() << "layer " << layer << " ranks " << ranks);
        const Outcome several = run(options, {.tensor = ranks});
        const double distance = first_layer_distance(several, one);
        EXPECT_LE(distance, precision == Precision::kF32 ? 1e-6 : 0x1p-8);
        EXPECT_GT(distance, 0) << "the sum was rounded somewhere";
      }
    }
  }
}

TEST(ParallelEngine, ContextParallelChoosesWhatOneRankChooses) {
  for (const std::int64_t layer : {1, 2}) {
    EngineOptions options = small_options();
    options.layers = {layer};
    options.layer.precision = Precision::kF32;
    const Outcome one = run(options, {});
    for (const int ranks : {2, 3, 4, 8}) {
      SCOPED_TRACE(testing::Message() << "layer " << layer << " ranks " << ranks);
      EngineOptions shared = options;
      shared.layer.caches.context_ranks = ranks;
      const Outcome several = run(shared, {.context = ranks});
      EXPECT_LE(first_layer_distance(several, one), 1e-6);
      for (const auto& [place, row] : one.seen.rows) ASSERT_EQ(several.seen.rows.at(place).topk, row.topk);
      // The longest request has five blocks of 256 tokens, the others a few more.
      for (const std::int64_t blocks : several.peak_full)
        EXPECT_LE(blocks, (one.peak_full[0] + ranks - 1) / ranks + static_cast<std::int64_t>(requests().size()));
      EXPECT_LT(several.peak_full[0], one.peak_full[0]);
    }
  }
}

TEST(ParallelEngine, BothAtOnceOverAllLayersPassTheCheckAgainstFloat64) {
  for (const ParallelOptions& parallel :
       {ParallelOptions{.tensor = 2, .context = 2}, ParallelOptions{.tensor = 4}, ParallelOptions{.context = 3}}) {
    EngineOptions options = small_options();
    options.speculative = 2;
    options.layer.caches.context_ranks = parallel.context;
    const std::vector<RequestSpec> specs = requests();
    RunCheck check(specs, options, 24);
    ParallelEngine engine(options, parallel, &check);
    for (const RequestSpec& s : specs) engine.submit(s);
    while (engine.step([] { return 0.0; })) {
    }
    const CheckReport report = check.finish();
    EXPECT_TRUE(report.passed) << parallel.tensor << " x " << parallel.context << ": worst "
                               << report.samples[static_cast<std::size_t>(report.worst)].relative_l2;
    EXPECT_EQ(report.computed, 24);
  }
}

TEST(ParallelEngine, OneRankIsAnEngine) {
  const EngineOptions options = small_options();
  Engine engine(options);
  for (const RequestSpec& s : requests()) engine.submit(s);
  while (engine.step([] { return 0.0; })) {
  }
  const Outcome parallel = run(options, {});
  const auto results = engine.results();
  for (std::size_t i = 0; i < results.size(); ++i) EXPECT_EQ(results[i].digest, parallel.results[i].digest);
}

TEST(ParallelEngine, PreemptionAndCancellationKeepRanksInStep) {
  EngineOptions options = small_options();
  options.layer.caches.context_ranks = 2;
  options.num_blocks = 150;
  ParallelEngine engine(options, {.tensor = 2, .context = 2});
  for (int i = 0; i < 9; ++i) engine.submit({.id = i, .prompt_tokens = 200 + i, .output_tokens = 40});
  for (int i = 0; i < 30; ++i) engine.step([] { return 0.0; });
  engine.cancel(7);
  while (engine.step([] { return 0.0; })) {
  }
  EXPECT_GT(engine.engine().totals().preemptions, 0);
  for (int r = 0; r < 4; ++r) {
    const auto results = engine.engine(r).results();
    for (std::size_t i = 0; i < results.size(); ++i) {
      EXPECT_EQ(results[i].state, i == 7 ? RequestResult::State::kCancelled : RequestResult::State::kFinished);
      EXPECT_EQ(results[i].digest, engine.engine(0).results()[i].digest);
    }
  }
}

/// Two engines that one host drives apart: the second rank misses a request.
TEST(ParallelEngine, RanksThatScheduleOtherwiseAreToldAtOnce) {
  auto group = thread_communicators(2);
  std::vector<std::string> thrown(2);
  std::vector<std::thread> threads;
  const auto start = std::chrono::steady_clock::now();
  for (std::size_t r = 0; r < 2; ++r) {
    threads.emplace_back([&, r, own = std::shared_ptr<Communicator>(std::move(group[r]))] {
      EngineOptions options = small_options();
      options.layer.tensor_parallel = own;
      Engine engine(options);
      engine.submit({.id = 0, .prompt_tokens = 20, .output_tokens = 8});
      try {
        for (int i = 0; i < 5; ++i) {
          if (i == 3 && r == 0) engine.submit({.id = 1, .prompt_tokens = 20, .output_tokens = 2});
          engine.step([] { return 0.0; });
        }
      } catch (const CommunicatorError& e) {
        thrown[r] = e.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 5);
  EXPECT_THAT(thrown,
              testing::Each(testing::HasSubstr("ranks disagree: rank 0 is at \"step 4: 21 tokens of 2 requests")));
}

/// A rank whose step fails takes the others along, with its reason.
TEST(ParallelEngine, ARankThatFailsEndsTheStepOfAll) {
  struct Fault : EngineObserver {
    int calls = 0;
    void on_layer(std::int64_t, std::span<const StepRow>, const ConstTensorView&, const ConstTensorView&,
                  const ConstTensorView&) override {
      if (++calls == 4) throw Error("a fault of rank 0");
    }
  };
  for (const ParallelOptions& parallel : {ParallelOptions{.tensor = 4}, ParallelOptions{.context = 4}}) {
    Fault fault;
    EngineOptions options = small_options();
    options.layer.caches.context_ranks = parallel.context;
    ParallelEngine engine(options, parallel, &fault);
    engine.submit({.id = 0, .prompt_tokens = 20, .output_tokens = 8});
    const auto start = std::chrono::steady_clock::now();
    std::string first;
    try {
      while (engine.step([] { return 0.0; })) {
      }
    } catch (const Error& e) {
      first = e.what();
    }
    EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 5);
    EXPECT_EQ(first, "a fault of rank 0");
    EXPECT_THROW(engine.step([] { return 0.0; }), CommunicatorError);
  }
}

TEST(ParallelEngine, ImpossibleRanksAreRefused) {
  EXPECT_THROW(ParallelEngine(small_options(), {.tensor = 0}), InvalidArgument);
  EXPECT_THROW(ParallelEngine(small_options(), {.tensor = 3}), InvalidArgument) << "heads do not divide";
  EngineOptions options = small_options();
  options.layer.caches.context_ranks = 2;
  EXPECT_THROW(ParallelEngine(options, {}), InvalidArgument) << "caches of another group";
  options.layer.front_end = FrontEnd::kFlashInfer;
  EXPECT_THROW(ParallelEngine(options, {.context = 2}), InvalidArgument);
  options = small_options();
  options.model.index_topk_freq = 2;
  options.model.compress_ratios = {0, 4, 4};
  EXPECT_THROW(ParallelEngine(options, {.context = 2}), InvalidArgument);
  options = small_options();
  options.prefix_cache = PrefixCacheOptions{};
  EXPECT_THROW(ParallelEngine(options, {.context = 2}), InvalidArgument);
}

}  // namespace
}  // namespace smla
