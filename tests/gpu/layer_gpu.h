#pragma once

// What tests of layers on a GPU share: small layers, their weights, and batches.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "device/device_tensor.h"
#include "device/streams.h"
#include "engine/synthetic.h"
#include "gpu/gpu_run.h"
#include "model/weight_table.h"
#include "property/small_model.h"
#include "sparsemla/layer.h"

namespace smla {

class LayerGpu : public test::GpuTest {};

namespace layer_gpu {

inline std::vector<LayerConfig> small_layers() {
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

inline LayerCaches formats_of_small_caches(const LayerConfig& config) {
  LayerCaches caches;
  caches[CacheRole::kWindow] = {.format = &fp8_ds_mla_rows(), .block_size = 64};
  caches[CacheRole::kCompressed] = {.format = &fp8_ds_mla_rows(), .block_size = 64};
  caches[CacheRole::kIndex] = {.format = &index_fp8_rows(), .block_size = 64};
  caches[CacheRole::kState] = {.format = &state_rows(512, config.has_indexer() ? 2 : 1), .block_size = 4};
  caches[CacheRole::kIndexState] = {.format = &state_rows(128, 2), .block_size = 4};
  return caches;
}

inline DeviceTensor rope_on_gpu(const LayerConfig& config, std::int64_t positions) {
  const std::vector<float> table = rope_table(config.rope, positions);
  return DeviceTensor::copy_of(DeviceKind::kCuda, view_of(table.data(), {positions, config.rope_head_dim}));
}

/// One step of a layer over caches of its own: everything that a thread needs to run it.
struct OwnStep {
  /// Of a request: tokens of the step, and tokens before them.
  struct Request {
    std::int32_t query, before;
  };
  OwnStep(const AttentionLayer& layer_in, const LayerConfig& config,
          const std::vector<Request>& requests = {{1, 3}, {1, 64}, {1, 127}, {1, 254}, {1, 7}})
      : layer(layer_in),
        layout(make_kv_layout({&config, 1}, {})),
        stream(DeviceKind::kCuda),
        pool(layout, 1024, DeviceKind::kCuda),
        metadata(layout, {&config, 1}, FrontEnd::kFlashMla, DeviceKind::kCuda) {
    for (const Request& r : requests) batch.add(r.query, r.before);
    const std::int64_t tokens = batch.start.back();
    out = DeviceTensor(DeviceKind::kCuda, DType::kBF16, {tokens, config.hidden_size});
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
    fill_bytes(DeviceKind::kCuda, memory().base, 0, memory_bytes());
    pool.zero(blocks);  // the requests have a past, which is read
    metadata.build(batch.on(DeviceKind::kCuda));
    caches = caches_of(pool, 0);
    plan = layer.plan(metadata.shape(), caches);
    workspace = DeviceMemory(DeviceKind::kCuda, plan.workspace_bytes());
    HostTensor hidden(DType::kBF16, {tokens, config.hidden_size});
    for (std::int64_t t = 0; t < tokens; ++t) synthetic_hidden(1, 0, 0, t, hidden.view().slice(0, t, t + 1));
    in = DeviceTensor::copy_of(DeviceKind::kCuda, hidden.view());
    synchronize(DeviceKind::kCuda);
  }
  void queue(LayerObserver* observer = nullptr) {
    layer.forward(plan, metadata.layer(0), caches, std::as_const(in).view(), out.view(),
                  {.data = workspace.data(), .bytes = workspace.bytes()}, stream.get(), observer);
  }
  std::vector<std::uint16_t> result() {
    synchronize(DeviceKind::kCuda, stream.get());
    std::vector<std::uint16_t> bits(static_cast<std::size_t>(out.bytes() / 2));
    copy_bytes(DeviceKind::kCuda, bits.data(), out.data(), out.bytes());
    return bits;
  }

  /// What is in the caches, all of them: the blocks of the pool but the last.
  PagedCache memory() const { return pool.cache(0, CacheRole::kWindow); }
  std::size_t memory_bytes() const {
    return static_cast<std::size_t>((memory().num_blocks - 1) * memory().block_stride_bytes);
  }
  std::vector<std::uint8_t> contents() const {
    std::vector<std::uint8_t> bytes(memory_bytes());
    copy_bytes(DeviceKind::kCuda, bytes.data(), memory().base, bytes.size());
    return bytes;
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

}  // namespace layer_gpu
}  // namespace smla
