#pragma once

// Python's view of a layer: AttentionLayer and Step, over tensors of any framework.

#include <nanobind/nanobind.h>

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "python/call.h"
#include "python/tensors.h"
#include "sparsemla/layer.h"

namespace smla::python {

/// A view of a tensor of Python. @throws InvalidArgument for more than four dimensions and for strides of 0.
TensorView view_tensor(const std::string& name, const Tensor& tensor);

/// @throws InvalidArgument for a tensor in another place.
void check_place(const std::string& name, const Tensor& tensor, const Place& place);

/// The stream that a caller names, or where its first tensor's framework queues work.
void* stream_of(nb::handle given, const Tensor& leader);

/// A layer's numbers by the names of LayerConfig. @throws InvalidArgument for an unknown name and another kind of
/// value.
LayerConfig read_layer_config(const nb::dict& given);

class Step;

/// A layer and the tensors that its weights and rope table lie in.
class Layer {
 public:
  /// @param config  numbers by the names of LayerConfig
  /// @param weights tensors by checkpoint name
  /// @param cos_sin [positions, 64] F32
  /// @param options by the names of LayerOptions, and cache_rows, index_rows, kv_scale
  /// @throws InvalidArgument, Unsupported as AttentionLayer does; for unknown names; for tensors in two places.
  Layer(const nb::dict& config, const nb::dict& weights, nb::handle cos_sin, const nb::dict& options);

  const AttentionLayer& layer() const { return *layer_; }
  const KvLayout& layout() const { return layout_; }
  const Place& place() const { return place_; }
  /// What the layer asks of its caches, by role.
  nb::dict caches() const;
  /// Its cache groups, whose block tables a step takes.
  nb::list groups() const;
  std::size_t workspace_bytes(const Step& step);
  void forward(const Step& step, const nb::dict& caches, nb::handle hidden, nb::handle output, nb::handle workspace,
               nb::handle stream);
  /// Rows of a draft layer's context, into its window cache.
  void insert_context(nb::handle hidden, nb::handle positions, nb::handle slots, nb::handle window,
                      nb::handle workspace, nb::handle stream);
  /// The implementations of a step's ops, in words.
  std::string describe(const Step& step);

 private:
  struct Kept {
    std::string key;  ///< of the step's shape
    LayerPlan plan;
  };
  const Tensor& keep(const std::string& name, nb::handle object);
  void read_weights(const nb::dict& weights);
  PagedCache read_cache(CacheRole role, const std::string& name, nb::handle given, void* stream) const;
  LayerCaches read_caches(const nb::dict& caches, void* stream) const;
  const LayerPlan& plan(const Step& step);

  Place place_;
  std::list<Tensor> tensors_{};  ///< owners of what the layer looks into
  LayerConfig config_{};
  LayerWeights weights_{};
  std::optional<AttentionLayer> layer_{};
  KvLayout layout_{};
  std::list<Kept> plans_{};  ///< the one that was used last first
};

/// The metadata of a step for layers of one kind.
class Step {
 public:
  explicit Step(const Layer& layer);
  void build(nb::handle query_start_loc, nb::handle seq_lens, nb::handle positions, const nb::list& block_tables,
             std::optional<std::int64_t> max_seq_len, nb::handle host_query_start_loc, nb::handle host_seq_lens,
             std::int64_t decode_threshold, std::int64_t dspark_tokens, nb::handle stream);
  /// The next draft step in place; seq_lens None: each request is one token longer.
  void advance(nb::handle seq_lens, std::optional<std::int64_t> max_seq_len, nb::handle stream);
  /// @throws InvalidArgument before the first build.
  const StepMetadata& built() const;
  /// Whether its slots mean the same in the caches of a layer. @throws InvalidArgument when they do not.
  void check_layer(const Layer& layer) const;

 private:
  LayerConfig config_;
  KvLayout layout_;
  Place place_;
  StepMetadata metadata_;
  std::vector<Tensor> tables_{};  ///< the metadata looks into them
  bool built_ = false;
};

/// Adds AttentionLayer and Step to the module.
void bind_layers(nb::module_& module);

}  // namespace smla::python
