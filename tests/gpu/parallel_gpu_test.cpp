// Ranks on two GPUs of one process, over NCCL: sums and gathers, also from a graph; errors in time; engines against one
// GPU (docs/parallel.md).
#include <gmock/gmock.h>

#include <chrono>
#include <cmath>
#include <map>
#include <thread>

#include "core/host_tensor.h"
#include "device/device_tensor.h"
#include "device/memory.h"
#include "device/streams.h"
#include "gpu/gpu_run.h"
#include "property/small_model.h"
#include "sparsemla/communicator.h"
#include "sparsemla/parallel_engine.h"
#include "sparsemla/run_check.h"

namespace smla {
namespace {

constexpr int kGpus = 2;
constexpr DeviceKind kCuda = DeviceKind::kCuda;

class RanksOnGpus : public test::GpuTest {
 protected:
  void SetUp() override {
    test::GpuTest::SetUp();
    if (IsSkipped()) return;
    const std::size_t found = gpus().size();
    if (found < kGpus) GTEST_SKIP() << "this machine has " << found << " GPU, the test needs " << kGpus;
    if (gpus()[0].name.starts_with("emulated")) GTEST_SKIP() << "NCCL runs on real GPUs alone";
    try {
      (void)thread_communicators(kGpus, {.device = kCuda});
    } catch (const Unsupported& e) {
      GTEST_SKIP() << e.what();
    }
  }
};

/// Runs f(communicator) on a thread for each GPU, which is current there; the text of what each threw.
std::vector<std::string> on_gpus(const CommunicatorOptions& options, const std::function<void(Communicator&)>& f) {
  auto group = thread_communicators(kGpus, options);
  std::vector<std::string> thrown(group.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < group.size(); ++r) {
    threads.emplace_back([&, r, own = std::move(group[r])]() mutable {
      try {
        make_current(static_cast<int>(r));
        f(*own);
      } catch (const std::exception& e) {
        thrown[r] = e.what();
      }
      own.reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

TEST_F(RanksOnGpus, SumsAndGathersAreRight) {
  const auto thrown = on_gpus({.device = kCuda}, [](Communicator& c) {
    const OwnedStream stream(kCuda);
    for (const std::int64_t n : {1, 1000, 4'000'000}) {
      c.agree("n " + std::to_string(n));
      HostTensor host(DType::kF32, {n});
      for (std::int64_t i = 0; i < n; ++i) host.as<float>()[i] = static_cast<float>(i % 1000 + 7 * c.rank());
      DeviceTensor device = DeviceTensor::copy_of(kCuda, std::as_const(host).view());
      c.sum(device.data(), n, DType::kF32, stream.get());
      // Behind it on the same stream: parts of n bytes.
      DeviceTensor parts(kCuda, DType::kU8, {kGpus * n});
      fill_bytes(kCuda, static_cast<std::uint8_t*>(parts.data()) + c.rank() * n, c.rank() + 1,
                 static_cast<std::size_t>(n), stream.get());
      c.gather(parts.data(), static_cast<std::size_t>(n), stream.get());
      c.wait(stream.get());
      copy_bytes(kCuda, host.data(), device.data(), host.bytes(), stream.get());
      HostTensor gathered(DType::kU8, {kGpus * n});
      copy_bytes(kCuda, gathered.data(), parts.data(), gathered.bytes(), stream.get());
      synchronize(kCuda, stream.get());
      for (std::int64_t i = 0; i < n; ++i) {
        if (host.as<float>()[i] != static_cast<float>(2 * (i % 1000) + 7)) throw Error("a sum is wrong");
        for (int r = 0; r < kGpus; ++r)
          if (gathered.as<std::uint8_t>()[r * n + i] != r + 1) throw Error("a gathered byte is wrong");
      }
    }
  });
  EXPECT_THAT(thrown, testing::Each(""));
}

TEST_F(RanksOnGpus, ASumIsRecordedInAGraph) {
  const auto thrown = on_gpus({.device = kCuda}, [](Communicator& c) {
    const OwnedStream stream(kCuda);
    HostTensor ones(DType::kF32, {512});
    std::fill_n(ones.as<float>(), 512, 1.0F);
    DeviceTensor x = DeviceTensor::copy_of(kCuda, std::as_const(ones).view());
    c.agree("before the graph");
    c.sum(x.data(), 512, DType::kF32, stream.get());
    c.wait(stream.get());
    const Graph graph(stream.get(), [&] { c.sum(x.data(), 512, DType::kF32, stream.get()); });
    for (int i = 0; i < 5; ++i) {
      c.agree("launch " + std::to_string(i));
      graph.launch(stream.get());
      c.wait(stream.get());
    }
    copy_bytes(kCuda, ones.data(), x.data(), ones.bytes(), stream.get());
    synchronize(kCuda, stream.get());
    if (ones.as<float>()[511] != 64.0F) throw Error("got " + std::to_string(ones.as<float>()[511]));
  });
  EXPECT_THAT(thrown, testing::Each(""));
}

TEST_F(RanksOnGpus, ARankThatEndsOrDisagreesIsAnErrorInTime) {
  for (const bool dies : {true, false}) {
    const auto start = std::chrono::steady_clock::now();
    const auto thrown = on_gpus({.device = kCuda}, [dies](Communicator& c) {
      const OwnedStream stream(kCuda);
      DeviceTensor x(kCuda, DType::kF32, {1 << 20});
      c.agree("alive");
      c.sum(x.data(), 1 << 20, DType::kF32, stream.get());
      c.wait(stream.get());
      c.agree(dies || c.rank() == 0 ? "step 2" : "step 3");
      if (c.rank() == 1) throw Error("a fault of its own");
      c.sum(x.data(), 1 << 20, DType::kF32, stream.get());  // waits for rank 1 on the GPU
      c.wait(stream.get());
    });
    EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 10);
    EXPECT_THAT(thrown[0], dies ? testing::HasSubstr("rank 1") : testing::HasSubstr("disagree"));
  }
}

/// Outputs of the one layer by place.
struct Seen : EngineObserver {
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<float>> rows;
  void on_layer(std::int64_t, std::span<const StepRow> batch, const ConstTensorView&, const ConstTensorView& output,
                const ConstTensorView&) override {
    for (std::size_t t = 0; t < batch.size(); ++t) {
      const auto* row = output.as<BF16>() + static_cast<std::int64_t>(t) * output.stride[0];
      auto& kept = rows[{batch[t].request, batch[t].position}];
      kept.clear();
      for (std::int64_t i = 0; i < output.size(1); ++i) kept.push_back(to_float(row[i]));
    }
  }
};

EngineOptions small_options(std::vector<std::int64_t> layers) {
  EngineOptions o;
  o.model = test::small_model();
  o.layers = std::move(layers);
  o.layer.device = kCuda;
  o.time_stages = false;
  o.max_batched_tokens = 64;
  o.max_seqs = 8;
  o.num_blocks = 4000;
  o.max_model_len = 1500;
  return o;
}

std::vector<RequestSpec> requests() {
  std::vector<RequestSpec> out;
  for (const std::int64_t prompt : {3, 130, 64, 300, 1020})
    out.push_back({.id = prompt, .prompt_tokens = prompt, .output_tokens = 30});
  return out;
}

Seen run(const EngineOptions& options, const ParallelOptions& parallel) {
  Seen seen;
  ParallelEngine engine(options, parallel, &seen);
  for (const RequestSpec& s : requests()) engine.submit(s);
  while (engine.step([] { return 0.0; })) {
  }
  for (int r = 0; r < engine.ranks(); ++r) {
    for (const RequestResult& result : engine.engine(r).results())
      EXPECT_EQ(result.state, RequestResult::State::kFinished) << result.refusal;
  }
  if (parallel.ranks() > 1) {
    EXPECT_GT(engine.engine(1).totals().graph_steps, 0);
  }
  return seen;
}

TEST_F(RanksOnGpus, LayersEqualThoseOfOneGpu) {
  for (const std::int64_t layer : {0, 1, 2}) {
    const EngineOptions options = small_options({layer});
    const Seen one = run(options, {});
    for (const ParallelOptions& parallel : {ParallelOptions{.tensor = kGpus}, ParallelOptions{.context = kGpus}}) {
      SCOPED_TRACE(testing::Message() << "layer " << layer << " tensor " << parallel.tensor);
      EngineOptions own = options;
      own.layer.caches.context_ranks = parallel.context;
      const Seen two = run(own, parallel);
      double off = 0;
      double size = 0;
      ASSERT_EQ(two.rows.size(), one.rows.size());
      for (const auto& [place, row] : one.rows) {
        const std::vector<float>& other = two.rows.at(place);
        for (std::size_t i = 0; i < row.size(); ++i) {
          off += (other[i] - row[i]) * (other[i] - row[i]);
          size += row[i] * row[i];
        }
      }
      EXPECT_LE(std::sqrt(off / size), 0x1p-7);
    }
  }
}

TEST_F(RanksOnGpus, RunsPassTheCheckAgainstFloat64) {
  for (const ParallelOptions& parallel : {ParallelOptions{.tensor = kGpus}, ParallelOptions{.context = kGpus}}) {
    EngineOptions options = small_options({0, 1, 2});
    options.layer.caches.context_ranks = parallel.context;
    const std::vector<RequestSpec> specs = requests();
    RunCheck check(specs, options, 24);
    ParallelEngine engine(options, parallel, &check);
    for (const RequestSpec& s : specs) engine.submit(s);
    while (engine.step([] { return 0.0; })) {
    }
    EXPECT_TRUE(check.finish().passed) << "tensor " << parallel.tensor;
  }
}

}  // namespace
}  // namespace smla
