// Lengths that only the device knows: a draft loop as one recording, and steps recorded for a bound of their lengths.
#include <cstring>
#include <memory>
#include <numeric>

#include "device/device_tensor.h"
#include "device/streams.h"
#include "engine/synthetic.h"
#include "gpu/gpu_run.h"
#include "layer/placed_layer.h"
#include "property/small_model.h"
#include "sparsemla/kv_pool.h"

namespace smla {
namespace {

class DraftGpu : public test::GpuTest {};

constexpr DeviceKind kGpu = DeviceKind::kCuda;
constexpr std::int64_t kRequests = 4;
constexpr std::int64_t kLongest = 260;

/// One layer over caches of its own in which each of four requests has all of its blocks.
struct Rig {
  explicit Rig(const LayerConfig& config, FrontEnd front_end = FrontEnd::kFlashMla)
      : weights(random_weights(config, 11)),
        placed({.config = config, .weights = weights.views},
               {.device = kGpu, .front_end = front_end, .deterministic = true},
               std::make_shared<const RopeTable>(config.rope, kLongest, kGpu, true)),
        pool(placed.layout(), 1500, kGpu),
        metadata(placed.layout(), {&config, 1}, front_end, kGpu),
        caches(caches_of(pool, 0)) {
    std::int32_t block = 1;
    std::vector<GroupBlock> own;
    for (std::size_t g = 0; g < placed.layout().groups.size(); ++g) {
      const std::int64_t columns = kLongest / placed.layout().groups[g].block_tokens + 1;
      HostTensor table(DType::kI32, {kRequests, columns});
      for (std::int64_t i = 0; i < table.numel(); ++i) {
        own.push_back({.block = block, .group = static_cast<int>(g)});
        table.as<std::int32_t>()[i] = block++;
      }
      tables.push_back(DeviceTensor::copy_of(kGpu, table.view()));
    }
    EXPECT_LE(block, 1500);
    pool.zero(own);
  }

  /// Hidden states of tokens, made once.
  DeviceTensor hidden(std::int64_t tokens, std::int64_t first) const {
    HostTensor made(DType::kBF16, {tokens, placed.config().hidden_size});
    for (std::int64_t t = 0; t < tokens; ++t) synthetic_hidden(1, 0, 0, first + t, made.view().slice(0, t, t + 1));
    return DeviceTensor::copy_of(kGpu, std::as_const(made).view());
  }
  void forward(const LayerPlan& plan, const ConstTensorView& in, const TensorView& out) {
    placed.layer().forward(plan, metadata.layer(0), caches, in, out,
                           {.data = workspace.data(), .bytes = workspace.bytes()}, stream.get());
  }
  /// The metadata of a batch that lies on the device, a plan and workspace for it.
  LayerPlan build(const StepBatch& batch) {
    metadata.build(batch, stream.get());
    LayerPlan plan = placed.layer().plan(metadata.shape(), caches);
    if (workspace.bytes() < plan.workspace_bytes()) {
      synchronize(kGpu, stream.get());
      workspace = DeviceMemory(kGpu, plan.workspace_bytes());
    }
    return plan;
  }
  std::vector<std::uint8_t> bytes_of(const DeviceTensor& t) const {
    synchronize(kGpu, stream.get());
    std::vector<std::uint8_t> bytes(t.bytes());
    copy_bytes(kGpu, bytes.data(), t.data(), t.bytes());
    return bytes;
  }
  /// All pages of all caches.
  std::vector<std::uint8_t> pages() const {
    synchronize(kGpu, stream.get());
    std::vector<std::uint8_t> bytes;
    for (const CacheRole role : kCacheRoles) {
      const LayerCache* cache = pool.layout().find(0, role);
      if (cache == nullptr) continue;
      for (std::int64_t b = 1; b < 200; ++b) {
        bytes.resize(bytes.size() + static_cast<std::size_t>(cache->page_bytes));
        copy_bytes(kGpu, bytes.data() + bytes.size() - cache->page_bytes,
                   caches[role].base + b * caches[role].block_stride_bytes,
                   static_cast<std::size_t>(cache->page_bytes));
      }
    }
    return bytes;
  }

  OwnedLayerWeights weights;
  PlacedLayer placed;
  KvPool pool;
  StepMetadata metadata;
  LayerCaches caches;
  std::vector<DeviceTensor> tables;
  OwnedStream stream{kGpu};
  DeviceMemory workspace;
};

/// A batch whose tensors stay at their addresses while their numbers change.
struct Numbers {
  Numbers(std::int64_t most_tokens, const Rig& rig)
      : start(kGpu, DType::kI32, {kRequests + 1}),
        seq(kGpu, DType::kI32, {kRequests}),
        positions(kGpu, DType::kI64, {most_tokens}) {
    for (const DeviceTensor& table : rig.tables) tables.push_back(table.view());
  }
  /// Requests with `tokens` tokens each behind `before` others; one behind -1 sits out.
  void set(const std::vector<std::int32_t>& before, const std::vector<std::int32_t>& tokens) {
    std::vector<std::int32_t> starts{0}, lengths;
    std::vector<std::int64_t> places;
    for (std::size_t r = 0; r < kRequests; ++r) {
      starts.push_back(starts.back() + tokens[r]);
      lengths.push_back(tokens[r] == 0 ? 0 : before[r] + tokens[r]);
      for (std::int32_t i = 0; i < tokens[r]; ++i) places.push_back(before[r] + i);
    }
    places.resize(static_cast<std::size_t>(positions.size(0)), 0);
    copy_bytes(kGpu, start.data(), starts.data(), start.bytes());
    copy_bytes(kGpu, seq.data(), lengths.data(), seq.bytes());
    copy_bytes(kGpu, positions.data(), places.data(), positions.bytes());
    synchronize(kGpu);  // the layer runs on a stream that waits for no other
    host_start = starts, host_seq = lengths;
  }
  /// Planned for what the host says: the numbers themselves, or a bound.
  StepBatch batch(std::int64_t threshold) const {
    return {.query_start_loc = std::as_const(start).view(),
            .seq_lens = std::as_const(seq).view(),
            .positions = std::as_const(positions).view(),
            .block_tables = tables,
            .max_seq_len = kLongest,
            .decode_threshold = threshold,
            .host_query_start_loc = host_start,
            .host_seq_lens = host_seq};
  }

  DeviceTensor start, seq, positions;
  std::vector<ConstTensorView> tables;
  std::vector<std::int32_t> host_start, host_seq;
};

/// The past of every request, as prefills write it.
void prefill(Rig& rig, const std::vector<std::int32_t>& before) {
  const std::int64_t tokens = std::accumulate(before.begin(), before.end(), std::int64_t{0});
  Numbers numbers(tokens, rig);
  numbers.set(std::vector<std::int32_t>(kRequests, 0), before);
  const LayerPlan plan = rig.build(numbers.batch(1));
  const DeviceTensor in = rig.hidden(tokens, 1000);
  DeviceTensor out(kGpu, DType::kBF16, {tokens, rig.placed.config().hidden_size});
  rig.forward(plan, in.view(), out.view());
  synchronize(kGpu, rig.stream.get());
}

TEST_F(DraftGpu, ADraftLoopIsOneRecording) {
  constexpr int kSteps = 4;
  const LayerConfig config = test::small_model().layer(0);
  const std::vector<std::int32_t> past{5, 126, 131, 62};
  for (const FrontEnd front_end : {FrontEnd::kFlashMla, FrontEnd::kFlashInfer}) {
    SCOPED_TRACE(name_of(front_end));
    Rig looped(config, front_end), stepped(config, front_end);
    prefill(looped, past);
    prefill(stepped, past);
    std::vector<DeviceTensor> rows;  // what goes into the loop and what each step gives
    for (int j = 0; j <= kSteps; ++j) rows.push_back(looped.hidden(kRequests, 7));

    // Recorded where the host knows nothing but the bound; every request has one token.
    Numbers any(kRequests, looped);
    any.set(std::vector<std::int32_t>(kRequests, kLongest - 1), std::vector<std::int32_t>(kRequests, 1));
    const LayerPlan plan = looped.build(any.batch(1));
    DeviceTensor lengths(kGpu, DType::kI32, {kRequests});
    Graph loop(looped.stream.get(), [&] {
      looped.metadata.advance(std::as_const(lengths).view(), kLongest, looped.stream.get());
      for (std::size_t j = 0; j < kSteps; ++j) {
        if (j > 0) looped.metadata.advance(looped.stream.get());
        looped.forward(plan, std::as_const(rows[j]).view(), rows[j + 1].view());
      }
    });

    // The second time other lengths, and one request that sits out.
    for (const std::vector<std::int32_t>& seq :
         {std::vector<std::int32_t>{6, 127, 132, 63}, {7, 0, 134, 66}, {8, 128, 192, kLongest - kSteps + 1}}) {
      copy_bytes(kGpu, lengths.data(), seq.data(), lengths.bytes());
      synchronize(kGpu);
      loop.launch(looped.stream.get());
      DeviceTensor in = stepped.hidden(kRequests, 7);
      for (std::int32_t j = 0; j < kSteps; ++j) {
        std::vector<std::int32_t> before;
        for (const std::int32_t length : seq) before.push_back(length == 0 ? -1 : length + j - 1);
        Numbers exact(kRequests, stepped);
        exact.set(before, std::vector<std::int32_t>(kRequests, 1));
        const LayerPlan once = stepped.build(exact.batch(1));
        DeviceTensor out(kGpu, DType::kBF16, {kRequests, config.hidden_size});
        stepped.forward(once, std::as_const(in).view(), out.view());
        EXPECT_EQ(looped.bytes_of(rows[static_cast<std::size_t>(j) + 1]), stepped.bytes_of(out)) << "step " << j;
        in = std::move(out);
      }
      EXPECT_EQ(looped.pages(), stepped.pages());
    }
  }
}

/// Of a step recorded for 4 tokens a request: the bits of the step that is as long as the device says.
TEST_F(DraftGpu, AStepRecordedForABoundRunsShorterOnes) {
  const std::vector<std::int32_t> past{5, 126, 131, 62};
  for (std::int64_t kind = 0; kind < 3; ++kind) {
    const LayerConfig config = test::small_model().layer(kind);
    SCOPED_TRACE(config.compress_ratio);
    Rig bound(config), exact(config);
    prefill(bound, past);
    prefill(exact, past);
    constexpr std::int64_t kMost = 4 * kRequests;
    Numbers numbers(kMost, bound);
    numbers.set(past, {4, 4, 4, 4});
    const LayerPlan plan = bound.build(numbers.batch(4));
    const DeviceTensor in = bound.hidden(kMost, 0);
    DeviceTensor out(kGpu, DType::kBF16, {kMost, config.hidden_size});
    const StepBatch planned = numbers.batch(4);
    const Graph step(bound.stream.get(), [&] {
      bound.metadata.build(planned, bound.stream.get());
      bound.forward(plan, in.view(), out.view());
    });
    for (const std::vector<std::int32_t>& tokens :
         {std::vector<std::int32_t>{1, 2, 3, 1}, {4, 1, 1, 2}, {4, 4, 4, 4}, {0, 1, 0, 3}}) {
      synchronize(kGpu, bound.stream.get());
      numbers.set(past, tokens);
      step.launch(bound.stream.get());
      const std::int64_t real = std::accumulate(tokens.begin(), tokens.end(), std::int64_t{0});
      Numbers known(real, exact);
      known.set(past, tokens);
      const LayerPlan as_long = exact.build(known.batch(4));
      const DeviceTensor same = exact.hidden(real, 0);
      DeviceTensor want(kGpu, DType::kBF16, {real, config.hidden_size});
      exact.forward(as_long, same.view(), want.view());
      std::vector<std::uint8_t> expected = exact.bytes_of(want);
      std::vector<std::uint8_t> got = bound.bytes_of(out);
      for (std::size_t i = expected.size(); i < got.size(); i += 2)
        ASSERT_EQ(got[i] | (got[i + 1] & 0x7FU), 0) << "padding gives 0";
      got.resize(expected.size());
      EXPECT_EQ(got, expected);
      EXPECT_EQ(bound.pages(), exact.pages());
    }
  }
}

}  // namespace
}  // namespace smla
