#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "device/device_tensor.h"
#include "sparsemla/op.h"
#include "sparsemla/step_metadata.h"

namespace smla {

/// Columns for the entries of C128A layers in sequences of `max_seq_len` tokens: as many on every rank, for what ranks
/// gather must fit.
inline std::int64_t entry_columns(std::int64_t max_seq_len, std::int64_t ratio, EntryShare share) {
  share.rank = 0;
  return std::max<std::int64_t>(share.count(max_seq_len / ratio), 1);
}

/// What a cache group needs each step.
struct GroupStep {
  ConstTensorView block_table;
  DeviceTensor slots;           ///< [T] I64; sliding groups
  DeviceTensor window_indices;  ///< [T, window width] I32; groups with window rows
  DeviceTensor window_lens;     ///< [T] I32
  DeviceTensor mixed_swa;       ///< flashinfer: [T, window width] I32 of window-only layers
  DeviceTensor mixed_dense;     ///< flashinfer: [T, window width + P] I32 of C128A layers
  DeviceTensor mixed_lens;      ///< [T] I32
};

/// What a compress ratio needs each step.
struct RatioStep {
  DeviceTensor entry_slots;   ///< [T] I64
  DeviceTensor entry_lens;    ///< [T] I32
  DeviceTensor topk_lens;     ///< [T] I32, ratio 4
  DeviceTensor entry_counts;  ///< [Rp] I32
  DeviceTensor dense_indices;
  DeviceTensor dense_lens;
  DeviceTensor dense_local;
  DeviceTensor dense_local_lens;
};

struct StepMetadata::State {
  KvLayout layout;
  std::vector<LayerConfig> layers;
  FrontEnd front_end = FrontEnd::kFlashMla;
  DeviceKind device = DeviceKind::kCpu;
  Stream stream;  ///< of the build at work
  StepShape shape;
  bool causal = true;
  DeviceTensor query_start_loc;
  DeviceTensor seq_lens;
  DeviceTensor positions;
  DeviceTensor token_to_req;
  DeviceTensor valid;
  DeviceTensor gather_lens;
  DeviceTensor topk;
  std::vector<GroupStep> groups;
  RatioStep c4;
  RatioStep c128;
  DeviceTensor scratch;  ///< of the builders

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
  void shape_as(DeviceTensor& t, DType dtype, std::vector<std::int64_t> size) const {
    t.reshape(device, dtype, std::move(size));
  }
  template <class Op>
  void run(const typename Op::Problem& problem, const typename Op::Args& args) {
    const Plan<Op> plan(problem, {.device = device});
    if (scratch.bytes() < plan.workspace_bytes())
      shape_as(scratch, DType::kU8, {static_cast<std::int64_t>(plan.workspace_bytes())});
    plan.run(args, {.data = scratch.data(), .bytes = scratch.bytes()}, stream);
  }
  void check(const StepBatch& batch) const;
  void read_shape(const StepBatch& batch);
  void check_draft_step() const;
  void build_draft_step(std::int64_t longer);
  void build_slots();
  void build_windows();
  void build_valid();
  void build_prefills();
  void build_ratio(int ratio, RatioStep& out);
  void build_mixed(std::size_t group, int ratio, DeviceTensor& out);
};

}  // namespace smla
