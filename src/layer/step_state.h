#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "core/host_tensor.h"
#include "sparsemla/step_metadata.h"

namespace smla {

/// What a cache group needs each step.
struct GroupStep {
  ConstTensorView block_table;
  HostTensor slots;           ///< [T] I64; sliding groups
  HostTensor window_indices;  ///< [T, window width] I32; groups with window rows
  HostTensor window_lens;     ///< [T] I32
  HostTensor mixed_swa;       ///< flashinfer: [T, window width] I32 of window-only layers
  HostTensor mixed_dense;     ///< flashinfer: [T, window width + P] I32 of C128A layers
  HostTensor mixed_lens;      ///< [T] I32
};

/// What a compress ratio needs each step.
struct RatioStep {
  HostTensor entry_slots;   ///< [T] I64
  HostTensor entry_lens;    ///< [T] I32
  HostTensor topk_lens;     ///< [T] I32, ratio 4
  HostTensor entry_counts;  ///< [Rp] I32
  HostTensor dense_indices;
  HostTensor dense_lens;
  HostTensor dense_local;
  HostTensor dense_local_lens;
};

/// A host tensor of this shape: the same memory as before when the shape is.
inline void shape_as(HostTensor& t, DType dtype, std::vector<std::int64_t> shape) {
  if (t.absent() || t.dtype() != dtype || t.shape() != shape) t = HostTensor(dtype, std::move(shape));
}

struct StepMetadata::State {
  KvLayout layout;
  std::vector<LayerConfig> layers;
  FrontEnd front_end = FrontEnd::kFlashMla;
  StepShape shape;
  bool causal = true;
  HostTensor query_start_loc;
  HostTensor seq_lens;
  HostTensor positions;
  HostTensor token_to_req;
  HostTensor valid;
  HostTensor gather_lens;
  HostTensor topk;
  std::vector<GroupStep> groups;
  RatioStep c4;
  RatioStep c128;

  bool any_layer(auto&& wanted) const { return std::ranges::any_of(layers, wanted); }
  bool has_ratio(int ratio) const {
    return any_layer([&](const LayerConfig& c) { return c.compress_ratio == ratio; });
  }
  /// Whether some layer with its window in `group` has this ratio.
  bool group_serves(std::size_t group, int ratio) const {
    return std::ranges::any_of(layout.groups[group].caches, [&](const LayerCache& c) {
      return c.role == CacheRole::kWindow && layers[static_cast<std::size_t>(c.layer)].compress_ratio == ratio;
    });
  }
  bool has_role(std::size_t group, CacheRole role) const {
    return std::ranges::any_of(layout.groups[group].caches, [&](const LayerCache& c) { return c.role == role; });
  }
  void check(const StepBatch& batch) const;
  void read_shape(const StepBatch& batch);
  void build_slots();
  void build_windows();
  void build_valid();
  void build_ratio(int ratio, RatioStep& out);
  void build_mixed(std::size_t group, int ratio, HostTensor& out);
};

}  // namespace smla
