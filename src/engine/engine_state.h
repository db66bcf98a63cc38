#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "device/device_tensor.h"
#include "device/streams.h"
#include "engine/block_tables.h"
#include "engine/device_step.h"
#include "engine/draft_blocks.h"
#include "engine/scheduler.h"
#include "engine/step_tensors.h"
#include "engine/synthetic.h"
#include "layer/placed_layer.h"
#include "sparsemla/engine.h"
#include "sparsemla/weights.h"

namespace smla {

inline constexpr std::string_view kEngine = "engine";

struct Engine::State {
  EngineOptions options;
  int ordinal = 0;     ///< of the GPU that it runs on
  OwnedStream stream;  ///< goes last
  EngineObserver* observer = nullptr;
  std::vector<LayerConfig> configs;  ///< of all layers: the stack's, then those that draft
  std::vector<OwnedLayerWeights> weights;
  std::vector<LayerTensors> loaded;  ///< one a layer when there is a checkpoint
  std::vector<std::shared_ptr<const RopeTable>> ropes;
  std::vector<PlacedLayer> layers;
  std::unique_ptr<KvPool> pool;
  std::unique_ptr<PrefixCache> prefixes;  ///< null without one; goes before the pool
  std::unique_ptr<Scheduler> scheduler;
  std::unique_ptr<StepMetadata> metadata;
  std::unique_ptr<DraftStep> drafts;  ///< null without layers that draft; serves recorded steps, too
  std::vector<std::unique_ptr<Request>> requests;
  std::unordered_map<std::int64_t, Request*> by_id;
  DeviceTensor workspace;
  DeviceStep eager;
  std::unique_ptr<BlockTables> tables;
  std::unique_ptr<DecodeGraphs> graphs;
  RunTotals totals;
  std::string implementations;

  /// Layers that do not draft.
  std::size_t stack() const { return options.layers.size(); }
  std::vector<Communicator*> ranks() const;
  void agree(const std::vector<Scheduled>& parts) const;
  void wait_for_ranks() const;
  bool step(const std::function<double()>& now);
  void add_layer(std::int64_t model_layer, const LayerConfig& config);
  void set_cache_scales();
  std::string refusal(const RequestSpec& spec) const;
  void check_device() const { check_current_device(kEngine, device(), ordinal); }
  Request& alive(std::int64_t id, bool running) const;
  std::shared_ptr<const RopeTable> rope_of(const RopeConfig& config);
  DeviceKind device() const { return options.layer.device; }
  bool recordable(const StepTensors& batch) const;
  /// The batch through the stack; x: hidden states in, residual stream out.
  void run_layers(const StepTensors& batch, HostTensor& x);
  void update_tables(const StepTensors& batch);
  void run_eager(const StepTensors& batch, HostTensor& x);
  Workspace workspace_of(std::size_t bytes);
  void forward_eager(std::size_t layer, StepMetadata& step_metadata, std::int64_t row, const TensorView& x,
                     const TensorView& y);
  StepBatch upload_blocks(const StepTensors& blocks, const StepTensors& batch, const StepSizes& sizes,
                          std::span<const ConstTensorView> views);
  void draft_eager(const StepTensors& batch);
  void insert_contexts(const StepMetadata& step_metadata, const ConstTensorView& x, Workspace lent);
  std::size_t context_bytes(std::int64_t tokens) const;
  void show_blocks(std::size_t layer, const StepTensors& blocks, const ConstTensorView& x,
                   const ConstTensorView& y) const;
  void show_context(const StepTensors& batch, const ConstTensorView& x) const;
  void run_graph(const StepTensors& batch, HostTensor& x);
  void reserve_graphs();
  void record(DecodeGraph& g, const StepBatch& step, const StepBatch* blocks);
  void queue_decode(DecodeGraph& g, const StepBatch& step, const StepBatch* blocks);
  void queue_layer(DecodeGraph& g, std::size_t layer, StepMetadata& step_metadata, std::int64_t row,
                   const TensorView& x, const TensorView& y);
  void add_residual(std::size_t layer, const TensorView& x, const TensorView& y);
  void each_wanted(std::int64_t layer, const StepTensors& batch,
                   const std::function<void(std::int64_t, std::int64_t)>& show_run) const;
  std::vector<StepRow> shown_rows(std::int64_t layer, std::span<const StepRow> rows, std::int64_t tokens) const;
  void show(std::int64_t layer, const StepTensors& batch, const ConstTensorView& x, const ConstTensorView& y,
            const ConstTensorView& topk) const;
  void keep_prefix(Request& request, std::int64_t before);
  void complete(const StepTensors& batch, const HostTensor& x, double now);
};

}  // namespace smla
