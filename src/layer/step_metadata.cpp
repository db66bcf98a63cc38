#include "sparsemla/step_metadata.h"

#include <algorithm>

#include "core/check.h"
#include "core/host_tensor.h"
#include "sparsemla/ops/index.h"

namespace smla {

namespace {

constexpr std::string_view kWhat = "step metadata";

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
  HostTensor entry_counts;  ///< [Rp] I32
  HostTensor dense_indices;
  HostTensor dense_lens;
  HostTensor dense_local;
  HostTensor dense_local_lens;
};

/// A host tensor of this shape: the same memory as before when the shape is.
void shape_as(HostTensor& t, DType dtype, std::vector<std::int64_t> shape) {
  if (t.absent() || t.dtype() != dtype || t.shape() != shape) t = HostTensor(dtype, std::move(shape));
}

std::vector<std::int32_t> host_copy(std::span<const std::int32_t> given, const ConstTensorView& tensor, std::string_view name) {
  if (given.empty()) return {tensor.as<std::int32_t>(), tensor.as<std::int32_t>() + tensor.size(0)};
  check_that(static_cast<std::int64_t>(given.size()) == tensor.size(0), kWhat, name, static_cast<std::int64_t>(given.size()),
             std::to_string(tensor.size(0)) + " as in the tensor");
  return {given.begin(), given.end()};
}

}  // namespace

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

StepMetadata::StepMetadata(const KvLayout& layout, std::span<const LayerConfig> layers, FrontEnd front_end) : state_(std::make_unique<State>()) {
  check_that(layout.num_layers == static_cast<std::int64_t>(layers.size()), kWhat, "layers", static_cast<std::int64_t>(layers.size()),
             std::to_string(layout.num_layers) + " as in the layout");
  state_->layout = layout;
  state_->layers.assign(layers.begin(), layers.end());
  state_->front_end = front_end;
  state_->groups.resize(layout.groups.size());
}

StepMetadata::~StepMetadata() = default;
StepMetadata::StepMetadata(StepMetadata&&) noexcept = default;
StepMetadata& StepMetadata::operator=(StepMetadata&&) noexcept = default;

void StepMetadata::State::check(const StepBatch& batch) const {
  check_tensor(kWhat, "query_start_loc", batch.query_start_loc, {kAny}, {DType::kI32});
  check_that(batch.query_start_loc.size(0) >= 1, kWhat, "query_start_loc", batch.query_start_loc.size(0), "[requests + 1]");
  const std::int64_t requests = batch.query_start_loc.size(0) - 1;
  check_tensor(kWhat, "seq_lens", batch.seq_lens, {requests}, {DType::kI32});
  check_tensor(kWhat, "positions", batch.positions, {kAny}, {DType::kI64});
  check_that(batch.decode_threshold >= 1, kWhat, "decode_threshold", batch.decode_threshold, "1 or more");
  check_that(batch.dspark_tokens >= 0, kWhat, "dspark_tokens", batch.dspark_tokens, "0 or more");
  if (!batch.causal && batch.dspark_tokens == 0) {
    throw InvalidArgument("Non-causal DeepseekV4 SWA is only supported for the DSpark speculation mode, but causal=False was set without DSpark.");
  }
  check_that(batch.block_tables.size() == layout.groups.size(), kWhat, "block_tables", static_cast<std::int64_t>(batch.block_tables.size()),
             std::to_string(layout.groups.size()) + ", one for each cache group");
  for (std::size_t g = 0; g < batch.block_tables.size(); ++g) {
    check_tensor(kWhat, "block_tables[" + layout.groups[g].name + "]", batch.block_tables[g], {requests, kAny}, {DType::kI32});
  }
}

/// Counts, split and chunks from the host's copies; rows come from the tensors.
void StepMetadata::State::read_shape(const StepBatch& batch) {
  const std::vector<std::int32_t> loc = host_copy(batch.host_query_start_loc, batch.query_start_loc, "host_query_start_loc");
  const std::vector<std::int32_t> seq = host_copy(batch.host_seq_lens, batch.seq_lens, "host_seq_lens");
  const std::int64_t window = layers.front().window;
  shape = {.tokens = batch.positions.size(0),
           .requests = batch.query_start_loc.size(0) - 1,
           .max_seq_len = batch.max_seq_len,
           .split = split_batch(loc, batch.decode_threshold),
           .window_width = draft_window_width(window, batch.causal ? 0 : batch.dspark_tokens),
           .prefill_query_lens = {},
           .prefill_seq_lens = {}};
  causal = batch.causal;
  // Padding tokens behind the last request are nobody's: they go with the last part that has requests.
  const std::int64_t padding = shape.tokens - shape.split.decode_tokens - shape.split.prefill_tokens;
  check_that(padding >= 0, kWhat, "positions", shape.tokens,
             "at least " + std::to_string(shape.split.decode_tokens + shape.split.prefill_tokens) + ", the end of query_start_loc");
  (shape.split.prefills > 0 ? shape.split.prefill_tokens : shape.split.decode_tokens) += padding;
  for (auto r = static_cast<std::size_t>(shape.split.decodes); r < seq.size(); ++r) {
    shape.prefill_query_lens.push_back(loc[r + 1] - loc[r]);
    shape.prefill_seq_lens.push_back(seq[r]);
    check_that(seq[r] >= loc[r + 1] - loc[r], kWhat, "seq_lens row " + std::to_string(r), seq[r],
               "at least " + std::to_string(loc[r + 1] - loc[r]) + ", the request's tokens");
  }
  if (causal) return;
  for (std::size_t r = 0; r < static_cast<std::size_t>(shape.split.decodes); ++r) {
    check_that(loc[r + 1] - loc[r] <= shape.window_width - window, kWhat, "tokens of draft block " + std::to_string(r), loc[r + 1] - loc[r],
               "at most " + std::to_string(shape.window_width - window) + ", the columns beside the window");
  }
}

void StepMetadata::State::build_slots() {
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const CacheGroup& group = layout.groups[g];
    if (!group.sliding()) continue;
    shape_as(groups[g].slots, DType::kI64, {shape.tokens});
    Plan<SlotMapping>({.requests = shape.requests, .tokens = shape.tokens, .block_size = group.block_tokens})
        .run({.query_start_loc = query_start_loc.view(),
              .positions = positions.view(),
              .token_to_req = token_to_req.view(),
              .block_table = groups[g].block_table,
              .slots = groups[g].slots.view()});
  }
}

void StepMetadata::State::build_windows() {
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const CacheGroup& group = layout.groups[g];
    if (!has_role(g, CacheRole::kWindow)) continue;
    shape_as(groups[g].window_indices, DType::kI32, {shape.tokens, shape.window_width});
    shape_as(groups[g].window_lens, DType::kI32, {shape.tokens});
    Plan<WindowIndices>({.requests = shape.requests,
                         .tokens = shape.tokens,
                         .window = group.window,
                         .block_size = group.block_tokens,
                         .noncausal_tokens = causal ? 0 : shape.split.decode_tokens})
        .run({.query_start_loc = query_start_loc.view(),
              .seq_lens = seq_lens.view(),
              .token_to_req = token_to_req.view(),
              .slot_mapping = groups[g].slots.view(),
              .block_table = groups[g].block_table,
              .indices = groups[g].window_indices.view(),
              .lens = groups[g].window_lens.view()});
  }
}

void StepMetadata::State::build_valid() {
  shape_as(valid, DType::kBool, {shape.tokens});
  const int group = layout.group_of(0, CacheRole::kWindow);
  const auto* slots = groups[static_cast<std::size_t>(group)].slots.as<std::int64_t>();
  for (std::int64_t t = 0; t < shape.tokens; ++t) valid.as<bool>()[t] = slots[t] >= 0;
}

void StepMetadata::State::build_ratio(int ratio, RatioStep& out) {
  const auto layer = std::ranges::find_if(layers, [&](const LayerConfig& c) { return c.compress_ratio == ratio; }) - layers.begin();
  const LayerCache& entries = *layout.find(layer, CacheRole::kCompressed);
  const ConstTensorView& table = groups[static_cast<std::size_t>(layout.group_of(layer, CacheRole::kCompressed))].block_table;
  const TensorView slots = groups[static_cast<std::size_t>(layout.group_of(layer, CacheRole::kWindow))].slots.view();

  shape_as(out.entry_slots, DType::kI64, {shape.tokens});
  Plan<CompressedSlotMapping>({.requests = shape.requests, .tokens = shape.tokens, .ratio = ratio, .storage_block = entries.block_size})
      .run({.query_start_loc = query_start_loc.view(), .seq_lens = seq_lens.view(), .block_table = table, .slots = out.entry_slots.view()});

  shape_as(out.entry_lens, DType::kI32, {shape.tokens});
  const auto* pos = positions.as<std::int64_t>();
  const auto* ok = valid.as<bool>();
  auto* lens = out.entry_lens.as<std::int32_t>();
  for (std::int64_t t = 0; t < shape.tokens; ++t) lens[t] = ok[t] ? static_cast<std::int32_t>((pos[t] + 1) / ratio) : 0;

  shape_as(out.entry_counts, DType::kI32, {shape.split.prefills});
  for (std::int64_t r = 0; r < shape.split.prefills; ++r) {
    out.entry_counts.as<std::int32_t>()[r] = std::max(seq_lens.as<std::int32_t>()[shape.split.decodes + r], 0) / ratio;
  }

  if (ratio == 4) return;  // C4A rows come from the indexer
  const std::int64_t width = std::max<std::int64_t>(shape.max_seq_len / ratio, 1);
  const auto dense = [&](std::int64_t begin, bool global, HostTensor& indices, HostTensor& row_lens) {
    const std::int64_t rows = shape.tokens - begin;
    shape_as(indices, DType::kI32, {rows, width});
    shape_as(row_lens, DType::kI32, {rows});
    Plan<DenseCompressedIndices>(
        {.requests = shape.requests, .tokens = rows, .ratio = ratio, .storage_block = entries.block_size, .width = width, .global = global})
        .run({.positions = positions.view().slice(0, begin, shape.tokens),
              .token_to_req = token_to_req.view().slice(0, begin, shape.tokens),
              .slot_mapping = slots.slice(0, begin, shape.tokens),
              .block_table = table,
              .indices = indices.view(),
              .lens = row_lens.view()});
  };
  dense(0, true, out.dense_indices, out.dense_lens);
  dense(shape.split.decode_tokens, false, out.dense_local, out.dense_local_lens);
}

/// One matrix for window-only layers (ratio 1) or C128A layers (spec 7.3). Our attention takes the block stride, so no slot is remapped.
void StepMetadata::State::build_mixed(std::size_t group, int ratio, HostTensor& out) {
  GroupStep& g = groups[group];
  const bool dense = ratio > 1;
  const std::int64_t width = dense ? c128.dense_indices.size(1) : 0;
  const std::int64_t columns = (width + 3) / 4 * 4;
  const auto layer = std::ranges::find_if(layers, [&](const LayerConfig& c) { return c.compress_ratio == 128; }) - layers.begin();
  shape_as(out, DType::kI32, {shape.tokens, shape.window_width + columns});
  shape_as(g.mixed_lens, DType::kI32, {shape.tokens});
  const std::int64_t decode_tokens = shape.split.decode_tokens;
  MixedSparseIndices::Problem problem{.requests = shape.requests,
                                      .tokens = shape.tokens,
                                      .decode_tokens = decode_tokens,
                                      .window = layout.groups[group].window,
                                      .window_width = shape.window_width,
                                      .ratio = dense ? ratio : 4,
                                      .top_k = width,
                                      .compressed_width = columns,
                                      .window_block = layout.groups[group].block_tokens,
                                      .local = false};
  MixedSparseIndices::Args args{.decode_window = g.window_indices.view().slice(0, 0, decode_tokens),
                                .query_start_loc = query_start_loc.view(),
                                .seq_lens = seq_lens.view(),
                                .token_to_req = token_to_req.view(),
                                .window_table = g.block_table,
                                .indices = out.view(),
                                .lens = g.mixed_lens.view()};
  if (dense) {
    problem.compressed_block = layout.find(layer, CacheRole::kCompressed)->block_size;
    args.decode_compressed = c128.dense_indices.view().slice(0, 0, decode_tokens);
    args.decode_lens = c128.dense_lens.view().slice(0, 0, decode_tokens);
    args.prefill_topk = c128.dense_local.view();
    args.compressed_table = groups[static_cast<std::size_t>(layout.group_of(layer, CacheRole::kCompressed))].block_table;
  }
  Plan<MixedSparseIndices>(problem).run(args);
}

void StepMetadata::build(const StepBatch& batch) {
  State& s = *state_;
  s.check(batch);
  s.read_shape(batch);
  const auto copy = [](const ConstTensorView& from, HostTensor& to) {
    shape_as(to, from.dtype, {from.size(0)});
    std::copy_n(static_cast<const std::uint8_t*>(from.data), to.bytes(), static_cast<std::uint8_t*>(to.data()));
  };
  copy(batch.query_start_loc, s.query_start_loc);
  copy(batch.seq_lens, s.seq_lens);
  copy(batch.positions, s.positions);
  for (std::size_t g = 0; g < s.groups.size(); ++g) s.groups[g].block_table = batch.block_tables[g];
  const StepShape& shape = s.shape;
  shape_as(s.token_to_req, DType::kI32, {shape.tokens});
  Plan<TokenToReq>({.requests = shape.requests, .tokens = shape.tokens})
      .run({.query_start_loc = s.query_start_loc.view(), .token_to_req = s.token_to_req.view()});

  shape_as(s.gather_lens, DType::kI32, {shape.split.prefills});
  for (std::int64_t r = 0; r < shape.split.prefills; ++r) {
    const std::int64_t row = shape.split.decodes + r;
    const std::int32_t* loc = s.query_start_loc.as<std::int32_t>() + row;
    s.gather_lens.as<std::int32_t>()[r] =
        static_cast<std::int32_t>(gather_length(s.seq_lens.as<std::int32_t>()[row], loc[1] - loc[0], s.layers.front().window));
  }
  const auto indexer = std::ranges::find_if(s.layers, [](const LayerConfig& c) { return c.has_indexer(); });
  if (indexer != s.layers.end()) {
    shape_as(s.topk, DType::kI32, {shape.tokens, indexer->index_topk});
    std::fill_n(s.topk.as<std::int32_t>(), s.topk.numel(), -1);
  }
  s.build_slots();
  s.build_windows();
  s.build_valid();
  if (s.has_ratio(4)) s.build_ratio(4, s.c4);
  if (s.has_ratio(128)) s.build_ratio(128, s.c128);
  if (s.front_end != FrontEnd::kFlashInfer) return;
  for (std::size_t g = 0; g < s.groups.size(); ++g) {
    if (s.group_serves(g, 1)) s.build_mixed(g, 1, s.groups[g].mixed_swa);
    if (s.group_serves(g, 128)) s.build_mixed(g, 128, s.groups[g].mixed_dense);
  }
}

void StepMetadata::advance(const ConstTensorView& seq_lens) {
  State& s = *state_;
  const StepShape& shape = s.shape;
  check_that(shape.split.prefills == 0 && shape.tokens == shape.requests && s.causal, kWhat, "draft step",
             std::to_string(shape.tokens) + " tokens of " + std::to_string(shape.requests) + " requests", "one token for each request, causal");
  check_that(!s.has_ratio(4) && !s.has_ratio(128), kWhat, "draft step", std::string("compress layers"), "window-only layers");
  check_tensor(kWhat, "seq_lens", seq_lens, {shape.requests}, {DType::kI32});
  for (std::int64_t r = 0; r < shape.requests; ++r) {
    const std::int32_t length = seq_lens.as<std::int32_t>()[r];
    s.seq_lens.as<std::int32_t>()[r] = length;
    s.positions.as<std::int64_t>()[r] = static_cast<std::int64_t>(length) - 1;
    s.shape.max_seq_len = std::max<std::int64_t>(s.shape.max_seq_len, length);
  }
  s.build_slots();
  s.build_windows();
  s.build_valid();
  for (std::size_t g = 0; g < s.groups.size(); ++g) {
    if (s.front_end == FrontEnd::kFlashInfer && s.group_serves(g, 1)) s.build_mixed(g, 1, s.groups[g].mixed_swa);
  }
}

const StepShape& StepMetadata::shape() const { return state_->shape; }

LayerStep StepMetadata::layer(std::int64_t layer) const {
  State& s = *state_;
  check_that(layer >= 0 && layer < s.layout.num_layers, kWhat, "layer", layer, "0 to " + std::to_string(s.layout.num_layers - 1));
  const LayerConfig& config = s.layers[static_cast<std::size_t>(layer)];
  const auto group = [&](CacheRole role) -> GroupStep& { return s.groups[static_cast<std::size_t>(s.layout.group_of(layer, role))]; };
  const auto const_view = [](const HostTensor& t) { return t.view(); };
  GroupStep& window = group(CacheRole::kWindow);
  LayerStep step{.tokens = s.shape.tokens,
                 .requests = s.shape.requests,
                 .max_seq_len = s.shape.max_seq_len,
                 .split = s.shape.split,
                 .query_start_loc = const_view(s.query_start_loc),
                 .seq_lens = const_view(s.seq_lens),
                 .positions = const_view(s.positions),
                 .token_to_req = const_view(s.token_to_req),
                 .valid = const_view(s.valid),
                 .window_slots = const_view(window.slots),
                 .window_indices = const_view(window.window_indices),
                 .window_lens = const_view(window.window_lens),
                 .window_block_table = window.block_table,
                 .gather_lens = const_view(s.gather_lens)};
  if (!config.has_compressor()) {
    step.mixed_indices = const_view(window.mixed_swa);
    return step;
  }
  const RatioStep& ratio = config.has_indexer() ? s.c4 : s.c128;
  step.entry_slots = const_view(ratio.entry_slots);
  step.entry_lens = const_view(ratio.entry_lens);
  step.entry_counts = const_view(ratio.entry_counts);
  step.entry_block_table = group(CacheRole::kCompressed).block_table;
  step.state_slots = const_view(group(CacheRole::kState).slots);
  step.state_block_table = group(CacheRole::kState).block_table;
  if (config.has_indexer()) {
    step.topk = s.topk.view();
    if (!config.chooses()) return step;
    step.index_state_slots = const_view(group(CacheRole::kIndexState).slots);
    step.index_state_block_table = group(CacheRole::kIndexState).block_table;
  } else {
    step.dense_indices = const_view(ratio.dense_indices);
    step.dense_lens = const_view(ratio.dense_lens);
    step.dense_local = const_view(ratio.dense_local);
    step.mixed_indices = const_view(window.mixed_dense);
  }
  return step;
}

}  // namespace smla
