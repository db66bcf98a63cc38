// A step's metadata on the GPU is the host's bit for bit; profile runs; a layer through the C interface.
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <iostream>
#include <latch>
#include <map>
#include <numeric>
#include <random>
#include <thread>

#include "device/device_tensor.h"
#include "device/launch_hook.h"
#include "device/streams.h"
#include "engine/synthetic.h"
#include "gpu/gpu_run.h"
#include "model/weight_table.h"
#include "property/small_model.h"
#include "sparsemla/layer.h"
#include "sparsemla/validate.h"
#include "unit/c_views.h"

namespace smla {
namespace {

class LayerGpu : public test::GpuTest {};

std::vector<LayerConfig> small_layers() {
  const ModelConfig m = test::small_model();
  return {m.layer(0), m.layer(1), m.layer(2)};
}

/// A batch on the host and its copy on the GPU.
struct Batch {
  std::vector<std::int32_t> start{0}, seq;
  std::vector<std::int64_t> positions;
  std::vector<HostTensor> tables;
  std::vector<DeviceTensor> placed;
  std::int64_t max_seq_len = 0;
  bool causal = true;

  void add(std::int32_t query, std::int32_t before) {
    for (std::int32_t i = 0; i < query; ++i) positions.push_back(before + i);
    start.push_back(start.back() + query);
    seq.push_back(before + query);
    max_seq_len = std::max<std::int64_t>(max_seq_len, before + query);
  }
  void close(const KvLayout& layout, std::int64_t padding, std::int32_t num_blocks, unsigned seed) {
    positions.resize(positions.size() + static_cast<std::size_t>(padding), 0);
    std::mt19937 random(seed);
    for (const CacheGroup& group : layout.groups) {
      HostTensor& t = tables.emplace_back(DType::kI32, std::vector<std::int64_t>{static_cast<std::int64_t>(seq.size()),
                                                                                 max_seq_len / group.block_tokens + 2});
      for (std::int64_t i = 0; i < t.numel(); ++i)
        t.as<std::int32_t>()[i] = static_cast<std::int32_t>(random() % static_cast<unsigned>(num_blocks));
    }
  }
  StepBatch on(DeviceKind device) {
    const auto place = [&](const ConstTensorView& v) {
      if (device == DeviceKind::kCpu) return v;
      placed.push_back(DeviceTensor::copy_of(device, v));
      return std::as_const(placed.back()).view();
    };
    StepBatch out{
        .query_start_loc = place(view_of(std::as_const(start).data(), {static_cast<std::int64_t>(start.size())})),
        .seq_lens = place(view_of(std::as_const(seq).data(), {static_cast<std::int64_t>(seq.size())})),
        .positions = place(view_of(std::as_const(positions).data(), {static_cast<std::int64_t>(positions.size())})),
        .block_tables = {},
        .max_seq_len = max_seq_len,
        .decode_threshold = causal ? 2 : 5,
        .causal = causal,
        .dspark_tokens = causal ? 0 : 4,
        .host_query_start_loc = start,
        .host_seq_lens = seq};
    for (const HostTensor& t : tables) out.block_tables.push_back(place(t.view()));
    return out;
  }
};

void expect_same(const ConstTensorView& host, const ConstTensorView& device, const std::string& name) {
  ASSERT_EQ(host.absent(), device.absent()) << name;
  if (host.absent()) return;
  ASSERT_EQ(host.rank, device.rank) << name;
  for (int i = 0; i < host.rank; ++i) ASSERT_EQ(host.size(i), device.size(i)) << name;
  const auto bytes = static_cast<std::size_t>(host.numel() * size_of(host.dtype));
  std::vector<std::uint8_t> copy(bytes);
  copy_bytes(DeviceKind::kCuda, copy.data(), device.data, bytes);
  EXPECT_EQ(0, bytes == 0 ? 0 : std::memcmp(host.data, copy.data(), bytes)) << name;
}

void expect_same_step(const LayerStep& host, const LayerStep& device) {
  expect_same(host.token_to_req, device.token_to_req, "token_to_req");
  expect_same(host.valid, device.valid, "valid");
  expect_same(host.positions, device.positions, "positions");
  expect_same(host.seq_lens, device.seq_lens, "seq_lens");
  expect_same(host.window_slots, device.window_slots, "window_slots");
  expect_same(host.window_indices, device.window_indices, "window_indices");
  expect_same(host.window_lens, device.window_lens, "window_lens");
  expect_same(host.gather_lens, device.gather_lens, "gather_lens");
  expect_same(host.entry_slots, device.entry_slots, "entry_slots");
  expect_same(host.entry_lens, device.entry_lens, "entry_lens");
  expect_same(host.topk_lens, device.topk_lens, "topk_lens");
  expect_same(host.entry_counts, device.entry_counts, "entry_counts");
  expect_same(host.state_slots, device.state_slots, "state_slots");
  expect_same(host.index_state_slots, device.index_state_slots, "index_state_slots");
  expect_same(host.dense_indices, device.dense_indices, "dense_indices");
  expect_same(host.dense_lens, device.dense_lens, "dense_lens");
  expect_same(host.dense_local, device.dense_local, "dense_local");
  expect_same(host.mixed_indices, device.mixed_indices, "mixed_indices");
  expect_same(host.topk, device.topk, "topk");
}

TEST_F(LayerGpu, MetadataIsTheHostsBitForBit) {
  const std::vector<LayerConfig> layers = small_layers();
  const KvLayout layout = make_kv_layout(layers, {});
  for (const FrontEnd f : {FrontEnd::kFlashMla, FrontEnd::kFlashInfer, FrontEnd::kSm120}) {
    // One object for all batches: larger and smaller ones take turns.
    StepMetadata host(layout, layers, f);
    StepMetadata device(layout, layers, f, DeviceKind::kCuda);
    for (unsigned seed = 0; seed < 24; ++seed) {
      SCOPED_TRACE(testing::Message() << name_of(f) << ", batch " << seed);
      std::mt19937 random(seed);
      const auto pick = [&](unsigned n) { return static_cast<std::int32_t>(random() % n); };
      Batch b;
      b.causal = seed % 6 != 5 || f != FrontEnd::kFlashMla;
      for (int r = pick(6); r > 0; --r) b.add(b.causal ? pick(3) : 1 + pick(4), pick(500));
      for (int r = pick(3); r > 0 && b.causal; --r) b.add(3 + pick(150), pick(2) * pick(400));
      b.close(layout, pick(4), 3000, seed);
      host.build(b.on(DeviceKind::kCpu));
      device.build(b.on(DeviceKind::kCuda));
      for (std::int64_t i = 0; i < 3; ++i) expect_same_step(host.layer(i), device.layer(i));
      if (HasFailure()) return;
    }
  }
}

TEST_F(LayerGpu, DraftStepsAdvanceInPlace) {
  const std::vector<LayerConfig> layers{small_layers()[0]};
  const KvLayout layout = make_kv_layout(layers, {});
  Batch b;
  for (const std::int32_t before : {4, 127, 300}) b.add(1, before);
  b.max_seq_len = 400;
  b.close(layout, 0, 500, 1);
  StepMetadata host(layout, layers);
  StepMetadata device(layout, layers, FrontEnd::kFlashMla, DeviceKind::kCuda);
  host.build(b.on(DeviceKind::kCpu));
  device.build(b.on(DeviceKind::kCuda));
  const void* before = device.layer(0).window_indices.data;
  const std::vector<std::int32_t> next{6, 129, 0};
  const DeviceTensor placed = DeviceTensor::copy_of(DeviceKind::kCuda, view_of(next.data(), {3}));
  host.advance(view_of(next.data(), {3}), 129);
  device.advance(placed.view(), 129);
  EXPECT_EQ(before, device.layer(0).window_indices.data);
  expect_same_step(host.layer(0), device.layer(0));
}

TEST_F(LayerGpu, TheHostsCountsMustComeWithADevicesBatch) {
  const std::vector<LayerConfig> layers = small_layers();
  const KvLayout layout = make_kv_layout(layers, {});
  Batch b;
  b.add(1, 7);
  b.close(layout, 0, 50, 1);
  StepBatch batch = b.on(DeviceKind::kCuda);
  batch.host_query_start_loc = {};
  StepMetadata device(layout, layers, FrontEnd::kFlashMla, DeviceKind::kCuda);
  EXPECT_THROW(device.build(batch), InvalidArgument);
}

TEST_F(LayerGpu, ValidateReadsADevicesBatch) {
  const std::vector<LayerConfig> layers = small_layers();
  const KvLayout layout = make_kv_layout(layers, {});
  Batch b;
  b.add(1, 7);
  b.add(3, 0);
  b.close(layout, 0, 1, 1);
  for (std::size_t g = 0; g < b.tables.size(); ++g) {  // blocks of their own
    HostTensor& t = b.tables[g];
    std::iota(t.as<std::int32_t>(), t.as<std::int32_t>() + t.numel(), static_cast<std::int32_t>(100 * g));
  }
  EXPECT_NO_THROW(validate(b.on(DeviceKind::kCuda), layout, 1000, 64, DeviceKind::kCuda));
  b.positions[2] = 5;
  EXPECT_THROW(validate(b.on(DeviceKind::kCuda), layout, 1000, 64, DeviceKind::kCuda), InvalidArgument);
}

/// A layer's weights on both machines.
struct Weights {
  explicit Weights(const LayerConfig& config) : host(random_weights(config, 11)), placed(host.views) {
    visit_weights(config, placed, [&](std::string_view name, ConstTensorView& v) {
      storage.push_back(DeviceTensor::copy_of(DeviceKind::kCuda, v));
      v = std::as_const(storage.back()).view();
      names.emplace_back(name);
    });
  }
  OwnedLayerWeights host;
  LayerWeights placed;
  std::vector<DeviceTensor> storage;
  std::vector<std::string> names;
};

LayerCaches formats_of_small_caches(const LayerConfig& config) {
  LayerCaches caches;
  caches[CacheRole::kWindow] = {.format = &fp8_ds_mla_rows(), .block_size = 64};
  caches[CacheRole::kCompressed] = {.format = &fp8_ds_mla_rows(), .block_size = 64};
  caches[CacheRole::kIndex] = {.format = &index_fp8_rows(), .block_size = 64};
  caches[CacheRole::kState] = {.format = &state_rows(512, config.has_indexer() ? 2 : 1), .block_size = 4};
  caches[CacheRole::kIndexState] = {.format = &state_rows(128, 2), .block_size = 4};
  return caches;
}

TEST_F(LayerGpu, AProfileRunTouchesNoCacheAndGivesZeros) {
  for (const LayerConfig& config : small_layers()) {
    const Weights weights(config);
    const std::vector<float> table = rope_table(config.rope, 300);
    const DeviceTensor rope =
        DeviceTensor::copy_of(DeviceKind::kCuda, view_of(table.data(), {300, config.rope_head_dim}));
    const AttentionLayer layer(config, weights.placed, {.device = DeviceKind::kCuda}, rope.view());
    const LayerPlan plan = layer.plan(7, 2, 300, formats_of_small_caches(config));
    HostTensor hidden(DType::kBF16, {7, config.hidden_size});
    for (std::int64_t t = 0; t < 7; ++t) synthetic_hidden(1, 0, 0, t, hidden.view().slice(0, t, t + 1));
    const DeviceTensor in = DeviceTensor::copy_of(DeviceKind::kCuda, hidden.view());
    DeviceTensor out(DeviceKind::kCuda, DType::kBF16, {7, config.hidden_size});
    fill_bytes(DeviceKind::kCuda, out.data(), 0x40, out.bytes());
    const DeviceMemory workspace(DeviceKind::kCuda, plan.workspace_bytes());
    fill_bytes(DeviceKind::kCuda, workspace.data(), 0xFF, workspace.bytes());
    layer.dummy_run(plan, in.view(), out.view(), {.data = workspace.data(), .bytes = workspace.bytes()});
    HostTensor made(DType::kBF16, {7, config.hidden_size});
    copy_bytes(DeviceKind::kCuda, made.data(), out.data(), made.bytes());
    for (std::int64_t i = 0; i < made.numel(); ++i) ASSERT_EQ(to_float(made.as<BF16>()[i]), 0.0F);
  }
}

/// One step of a layer over caches of its own: everything that a thread needs to run it.
struct OwnStep {
  static constexpr std::int64_t kTokens = 5;
  OwnStep(const AttentionLayer& layer_in, const LayerConfig& config)
      : layer(layer_in),
        layout(make_kv_layout({&config, 1}, {})),
        stream(DeviceKind::kCuda),
        pool(layout, 1024, DeviceKind::kCuda),
        metadata(layout, {&config, 1}, FrontEnd::kFlashMla, DeviceKind::kCuda),
        out(DeviceKind::kCuda, DType::kBF16, {kTokens, config.hidden_size}) {
    for (const std::int32_t before : {3, 64, 127, 254, 7}) batch.add(1, before);
    batch.close(layout, 0, 1, 5);
    std::int32_t block = 1;  // each block is one request's, in one group
    std::vector<GroupBlock> blocks;
    for (std::size_t group = 0; group < batch.tables.size(); ++group) {
      HostTensor& table = batch.tables[group];
      for (std::int64_t i = 0; i < table.numel(); ++i) {
        blocks.push_back({.block = block, .group = static_cast<int>(group)});
        table.as<std::int32_t>()[i] = block++;
      }
    }
    EXPECT_LE(block, 1024);
    pool.zero(blocks);  // the requests have a past, which is read
    metadata.build(batch.on(DeviceKind::kCuda));
    caches = caches_of(pool, 0);
    plan = layer.plan(metadata.shape(), caches);
    workspace = DeviceMemory(DeviceKind::kCuda, plan.workspace_bytes());
    HostTensor hidden(DType::kBF16, {kTokens, config.hidden_size});
    for (std::int64_t t = 0; t < kTokens; ++t) synthetic_hidden(1, 0, 0, t, hidden.view().slice(0, t, t + 1));
    in = DeviceTensor::copy_of(DeviceKind::kCuda, hidden.view());
    synchronize(DeviceKind::kCuda);
  }
  void queue() {
    layer.forward(plan, metadata.layer(0), caches, std::as_const(in).view(), out.view(),
                  {.data = workspace.data(), .bytes = workspace.bytes()}, stream.get());
  }
  std::vector<std::uint16_t> result() {
    synchronize(DeviceKind::kCuda, stream.get());
    std::vector<std::uint16_t> bits(static_cast<std::size_t>(out.bytes() / 2));
    copy_bytes(DeviceKind::kCuda, bits.data(), out.data(), out.bytes());
    return bits;
  }

  const AttentionLayer& layer;
  KvLayout layout;
  OwnedStream stream;
  KvPool pool;
  StepMetadata metadata;
  DeviceTensor in, out;
  Batch batch;
  LayerCaches caches;
  LayerPlan plan;
  DeviceMemory workspace;
};

std::atomic<int> products{0};
void count_products(const char* kernel) {
  if (std::string_view(kernel) == "projection") ++products;
}

/// A decode step whose weights of one input are computed at once: the same kernel's bits, in four products.
TEST_F(LayerGpu, JointProductsAreTheSameLayerInFourLaunches) {
  for (const LayerConfig& config : small_layers()) {
    const Weights weights(config);
    const std::vector<float> table = rope_table(config.rope, 300);
    const DeviceTensor rope =
        DeviceTensor::copy_of(DeviceKind::kCuda, view_of(table.data(), {300, config.rope_head_dim}));
    for (const bool scores : {false, true}) {
      for (const bool side_streams : {false, true}) {
        SCOPED_TRACE(testing::Message() << config.compress_ratio << " scores " << scores << " side " << side_streams);
        LayerOptions options{
            .device = DeviceKind::kCuda, .short_context = !scores, .side_streams = side_streams, .implementations = {}};
        options.implementations["projection"] = "cuda_stream";
        const AttentionLayer apart(config, weights.placed, options, rope.view());
        options.implementations = {{"joint_projection", "cuda_stream"}};
        const AttentionLayer joint(config, weights.placed, options, rope.view());
        OwnStep separate(apart, config);
        separate.queue();
        const std::vector<std::uint16_t> want = separate.result();
        OwnStep together(joint, config);
        products = 0;
        device::launch_hook = count_products;
        together.queue();
        device::launch_hook = nullptr;
        EXPECT_EQ(products, 4);
        EXPECT_EQ(together.result(), want);
        EXPECT_EQ(together.plan.describe().find(", projection"), std::string::npos) << together.plan.describe();
      }
    }
  }
}

/// A forward that is observed attends by the kernel of one that is not, whichever that is.
TEST_F(LayerGpu, AnObservedForwardHasTheOthersAttentionKernel) {
  std::map<std::string, int> kernels;
  for (LayerConfig config : small_layers()) {
    config.num_heads = 64;
    const Weights weights(config);
    const std::vector<float> table = rope_table(config.rope, 300);
    const DeviceTensor rope =
        DeviceTensor::copy_of(DeviceKind::kCuda, view_of(table.data(), {300, config.rope_head_dim}));
    const AttentionLayer layer(config, weights.placed, {.device = DeviceKind::kCuda}, rope.view());
    for (const std::int64_t tokens : {1, 2, 4, 8, 16, 33, 64, 100, 128, 192, 256}) {
      const std::string made = layer.plan(tokens, tokens, 300, formats_of_small_caches(config)).describe();
      const std::string op = "sparse_attention ";
      const std::size_t at = made.find(op);
      ASSERT_NE(at, std::string::npos) << made;
      EXPECT_EQ(made.find(op, at + 1), std::string::npos) << tokens << " tokens: " << made;
      ++kernels[made.substr(at, made.find(',', at) - at)];
    }
  }
  for (const auto& [name, count] : kernels) std::cout << "[ planned ] " << name << ": " << count << "\n";
}

TEST_F(LayerGpu, FewTokensAreMultipliedByFp8WeightsAsTheyAre) {
  LayerConfig config = small_layers()[0];
  config.hidden_size = 256;
  config.q_lora_rank = config.o_lora_rank = 128;
  const Weights weights(config);
  LayerWeights views = weights.placed;
  std::vector<DeviceTensor> memory;
  const auto fp8 = [&](ConstTensorView& w, ConstTensorView& scale) {
    memory.emplace_back(DeviceKind::kCuda, DType::kE4M3, std::vector<std::int64_t>{w.size(0), w.size(1)});
    w = std::as_const(memory.back()).view();
    memory.emplace_back(DeviceKind::kCuda, DType::kF32, std::vector<std::int64_t>{w.size(0) / 128, w.size(1) / 128});
    scale = std::as_const(memory.back()).view();
  };
  fp8(views.wq_a, views.wq_a_scale), fp8(views.wkv, views.wkv_scale), fp8(views.wq_b, views.wq_b_scale);
  fp8(views.wo_a, views.wo_a_scale), fp8(views.wo_b, views.wo_b_scale);
  const std::vector<float> table = rope_table(config.rope, 300);
  const DeviceTensor rope =
      DeviceTensor::copy_of(DeviceKind::kCuda, view_of(table.data(), {300, config.rope_head_dim}));
  const auto rounds = [&](const LayerOptions& options, std::int64_t tokens) {
    const AttentionLayer layer(config, views, options, rope.view());
    const std::string made = layer.plan(tokens, 1, 300, formats_of_small_caches(config)).describe();
    EXPECT_EQ(made.find("quantize_rows") != std::string::npos, layer.rounds_fp8_inputs(tokens)) << made;
    EXPECT_EQ(made.find("inverse_rope_quant") != std::string::npos, layer.rounds_fp8_inputs(tokens)) << made;
    return layer.rounds_fp8_inputs(tokens);
  };
  LayerOptions options{.device = DeviceKind::kCuda, .implementations = {}};
  EXPECT_FALSE(rounds(options, 1));
  EXPECT_FALSE(rounds(options, 64));
  EXPECT_TRUE(rounds(options, 65));
  options.deterministic = true;
  EXPECT_TRUE(rounds(options, 1));
  options.deterministic = false;
  options.fp8_output = OutputScale::kF32;
  EXPECT_TRUE(rounds(options, 1));
  options.fp8_output.reset();
  options.implementations["joint_projection"] = "cuda_stream";
  EXPECT_FALSE(rounds(options, 65));
}

/// One layer, two threads: while the capture of one is open, its forward already queued, the other runs a whole
/// forward. The side stream that joined the capture must not be the other's.
TEST_F(LayerGpu, OneThreadRecordsAForwardWhileAnotherRunsOne) {
  for (const LayerConfig& config : small_layers()) {
    if (!config.has_compressor()) continue;  // no side stream
    SCOPED_TRACE(config.compress_ratio);
    const Weights weights(config);
    const std::vector<float> table = rope_table(config.rope, 300);
    const DeviceTensor rope =
        DeviceTensor::copy_of(DeviceKind::kCuda, view_of(table.data(), {300, config.rope_head_dim}));
    const AttentionLayer layer(config, weights.placed, {.device = DeviceKind::kCuda}, rope.view());
    OwnStep alone(layer, config);
    alone.queue();
    const std::vector<std::uint16_t> want = alone.result();
    for (int round = 0; round < 3; ++round) {
      OwnStep recorded(layer, config);
      OwnStep beside(layer, config);
      std::latch queued(1);
      std::latch ran(1);
      std::string error;
      std::vector<std::uint16_t> got;
      std::thread other([&] {
        queued.wait();
        try {
          beside.queue();
          got = beside.result();
        } catch (const std::exception& e) {
          error = e.what();
        }
        ran.count_down();
      });
      Graph graph;
      std::string recording_error;
      try {
        graph = Graph(recorded.stream.get(), [&] {
          recorded.queue();
          queued.count_down();
          ran.wait();
        });
      } catch (const std::exception& e) {
        recording_error = e.what();
        if (!queued.try_wait()) queued.count_down();
      }
      other.join();
      ASSERT_EQ(recording_error, "");
      ASSERT_EQ(error, "");
      EXPECT_EQ(got, want) << "the thread that ran";
      graph.launch(recorded.stream.get());
      EXPECT_EQ(recorded.result(), want) << "the thread that recorded";
    }
  }
}

/// A prompt of 150 tokens through the C interface on the GPU, and through C++ on the CPU.
TEST_F(LayerGpu, ThroughCItIsTheHostsLayer) {
  constexpr std::int64_t kTokens = 150;
  for (const LayerConfig& config : small_layers()) {
    SCOPED_TRACE(config.compress_ratio);
    const Weights weights(config);
    const std::vector<float> table = rope_table(config.rope, 300);
    const KvLayout layout = make_kv_layout({&config, 1}, {});
    KvPool host_pool(layout, 200);
    KvPool pool(layout, 200, DeviceKind::kCuda);
    RequestBlocks host_blocks(layout);
    RequestBlocks blocks(layout);
    ASSERT_TRUE(host_blocks.reserve(host_pool, 0, kTokens) && blocks.reserve(pool, 0, kTokens));
    Batch b;
    b.add(kTokens, 0);
    for (std::size_t g = 0; g < layout.groups.size(); ++g) {
      const auto row = blocks.table(static_cast<int>(g));
      HostTensor& t =
          b.tables.emplace_back(DType::kI32, std::vector<std::int64_t>{1, static_cast<std::int64_t>(row.size())});
      std::ranges::copy(row, t.as<std::int32_t>());
    }
    HostTensor hidden(DType::kBF16, {kTokens, config.hidden_size});
    for (std::int64_t t = 0; t < kTokens; ++t) synthetic_hidden(1, 0, 0, t, hidden.view().slice(0, t, t + 1));

    const AttentionLayer reference(config, weights.host.views, {.implementations = {{"*", "ref"}}},
                                   view_of(table.data(), {300, config.rope_head_dim}));
    StepMetadata metadata(layout, {&config, 1});
    metadata.build(b.on(DeviceKind::kCpu));
    const LayerCaches caches = caches_of(host_pool, 0);
    const LayerPlan plan = reference.plan(metadata.shape(), caches);
    HostTensor workspace(DType::kU8, {static_cast<std::int64_t>(plan.workspace_bytes())});
    HostTensor want(DType::kBF16, {kTokens, config.hidden_size});
    reference.forward(plan, metadata.layer(0), caches, std::as_const(hidden).view(), want.view(),
                      {.data = workspace.data(), .bytes = workspace.bytes()});

    smla_layer_config c_config{};
    c_config.struct_size = sizeof c_config;
    c_config.hidden_size = config.hidden_size;
    c_config.num_heads = config.num_heads;
    c_config.q_lora_rank = config.q_lora_rank;
    c_config.o_lora_rank = config.o_lora_rank;
    c_config.o_groups = config.o_groups;
    c_config.compress_ratio = config.compress_ratio;
    c_config.index_n_heads = config.index_n_heads;
    c_config.index_topk = config.index_topk;
    c_config.rope_theta = config.rope.theta;
    if (config.rope.yarn) {
      c_config.yarn_factor = config.rope.yarn->factor;
      c_config.yarn_max_position = config.rope.yarn->original_max_position;
      c_config.yarn_beta_fast = config.rope.yarn->beta_fast;
      c_config.yarn_beta_slow = config.rope.yarn->beta_slow;
    }
    smla_layer_options options{};
    options.struct_size = sizeof options;
    options.max_position = 300;
    options.device = SMLA_CUDA;
    std::vector<smla_tensor> tensors;
    for (const DeviceTensor& t : weights.storage) tensors.push_back(test::describe_for_c(t.view()));
    std::vector<const char*> names;
    std::vector<const smla_tensor*> pointers;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      names.push_back(weights.names[i].c_str());
      pointers.push_back(&tensors[i]);
    }
    smla_layer* layer = nullptr;
    ASSERT_EQ(smla_layer_create(&c_config, &options, names.data(), pointers.data(),
                                static_cast<std::int64_t>(names.size()), &layer),
              SMLA_OK)
        << smla_last_error();
    smla_step* step = nullptr;
    ASSERT_EQ(smla_step_create(layer, &step), SMLA_OK) << smla_last_error();
    const StepBatch batch = b.on(DeviceKind::kCuda);
    test::CBatch c_batch(batch);
    EXPECT_EQ(smla_step_build(step, &c_batch.view), SMLA_INVALID_ARGUMENT) << "without the host's counts";
    c_batch.view.host_query_start_loc = b.start.data();
    c_batch.view.host_seq_lens = b.seq.data();
    ASSERT_EQ(smla_step_build(step, &c_batch.view), SMLA_OK) << smla_last_error();

    std::array<smla_cache, SMLA_NUM_CACHES> memory{};
    smla_layer_caches c_caches{};
    c_caches.struct_size = sizeof c_caches;
    for (std::size_t role = 0; role < SMLA_NUM_CACHES; ++role) {
      if (layout.find(0, static_cast<CacheRole>(role)) == nullptr) continue;
      const PagedCache cache = pool.cache(0, static_cast<CacheRole>(role));
      memory[role].struct_size = sizeof(smla_cache);
      memory[role].format = cache.format->name.data();
      memory[role].base = cache.base;
      memory[role].num_blocks = cache.num_blocks;
      memory[role].block_size = cache.block_size;
      memory[role].block_stride_bytes = cache.block_stride_bytes;
      c_caches.cache[role] = &memory[role];
    }
    std::size_t bytes = 0;
    ASSERT_EQ(smla_layer_workspace(layer, kTokens, 1, kTokens, &bytes), SMLA_OK) << smla_last_error();
    const DeviceMemory lent(DeviceKind::kCuda, bytes);
    const DeviceTensor in = DeviceTensor::copy_of(DeviceKind::kCuda, hidden.view());
    DeviceTensor out(DeviceKind::kCuda, DType::kBF16, {kTokens, config.hidden_size});
    const smla_tensor c_in = test::describe_for_c(in.view());
    const smla_tensor c_out = test::describe_for_c(std::as_const(out).view());
    ASSERT_EQ(smla_layer_forward(layer, nullptr, step, &c_caches, &c_in, &c_out, lent.data(), bytes, nullptr), SMLA_OK)
        << smla_last_error();
    HostTensor got(DType::kBF16, {kTokens, config.hidden_size});
    copy_bytes(DeviceKind::kCuda, got.data(), out.data(), got.bytes());
    double error = 0;
    double norm = 0;
    for (std::int64_t i = 0; i < want.numel(); ++i) {
      const double w = to_float(want.as<BF16>()[i]);
      error += std::pow(w - to_float(got.as<BF16>()[i]), 2);
      norm += w * w;
    }
    EXPECT_GT(norm, 0);
    EXPECT_LE(std::sqrt(error / norm), 0.02);  // codes of rows and the top-k's boundary may differ by a rounding
    smla_step_destroy(step);
    smla_layer_destroy(layer);
  }
}

}  // namespace
}  // namespace smla
