#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/host_tensor.h"
#include "engine/scheduler.h"
#include "engine/step_tensors.h"
#include "engine/synthetic.h"
#include "sparsemla/engine.h"
#include "sparsemla/weights.h"

namespace smla {

struct Engine::State {
  EngineOptions options;
  EngineObserver* observer = nullptr;
  std::vector<LayerConfig> configs;
  std::vector<OwnedLayerWeights> weights;
  std::vector<LayerTensors> loaded;  ///< one a layer when there is a checkpoint
  std::vector<std::pair<RopeConfig, HostTensor>> ropes;
  std::vector<AttentionLayer> layers;
  std::unique_ptr<KvPool> pool;
  std::unique_ptr<Scheduler> scheduler;
  std::unique_ptr<StepMetadata> metadata;
  std::vector<std::unique_ptr<Request>> requests;
  std::unordered_map<std::int64_t, std::size_t> by_id;
  HostTensor workspace{DType::kU8, {0}};
  RunTotals totals;
  std::string implementations;

  void add_layer(std::int64_t model_layer, const LayerConfig& config);
  void set_cache_scales();
  std::string refusal(const RequestSpec& spec) const;
  Request& alive(std::int64_t id, bool running) const;
  ConstTensorView rope_of(const RopeConfig& config);
  void run_layers(const StepTensors& batch, HostTensor& x, HostTensor& y);
  void complete(const StepTensors& batch, const HostTensor& x, double now);
};

}  // namespace smla
