#pragma once

// What tests of layers on a GPU share: small layers, their weights, and batches.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "device/device_tensor.h"
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

}  // namespace layer_gpu
}  // namespace smla
