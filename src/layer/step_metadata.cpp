#include <algorithm>

#include "core/check.h"
#include "core/host_tensor.h"
#include "sparsemla/layer.h"
#include "sparsemla/ops/index.h"

namespace smla {

namespace {

constexpr std::string_view kWhat = "step metadata";

/// What a cache group needs each step.
struct GroupStep {
  ConstTensorView block_table;
  HostTensor slots;           ///< [T] I64; sliding groups
  HostTensor window_indices;  ///< [T, window] I32; groups with window rows
  HostTensor window_lens;     ///< [T] I32
};

/// What a compress ratio needs each step.
struct RatioStep {
  HostTensor entry_slots;  ///< [T] I64
  HostTensor entry_lens;   ///< [T] I32
  HostTensor dense_indices;
  HostTensor dense_lens;
};

}  // namespace

struct StepMetadata::State {
  KvLayout layout;
  std::vector<LayerConfig> layers;
  std::int64_t tokens = 0;
  std::int64_t requests = 0;
  std::int64_t max_seq_len = 0;
  HostTensor positions;
  HostTensor token_to_req;
  HostTensor valid;
  std::vector<GroupStep> groups;
  RatioStep c4;
  RatioStep c128;

  bool has_ratio(int ratio) const {
    return std::ranges::any_of(layers, [&](const LayerConfig& c) { return c.compress_ratio == ratio; });
  }
  /// Some layer's role cache in a group, to learn block sizes; null when there is none.
  const LayerCache* role_in(std::size_t group, CacheRole role) const {
    for (const LayerCache& c : layout.groups[group].caches) {
      if (c.role == role) return &c;
    }
    return nullptr;
  }
  void build_groups(const StepBatch& batch);
  void build_ratio(const StepBatch& batch, int ratio, RatioStep& out);
};

StepMetadata::StepMetadata(const KvLayout& layout, std::span<const LayerConfig> layers) : state_(std::make_unique<State>()) {
  check_that(layout.num_layers == static_cast<std::int64_t>(layers.size()), kWhat, "layers", static_cast<std::int64_t>(layers.size()),
             std::to_string(layout.num_layers) + " as in the layout");
  state_->layout = layout;
  state_->layers.assign(layers.begin(), layers.end());
  state_->groups.resize(layout.groups.size());
}

StepMetadata::~StepMetadata() = default;
StepMetadata::StepMetadata(StepMetadata&&) noexcept = default;
StepMetadata& StepMetadata::operator=(StepMetadata&&) noexcept = default;

void StepMetadata::State::build_groups(const StepBatch& batch) {
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const CacheGroup& group = layout.groups[g];
    GroupStep& out = groups[g];
    out.block_table = batch.block_tables[g];
    if (!group.sliding()) continue;
    out.slots = HostTensor(DType::kI64, {tokens});
    Plan<SlotMapping>({.requests = requests, .tokens = tokens, .block_size = group.block_tokens})
        .run({.query_start_loc = batch.query_start_loc,
              .positions = positions.view(),
              .token_to_req = token_to_req.view(),
              .block_table = out.block_table,
              .slots = out.slots.view()});
    if (role_in(g, CacheRole::kWindow) == nullptr) continue;
    out.window_indices = HostTensor(DType::kI32, {tokens, group.window});
    out.window_lens = HostTensor(DType::kI32, {tokens});
    Plan<WindowIndices>({.requests = requests, .tokens = tokens, .window = group.window, .block_size = group.block_tokens})
        .run({.query_start_loc = batch.query_start_loc,
              .seq_lens = batch.seq_lens,
              .token_to_req = token_to_req.view(),
              .slot_mapping = out.slots.view(),
              .block_table = out.block_table,
              .indices = out.window_indices.view(),
              .lens = out.window_lens.view()});
  }
}

void StepMetadata::State::build_ratio(const StepBatch& batch, int ratio, RatioStep& out) {
  const auto layer = std::ranges::find_if(layers, [&](const LayerConfig& c) { return c.compress_ratio == ratio; }) - layers.begin();
  const LayerCache& entries = *layout.find(layer, CacheRole::kCompressed);
  const ConstTensorView& table = batch.block_tables[static_cast<std::size_t>(layout.group_of(layer, CacheRole::kCompressed))];
  const ConstTensorView& slots = groups[static_cast<std::size_t>(layout.group_of(layer, CacheRole::kWindow))].slots.view();

  out.entry_slots = HostTensor(DType::kI64, {tokens});
  Plan<CompressedSlotMapping>({.requests = requests, .tokens = tokens, .ratio = ratio, .storage_block = entries.block_size})
      .run({.query_start_loc = batch.query_start_loc, .seq_lens = batch.seq_lens, .block_table = table, .slots = out.entry_slots.view()});

  out.entry_lens = HostTensor(DType::kI32, {tokens});
  const auto* pos = positions.view().as<std::int64_t>();
  const auto* ok = valid.view().as<bool>();
  auto* lens = out.entry_lens.view().as<std::int32_t>();
  for (std::int64_t t = 0; t < tokens; ++t) lens[t] = ok[t] ? static_cast<std::int32_t>((pos[t] + 1) / ratio) : 0;

  if (ratio == 4) return;  // C4A rows come from the indexer
  const std::int64_t width = std::max<std::int64_t>(max_seq_len / ratio, 1);
  out.dense_indices = HostTensor(DType::kI32, {tokens, width});
  out.dense_lens = HostTensor(DType::kI32, {tokens});
  Plan<DenseCompressedIndices>(
      {.requests = requests, .tokens = tokens, .ratio = ratio, .storage_block = entries.block_size, .width = width, .global = true})
      .run({.positions = positions.view(),
            .token_to_req = token_to_req.view(),
            .slot_mapping = slots,
            .block_table = table,
            .indices = out.dense_indices.view(),
            .lens = out.dense_lens.view()});
}

void StepMetadata::build(const StepBatch& batch) {
  State& s = *state_;
  check_tensor(kWhat, "query_start_loc", batch.query_start_loc, {kAny}, {DType::kI32});
  check_that(batch.query_start_loc.size(0) >= 1, kWhat, "query_start_loc", batch.query_start_loc.size(0), "[requests + 1]");
  s.requests = batch.query_start_loc.size(0) - 1;
  check_tensor(kWhat, "seq_lens", batch.seq_lens, {s.requests}, {DType::kI32});
  check_tensor(kWhat, "positions", batch.positions, {kAny}, {DType::kI64});
  s.tokens = batch.positions.size(0);
  s.max_seq_len = batch.max_seq_len;
  check_that(batch.block_tables.size() == s.layout.groups.size(), kWhat, "block_tables", static_cast<std::int64_t>(batch.block_tables.size()),
             std::to_string(s.layout.groups.size()) + ", one for each cache group");
  for (std::size_t g = 0; g < batch.block_tables.size(); ++g) {
    check_tensor(kWhat, "block_tables[" + s.layout.groups[g].name + "]", batch.block_tables[g], {s.requests, kAny}, {DType::kI32});
  }

  s.positions = HostTensor(DType::kI64, {s.tokens});
  std::copy_n(batch.positions.as<std::int64_t>(), s.tokens, s.positions.view().as<std::int64_t>());
  s.token_to_req = HostTensor(DType::kI32, {s.tokens});
  Plan<TokenToReq>({.requests = s.requests, .tokens = s.tokens})
      .run({.query_start_loc = batch.query_start_loc, .token_to_req = s.token_to_req.view()});
  s.build_groups(batch);

  s.valid = HostTensor(DType::kBool, {s.tokens});
  const int window_group = s.layout.group_of(0, CacheRole::kWindow);
  const auto* slots = s.groups[static_cast<std::size_t>(window_group)].slots.view().as<std::int64_t>();
  auto* valid = s.valid.view().as<bool>();
  for (std::int64_t t = 0; t < s.tokens; ++t) valid[t] = slots[t] >= 0;

  if (s.has_ratio(4)) s.build_ratio(batch, 4, s.c4);
  if (s.has_ratio(128)) s.build_ratio(batch, 128, s.c128);
}

LayerStep StepMetadata::layer(std::int64_t layer) const {
  const State& s = *state_;
  check_that(layer >= 0 && layer < s.layout.num_layers, kWhat, "layer", layer, "0 to " + std::to_string(s.layout.num_layers - 1));
  const LayerConfig& config = s.layers[static_cast<std::size_t>(layer)];
  const auto group = [&](CacheRole role) -> const GroupStep& { return s.groups[static_cast<std::size_t>(s.layout.group_of(layer, role))]; };
  const GroupStep& window = group(CacheRole::kWindow);
  LayerStep step{.tokens = s.tokens,
                 .requests = s.requests,
                 .max_seq_len = s.max_seq_len,
                 .positions = s.positions.view(),
                 .token_to_req = s.token_to_req.view(),
                 .valid = s.valid.view(),
                 .window_slots = window.slots.view(),
                 .window_indices = window.window_indices.view(),
                 .window_lens = window.window_lens.view()};
  if (!config.has_compressor()) return step;
  const RatioStep& ratio = config.has_indexer() ? s.c4 : s.c128;
  step.entry_slots = ratio.entry_slots.view();
  step.entry_lens = ratio.entry_lens.view();
  step.entry_block_table = group(CacheRole::kCompressed).block_table;
  step.state_slots = group(CacheRole::kState).slots.view();
  step.state_block_table = group(CacheRole::kState).block_table;
  if (config.has_indexer()) {
    step.index_state_slots = group(CacheRole::kIndexState).slots.view();
    step.index_state_block_table = group(CacheRole::kIndexState).block_table;
  } else {
    step.dense_indices = ratio.dense_indices.view();
    step.dense_lens = ratio.dense_lens.view();
  }
  return step;
}

}  // namespace smla
