#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "bench/choices.h"
#include "bench/device_inputs.h"
#include "bench/device_layer.h"
#include "bench/device_machine.h"
#include "bench/device_stack.h"
#include "bench/inputs.h"
#include "bench/serve.h"
#include "gpu/gpu_run.h"
#include "property/fp8_checkpoint.h"

namespace smla::bench {
namespace {

using BenchGpu = test::GpuTest;

const MeasureOptions kQuick{.min_seconds = 0, .min_runs = 24};

/// Short measurements of a model's shapes on the GPU.
Options quick_options(const ModelConfig& model) {
  Options options;
  options.model = model;
  options.device = DeviceKind::kCuda;
  options.measure = kQuick;
  return options;
}

std::vector<std::int32_t> slots_of(const IndexRule& rule, std::int64_t queries, std::int64_t width,
                                   const HostTensor& tables) {
  DeviceTensor slots(DeviceKind::kCuda, DType::kI32, {queries, width});
  const DeviceTensor device = DeviceTensor::copy_of(DeviceKind::kCuda, tables.view());
  gpu_make_indices(slots.view(), device.view(), rule, {});
  const HostTensor host = to_host(std::as_const(slots).view(), {});
  return {host.as<std::int32_t>(), host.as<std::int32_t>() + host.numel()};
}

TEST_F(BenchGpu, IndicesAreTheRequestsOwnAndDistinct) {
  const HostTensor order = random_choices(1, 6 * 5, 30, 1);
  HostTensor tables(DType::kI32, {6, 5});
  std::copy_n(order.as<std::int32_t>(), 30, tables.as<std::int32_t>());
  for (const auto kind : {IndexRule::Kind::kAll, IndexRule::Kind::kSliding, IndexRule::Kind::kRandom}) {
    IndexRule rule{.queries_of_request = 2, .entries = 37, .kind = kind, .seed = 5, .first_below = 8, .page = 8};
    const std::int64_t width = 28;
    const std::vector<std::int32_t> slots = slots_of(rule, 12, width, tables);
    for (std::int64_t q = 0; q < 12; ++q) {
      const std::set<std::int32_t> row(slots.begin() + q * width, slots.begin() + (q + 1) * width);
      EXPECT_EQ(static_cast<std::int64_t>(row.size()), width);
      for (std::int64_t c = 0; c < width; ++c) {
        std::int64_t entry = c;
        if (kind == IndexRule::Kind::kRandom) entry = Shuffle(37).at(c, mix(5, static_cast<std::uint64_t>(q)));
        if (kind == IndexRule::Kind::kSliding)
          entry += static_cast<std::int64_t>(mix(5, static_cast<std::uint64_t>(q / 2)) % 8) + q % 2;
        EXPECT_EQ(slots[static_cast<std::size_t>(q * width + c)],
                  tables.as<std::int32_t>()[q / 2 * 5 + entry / 8] * 8 + entry % 8);
      }
    }
  }
  EXPECT_THROW(slots_of({.entries = 50, .page = 8}, 6, 10, tables), InvalidArgument) << "more entries than blocks";
  EXPECT_THROW(slots_of({.entries = 8, .page = 8}, 6, 10, tables), InvalidArgument) << "more columns than entries";
}

TEST_F(BenchGpu, RowsAreValidAndComeBackAsTheyAre) {
  for (const RowFormat* format :
       {&fp8_ds_mla_rows(), &bf16_rows(), &fp8_per_tensor_rows(), &index_fp8_rows(), &index_mxfp4_rows()}) {
    const DeviceCache cache(*format, 9, 2, 3, {});
    HostTensor order(DType::kI32, {3});
    for (int i = 0; i < 3; ++i) order.as<std::int32_t>()[i] = 17 - 8 * i;
    const DeviceTensor slots = DeviceTensor::copy_of(DeviceKind::kCuda, std::as_const(order).view());
    const PackedRows packed = pack_rows(cache.cache(), static_cast<const std::int32_t*>(slots.data()), 3, {});
    HostTensor whole(DType::kU8, {9 * cache.cache().block_stride_bytes});
    copy_bytes(DeviceKind::kCuda, whole.data(), cache.cache().base, whole.bytes());
    synchronize(DeviceKind::kCuda);
    const auto bytes = static_cast<std::size_t>(format->data_bytes);
    for (std::size_t i = 0; i < 3; ++i) {
      const std::int64_t slot = order.as<std::int32_t>()[i];
      const std::uint8_t* block = whole.as<std::uint8_t>() + slot / 2 * cache.cache().block_stride_bytes;
      EXPECT_TRUE(std::equal(packed.bytes.as<std::uint8_t>() + i * bytes,
                             packed.bytes.as<std::uint8_t>() + (i + 1) * bytes,
                             block + static_cast<std::size_t>(slot % 2) * bytes))
          << format->name;
    }
  }
}

TEST_F(BenchGpu, UnwrittenNumbersAreCounted) {
  DeviceTensor t = device_numbers(DType::kBF16, {1000}, 1, 2.0F, {});
  EXPECT_EQ(gpu_count_nan(std::as_const(t).view(), {}), 0);
  fill_bytes(DeviceKind::kCuda, static_cast<std::uint16_t*>(t.data()) + 990, 0xFF, 20);
  EXPECT_EQ(gpu_count_nan(std::as_const(t).view(), {}), 10);
}

TEST_F(BenchGpu, TheTimerTellsSomethingFromNothing) {
  const DeviceTimer timer;
  const DeviceMemory a(DeviceKind::kCuda, std::size_t{256} << 20);
  const DeviceMemory b(DeviceKind::kCuda, std::size_t{256} << 20);
  const std::vector<std::function<void()>> calls{
      [] {}, [&] { copy_bytes(DeviceKind::kCuda, b.data(), a.data(), a.bytes(), timer.stream()); }};
  const std::vector<GpuRecording> recordings = timer.record(calls);
  const double nothing = timer.time(kQuick, std::span(recordings).first(1)).median;
  const double copy = timer.time(kQuick, std::span(recordings).last(1)).median;
  EXPECT_LT(std::abs(nothing), 3e-6);
  EXPECT_GT(copy, 10 * std::abs(nothing));
  EXPECT_LT(static_cast<double>(2 * a.bytes()) / copy, 20e12) << "faster than any memory";
}

TEST_F(BenchGpu, CeilingsAreInTheirOrder) {
  const Machine m = measure_gpu(kQuick);
  EXPECT_GT(m.peak("product"), 1e12);
  EXPECT_GT(m.peak("mma"), 1e12);
  EXPECT_GT(m.bandwidth("copy"), 1e10);
  EXPECT_GT(m.bandwidth("gather_2"), 1e10);
  EXPECT_LT(m.bandwidth("gather_64"), 1.5 * m.bandwidth("copy"));
  EXPECT_GE(m.timer, 0);
  // Of few runs medians are as good as the timer says.
  EXPECT_GT(m.launch, -m.timer);
  EXPECT_GT(m.follow, m.launch - m.timer);
  EXPECT_LT(m.follow, 50e-6);
  EXPECT_FALSE(m.product.empty());
}

TEST_F(BenchGpu, AttentionCellsAreRightInEveryFormat) {
  Options options = quick_options(load_model_config("v4-flash"));
  options.head_counts = {8, 64};
  options.batches = {1, 3};
  options.tokens = {70};
  options.next_n = {1, 2};
  options.layers = {"swa", "c4a_32k", "c128_32k"};
  options.pools = {8192};
  options.key_counts = {128, 640, 384};
  for (const RowFormat* rows : {&fp8_ds_mla_rows(), &bf16_rows(), &fp8_per_tensor_rows()}) {
    options.rows = rows;
    int cells = 0;
    bench_device_attention(options, [&](const Row& row) {
      ++cells;
      EXPECT_EQ(row.skipped, "");
      EXPECT_TRUE(row.check.done) << row.name << " " << row.shape;
      EXPECT_EQ(row.check.failure, "") << row.name << " " << row.shape;
      EXPECT_GT(row.time.median, 0);
      EXPECT_GE(row.time.runs, 8);
    });
    EXPECT_EQ(cells, 2 * (3 * 2 * 2 + 1));
  }
}

void expect_right(const Row& row, bool checked) {
  SCOPED_TRACE(row.group + " " + row.name + " " + row.shape);
  EXPECT_EQ(row.skipped, "");
  EXPECT_EQ(row.check.failure, "");
  EXPECT_TRUE(row.check.done || !checked);
  EXPECT_GT(row.time.median, 0);
  EXPECT_GT(row.bytes, 0);
}

TEST_F(BenchGpu, IndexerCellsAreRightInEveryFormat) {
  Options options = quick_options(load_model_config("v4-flash"));
  options.batches = {1, 3};
  options.tokens = {90};
  options.next_n = {2};
  options.pools = {600, 9000};
  for (const RowFormat* rows : {&index_fp8_rows(), &index_mxfp4_rows()}) {
    options.index_rows = rows;
    bench_device_indexer(options, [&](const Row& row) { expect_right(row, true); });
  }
}

TEST_F(BenchGpu, OpsAreRight) {
  Options options = quick_options(load_model_config("v4-flash"));
  options.tokens = {1, 5, 130, 257};
  int rows = 0;
  bench_device_ops(options, [&](const Row& row) {
    ++rows;
    expect_right(row, row.name.find("x 257") == std::string::npos);
  });
  EXPECT_EQ(rows, 19 * 4 + 3 * 3);
}

TEST_F(BenchGpu, ProjectionsAreRight) {
  Options options = quick_options(load_model_config("v4-flash"));
  options.batches = {1, 3};
  options.tokens = {100};
  int rows = 0;
  bench_device_projection(options, [&](const Row& row) {
    ++rows;
    expect_right(row, true);
  });
  EXPECT_EQ(rows, 8 * 3);
}

TEST_F(BenchGpu, ProjectionsOfFp8WeightsAreRightAndCountTheirBytes) {
  Options options = quick_options(test::fp8_model());
  options.fp8_weights = true;
  options.batches = {1, 3};
  options.tokens = {100};
  const std::int64_t k = options.model.hidden_size;
  const std::int64_t n = options.model.q_lora_rank;
  const std::int64_t weights = n * k + 4 * ((n + 127) / 128) * (k / 128);
  for (const char* implementation : {"", "cuda_stream"}) {
    SCOPED_TRACE(implementation);
    const bool named = *implementation != 0;
    options.implementations.clear();
    if (named) options.implementations["projection"] = implementation;
    int fp8 = 0;
    int rows = 0;
    bench_device_projection(options, [&](const Row& row) {
      expect_right(row, true);
      ++rows;
      const bool rounds = !named && row.name.ends_with(" x 100");  // layers do not, of few tokens
      const bool kept = row.shape.ends_with(rounds ? "fp8 weights, fp8 inputs" : "fp8 weights, bf16 inputs");
      fp8 += kept ? 1 : 0;
      EXPECT_TRUE(kept || row.shape.ends_with(", bf16 weights")) << row.shape;
      EXPECT_EQ(row.product_rate, kept && rounds ? 2 : 1) << row.name;
      EXPECT_TRUE(!named || row.implementation == implementation) << row.implementation;
      if (row.name == "wq_a x 3") {
        EXPECT_EQ(row.bytes, static_cast<double>(weights + 3 * 2 * k + 3 * 2 * n));
      }
      if (row.name == "wq_a x 100") {
        const std::int64_t inputs = rounds ? 100 * k + 4 * 100 * (k / 128) : 100 * 2 * k;
        EXPECT_EQ(row.bytes, static_cast<double>(weights + inputs + 100 * 2 * n));
      }
    });
    EXPECT_EQ(rows, 8 * 3);
    EXPECT_EQ(fp8, 6 * 3);
  }
}

TEST_F(BenchGpu, ProjectionsOfNvfp4WeightsAreRightAndCountTheirBytes) {
  Options options = quick_options(test::fp8_model());
  options.nvfp4_weights = true;
  options.batches = {1, 3};
  options.tokens = {70};
  const std::int64_t k = options.model.hidden_size;
  const std::int64_t n = options.model.q_lora_rank;
  int nvfp4 = 0;
  int rows = 0;
  bench_device_projection(options, [&](const Row& row) {
    expect_right(row, true);
    ++rows;
    const bool kept = row.shape.ends_with(", nvfp4 weights");
    nvfp4 += kept ? 1 : 0;
    EXPECT_TRUE(kept || row.shape.ends_with(", bf16 weights")) << row.shape;
    EXPECT_EQ(row.product_rate, 1) << row.name;
    if (row.name == "wq_a x 3") {
      EXPECT_EQ(row.bytes, static_cast<double>(n * k / 2 + n * k / 16 + 3 * 2 * k + 3 * 2 * n));
    }
  });
  EXPECT_EQ(rows, 8 * 3);
  EXPECT_EQ(nvfp4, 6 * 3);
}

TEST_F(BenchGpu, LayersRunAndTheirNodesAreCounted) {
  Options options = quick_options(load_model_config("tiny"));
  options.batches = {1, 3};
  options.contexts = {700};
  options.prefills = {130};
  options.next_n = {1, 2};
  for (const std::int64_t heads : {0, 4}) {
    options.head_counts = {heads};
    int rows = 0;
    bench_device_layer(options, [&](const Row& row) {
      ++rows;
      expect_right(row, true);
      ASSERT_EQ(row.stages.size(), 6U);
      EXPECT_EQ(row.stages[0].first, "kernels");
      EXPECT_GE(row.stages[0].second, 2) << row.name;
      // C4A: norms, compressors, index queries, scores, choice, attention, merge; and five products
      // where none is the library's
      EXPECT_LE(row.stages[0].second, row.stages[1].second == 0 ? 12 : 7) << row.name;
      EXPECT_GT(row.stages[5].second, 0) << row.name;
    });
    EXPECT_EQ(rows, 3 * (2 * 2 + 1));
  }
}

TEST_F(BenchGpu, LayersOfFp8WeightsAreRightAndTheirFloorIsLower) {
  Options options = quick_options(test::fp8_model());
  options.batches = {2};
  options.contexts = {700};
  options.prefills = {300};
  for (const char* joint : {"", "cuda_stream"}) {
    SCOPED_TRACE(joint);
    options.implementations.clear();
    if (*joint != 0) options.implementations["joint_projection"] = joint;
    std::vector<Row> rows[2];
    for (const bool fp8 : {false, true}) {
      options.fp8_weights = fp8;
      bench_device_layer(options, [&](const Row& row) {
        expect_right(row, true);
        EXPECT_EQ(row.shape.ends_with("fp8 weights"), fp8);
        EXPECT_EQ(row.product_rate > 1, fp8);
        std::printf("[ measured ] %s %s: l2 %.1e\n", row.name.c_str(), row.shape.c_str(), row.check.l2);
        rows[fp8 ? 1 : 0].push_back(row);
      });
    }
    ASSERT_EQ(rows[0].size(), 3 * 2U);
    ASSERT_EQ(rows[1].size(), rows[0].size());
    for (std::size_t i = 0; i < rows[0].size(); ++i) {
      EXPECT_LT(rows[1][i].bytes, rows[0][i].bytes);
      EXPECT_EQ(rows[1][i].flops, rows[0][i].flops);
      const bool rounds = rows[1][i].implementation.find("quantize_rows") != std::string::npos;
      const bool few = rows[1][i].name.ends_with("decode");
      EXPECT_EQ(rounds, *joint == 0 && !few) << rows[1][i].name << ": " << rows[1][i].implementation;
    }
  }
}

TEST_F(BenchGpu, LayersOfNvfp4WeightsAreRightAndTheirFloorIsLower) {
  Options options = quick_options(test::fp8_model());
  options.batches = {2};
  options.contexts = {700};
  options.prefills = {300};
  std::vector<Row> rows[2];
  for (const bool nvfp4 : {false, true}) {
    options.nvfp4_weights = nvfp4;
    bench_device_layer(options, [&](const Row& row) {
      expect_right(row, true);
      EXPECT_EQ(row.shape.ends_with(", nvfp4 weights"), nvfp4);
      EXPECT_EQ(row.product_rate, 1);
      std::printf("[ measured ] %s %s: l2 %.1e\n", row.name.c_str(), row.shape.c_str(), row.check.l2);
      rows[nvfp4 ? 1 : 0].push_back(row);
    });
  }
  ASSERT_EQ(rows[0].size(), 3 * 2U);
  ASSERT_EQ(rows[1].size(), rows[0].size());
  for (std::size_t i = 0; i < rows[0].size(); ++i) {
    EXPECT_LT(rows[1][i].bytes, rows[0][i].bytes);
    EXPECT_EQ(rows[1][i].flops, rows[0][i].flops);
  }
}

TEST_F(BenchGpu, AWholeStackRunsAndIsChecked) {
  const Options options = quick_options(test::fp8_model());
  const DeviceTimer timer;
  const StackOnGpu stack(options, 700);
  for (const auto& [ratio, layers] : layers_by_ratio(options.model))
    EXPECT_EQ(stack.first_of(ratio).config.compress_ratio, ratio);
  for (const std::int64_t requests : {1, 6}) {
    const Row row = stack.measure(requests, 700, timer);
    expect_right(row, true);
    EXPECT_THAT(row.shape, testing::HasSubstr(std::to_string(options.model.num_layers) + " "));
    EXPECT_EQ(row.stages.size(), 4U);
    double sum = 0;
    for (const auto& [position, us] : row.stages) sum += us;
    EXPECT_NEAR(row.time.median, sum / 4e6, 1e-12);
  }
}

// Layers choose a stream of their own for compressors by the size of wq_b, which no tiny model has.
TEST_F(BenchGpu, CompressorsOnAStreamOfTheirOwnAreChecked) {
  Options options = quick_options(load_model_config("v4-flash"));
  options.fp8_weights = true;
  constexpr std::int64_t kLength = 8192;
  const DeviceTimer timer;
  const LayerOnGpu layer(options, slice_of_layer(options, 4, 0), kLength);
  for (const std::int64_t requests : {1, 2, 5, 8, 9}) {
    SCOPED_TRACE(testing::Message() << requests << " requests");
    LayerRun run(options, layer, {.requests = requests, .tokens = 1, .length = kLength, .staggered = true}, timer);
    const std::vector<GpuRecording> recordings = timer.record(run.calls());
    for (int i = 0; i < 5; ++i) {
      const Check check = run.check([&] { timer.replay(recordings.back()); });
      ASSERT_TRUE(check.done);
      ASSERT_EQ(check.failure, "");
    }
  }
}

TEST_F(BenchGpu, ALayersWrongOutputsAreSeen) {
  Options options;
  options.model = load_model_config("tiny");
  options.device = DeviceKind::kCuda;
  const DeviceTimer timer;
  for (const int ratio : {1, 4, 128}) {
    for (const RowFormat* rows : {&fp8_ds_mla_rows(), &bf16_rows(), &fp8_per_tensor_rows()}) {
      SCOPED_TRACE(testing::Message() << "ratio " << ratio << ", " << rows->name);
      options.rows = rows;
      const LayerOnGpu layer(options, slice_of_layer(options, ratio, 0), 700);
      LayerRun run(options, layer, {.requests = 3, .tokens = 1, .length = 700}, timer);
      const std::function<void()> last = run.calls().back();
      const Check right = run.check(last);
      EXPECT_TRUE(right.done);
      EXPECT_EQ(right.failure, "");
      EXPECT_THAT(run.check([] {}).failure, testing::HasSubstr("were not written"));
      // Another step's outputs, as if the last step's kernels had read the wrong list.
      EXPECT_THAT(run.check(run.calls().front()).failure,
                  testing::HasSubstr("not those of the ops one after the other"));
      // Both ways of running it agree on a wrong weight; the host does not.
      auto* sinks = static_cast<float*>(const_cast<void*>(layer.views.attn_sink.data));
      fill_bytes(DeviceKind::kCuda, sinks, 0x41, layer.views.attn_sink.size(0) * sizeof(float));  // 12.1
      EXPECT_THAT(run.check(last).failure, testing::HasSubstr("l2 is over"));
    }
  }
}

TEST_F(BenchGpu, AWrongScaleOfALayersFp8WeightsIsSeen) {
  Options options;
  options.model = test::fp8_model();
  options.device = DeviceKind::kCuda;
  options.fp8_weights = true;
  const DeviceTimer timer;
  for (const bool rounds : {false, true}) {
    for (const int ratio : {1, 4, 128}) {
      SCOPED_TRACE(testing::Message() << "ratio " << ratio << ", rounds " << rounds);
      const LayerOnGpu layer(options, slice_of_layer(options, ratio, 0), 700);
      LayerRun run(options, layer, {.requests = rounds ? 130 : 2, .tokens = 1, .length = 700}, timer);
      EXPECT_EQ(run.rounds_inputs(), rounds);
      const std::function<void()> last = run.calls().back();
      const Check right = run.check(last);
      EXPECT_TRUE(right.done);
      EXPECT_EQ(right.failure, "");
      std::printf("[ measured ] ratio %d %s: l2 %.1e\n", ratio, rounds ? "rounded" : "as they are", right.l2);
      auto* scale = static_cast<float*>(const_cast<void*>(layer.views.wo_b_scale.data));
      const HostTensor before = to_host(layer.views.wo_b_scale, timer.stream());
      const float doubled = 2 * before.as<float>()[0];
      copy_bytes(DeviceKind::kCuda, scale, &doubled, sizeof doubled, timer.stream());
      EXPECT_THAT(run.check(last).failure, testing::HasSubstr("l2 is over"));
    }
  }
}

TEST_F(BenchGpu, AWrongScaleOfALayersNvfp4WeightsIsSeen) {
  Options options;
  options.model = test::fp8_model();
  options.device = DeviceKind::kCuda;
  options.nvfp4_weights = true;
  const DeviceTimer timer;
  for (const std::int64_t requests : {2, 130}) {
    for (const int ratio : {1, 4, 128}) {
      SCOPED_TRACE(testing::Message() << "ratio " << ratio << ", requests " << requests);
      const LayerOnGpu layer(options, slice_of_layer(options, ratio, 0), 700);
      LayerRun run(options, layer, {.requests = requests, .tokens = 1, .length = 700}, timer);
      EXPECT_FALSE(run.rounds_inputs());
      const std::function<void()> last = run.calls().back();
      EXPECT_EQ(run.check(last).failure, "");
      auto* scale = static_cast<float*>(const_cast<void*>(layer.views.wo_b_global_scale.data));
      const HostTensor before = to_host(layer.views.wo_b_global_scale, timer.stream());
      const float more = 1.1F * before.as<float>()[0];
      copy_bytes(DeviceKind::kCuda, scale, &more, sizeof more, timer.stream());
      EXPECT_THAT(run.check(last).failure, testing::HasSubstr("l2 is over"));
    }
  }
}

TEST_F(BenchGpu, NodesAreThoseOfTheCall) {
  const OwnedStream stream(DeviceKind::kCuda);
  DeviceTensor t(DeviceKind::kCuda, DType::kF32, {64});
  const auto call = [&] {
    fill_bytes(DeviceKind::kCuda, t.data(), 1, t.bytes(), stream.get());
    gpu_random(t.view(), 1, 1, stream.get());
    gpu_random(t.view(), 2, 1, stream.get());
  };
  call();
  const GpuNodes nodes = gpu_count_nodes(stream.get(), call);
  EXPECT_EQ(nodes.memsets, 1);
  EXPECT_EQ(nodes.kernels, 2);
  EXPECT_EQ(nodes.library, 0);
  EXPECT_EQ(nodes.copies, 0);
  ASSERT_EQ(nodes.names.size(), 1U);
  EXPECT_EQ(nodes.names.begin()->second, 2);
}

}  // namespace
}  // namespace smla::bench
