// A step's metadata on the GPU is the host's bit for bit; what a batch on a GPU must have.
#include <cstring>
#include <numeric>

#include "gpu/layer_gpu.h"
#include "sparsemla/validate.h"

namespace smla {
namespace {

using namespace layer_gpu;

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

}  // namespace
}  // namespace smla
