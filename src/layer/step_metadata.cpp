#include <algorithm>

#include "core/check.h"
#include "layer/front_end_row.h"
#include "layer/step_state.h"
#include "sparsemla/ops/index.h"

namespace smla {

namespace {

constexpr std::string_view kWhat = "step metadata";

std::vector<std::int32_t> host_copy(std::span<const std::int32_t> given, const ConstTensorView& tensor,
                                    std::string_view name, DeviceKind device) {
  check_that(!given.empty() || tensor.size(0) == 0 || device == DeviceKind::kCpu, kWhat, name, std::string("none"),
             "the host's copy of what lies on the GPU");
  if (given.empty()) return {tensor.as<std::int32_t>(), tensor.as<std::int32_t>() + tensor.size(0)};
  check_that(static_cast<std::int64_t>(given.size()) == tensor.size(0), kWhat, name,
             static_cast<std::int64_t>(given.size()), std::to_string(tensor.size(0)) + " as in the tensor");
  return {given.begin(), given.end()};
}

std::int64_t longest_of(const ConstTensorView& seq_lens) {
  std::int64_t longest = 0;
  for (std::int64_t r = 0; r < seq_lens.size(0); ++r)
    longest = std::max<std::int64_t>(longest, seq_lens.as<std::int32_t>()[r * seq_lens.stride[0]]);
  return longest;
}

}  // namespace

StepMetadata::StepMetadata(const KvLayout& layout, std::span<const LayerConfig> layers, FrontEnd front_end,
                           DeviceKind device)
    : state_(std::make_unique<State>()) {
  check_that(layout.num_layers == static_cast<std::int64_t>(layers.size()), kWhat, "layers",
             static_cast<std::int64_t>(layers.size()), std::to_string(layout.num_layers) + " as in the layout");
  state_->layout = layout;
  state_->layers.assign(layers.begin(), layers.end());
  state_->front_end = front_end;
  state_->device = device;
  state_->groups.resize(layout.groups.size());
}

StepMetadata::~StepMetadata() = default;
StepMetadata::StepMetadata(StepMetadata&&) noexcept = default;
StepMetadata& StepMetadata::operator=(StepMetadata&&) noexcept = default;

void StepMetadata::State::check(const StepBatch& batch) const {
  check_tensor(kWhat, "query_start_loc", batch.query_start_loc, {kAny}, {DType::kI32});
  check_that(batch.query_start_loc.size(0) >= 1, kWhat, "query_start_loc", batch.query_start_loc.size(0),
             "[requests + 1]");
  const std::int64_t requests = batch.query_start_loc.size(0) - 1;
  check_tensor(kWhat, "seq_lens", batch.seq_lens, {requests}, {DType::kI32});
  check_tensor(kWhat, "positions", batch.positions, {kAny}, {DType::kI64});
  check_that(batch.decode_threshold >= 1, kWhat, "decode_threshold", batch.decode_threshold, "1 or more");
  check_that(batch.dspark_tokens >= 0, kWhat, "dspark_tokens", batch.dspark_tokens, "0 or more");
  if (!batch.causal && batch.dspark_tokens == 0) {
    throw InvalidArgument(
        "Non-causal DeepseekV4 SWA is only supported for the DSpark speculation mode, but causal=False was set without "
        "DSpark.");
  }
  check_that(batch.block_tables.size() == layout.groups.size(), kWhat, "block_tables",
             static_cast<std::int64_t>(batch.block_tables.size()),
             std::to_string(layout.groups.size()) + ", one for each cache group");
  for (std::size_t g = 0; g < batch.block_tables.size(); ++g) {
    check_tensor(kWhat, "block_tables[" + layout.groups[g].name + "]", batch.block_tables[g], {requests, kAny},
                 {DType::kI32});
  }
}

/// Counts, split and chunks from the host's copies; rows come from the tensors.
void StepMetadata::State::read_shape(const StepBatch& batch) {
  const std::vector<std::int32_t> loc =
      host_copy(batch.host_query_start_loc, batch.query_start_loc, "host_query_start_loc", device);
  check_that(loc.front() == 0, kWhat, "query_start_loc row 0", loc.front(), "0");
  const std::vector<std::int32_t> seq = host_copy(batch.host_seq_lens, batch.seq_lens, "host_seq_lens", device);
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
             "at least " + std::to_string(shape.split.decode_tokens + shape.split.prefill_tokens) +
                 ", the end of query_start_loc");
  (shape.split.prefills > 0 ? shape.split.prefill_tokens : shape.split.decode_tokens) += padding;
  for (auto r = static_cast<std::size_t>(shape.split.decodes); r < seq.size(); ++r) {
    shape.prefill_query_lens.push_back(loc[r + 1] - loc[r]);
    shape.prefill_seq_lens.push_back(seq[r]);
    check_that(seq[r] >= loc[r + 1] - loc[r], kWhat, "seq_lens row " + std::to_string(r), seq[r],
               "at least " + std::to_string(loc[r + 1] - loc[r]) + ", the request's tokens");
  }
  if (causal) return;
  for (std::size_t r = 0; r < static_cast<std::size_t>(shape.split.decodes); ++r) {
    check_that(loc[r + 1] - loc[r] <= shape.window_width - window, kWhat, "tokens of draft block " + std::to_string(r),
               loc[r + 1] - loc[r],
               "at most " + std::to_string(shape.window_width - window) + ", the columns beside the window");
  }
}

void StepMetadata::build(const StepBatch& batch, Stream stream) {
  State& s = *state_;
  s.stream = stream;
  s.check(batch);
  s.read_shape(batch);
  const auto copy = [&s](const ConstTensorView& from, DeviceTensor& to) {
    s.shape_as(to, from.dtype, {from.size(0)});
    copy_bytes(s.device, to.data(), from.data, to.bytes(), s.stream);
  };
  copy(batch.query_start_loc, s.query_start_loc);
  copy(batch.seq_lens, s.seq_lens);
  copy(batch.positions, s.positions);
  for (std::size_t g = 0; g < s.groups.size(); ++g) s.groups[g].block_table = batch.block_tables[g];
  const StepShape& shape = s.shape;
  s.shape_as(s.token_to_req, DType::kI32, {shape.tokens});
  s.run<TokenToReq>({.requests = shape.requests, .tokens = shape.tokens},
                    {.query_start_loc = s.query_start_loc.view(), .token_to_req = s.token_to_req.view()});
  s.build_prefills();
  const auto indexer = std::ranges::find_if(s.layers, [](const LayerConfig& c) { return c.has_indexer(); });
  if (indexer != s.layers.end()) {
    s.shape_as(s.topk, DType::kI32, {shape.tokens, indexer->index_topk});
    fill_bytes(s.device, s.topk.data(), 0xFF, s.topk.bytes(), stream);  // -1
  }
  s.build_slots();
  s.build_windows();
  s.build_valid();
  if (s.has_ratio(4)) s.build_ratio(4, s.c4);
  if (s.has_ratio(128)) s.build_ratio(128, s.c128);
  if (!row_of(s.front_end).reads_mixed_rows) return;
  for (std::size_t g = 0; g < s.groups.size(); ++g) {
    if (s.group_serves(g, 1)) s.build_mixed(g, 1, s.groups[g].mixed_swa);
    if (s.group_serves(g, 128)) s.build_mixed(g, 128, s.groups[g].mixed_dense);
  }
}

void StepMetadata::State::check_draft_step() const {
  check_that(shape.split.prefills == 0 && shape.tokens == shape.requests && causal, kWhat, "draft step",
             std::to_string(shape.tokens) + " tokens of " + std::to_string(shape.requests) + " requests",
             "one token for each request, causal");
  check_that(!has_ratio(4) && !has_ratio(128), kWhat, "draft step", std::string("compress layers"),
             "window-only layers");
}

/// The rows of the next draft step; its lengths are `longer` more than those that are there.
void StepMetadata::State::build_draft_step(std::int64_t longer) {
  run<DraftPositions>({.requests = shape.requests, .longer = longer},
                      {.seq_lens = seq_lens.view(),
                       .positions = positions.view(),
                       .next_lens = longer > 0 ? seq_lens.view() : TensorView()});
  build_slots();
  build_windows();
  build_valid();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (row_of(front_end).reads_mixed_rows && group_serves(g, 1)) build_mixed(g, 1, groups[g].mixed_swa);
  }
}

void StepMetadata::advance(const ConstTensorView& seq_lens, std::int64_t max_seq_len, Stream stream) {
  State& s = *state_;
  s.stream = stream;
  s.check_draft_step();
  check_tensor(kWhat, "seq_lens", seq_lens, {s.shape.requests}, {DType::kI32});
  check_that(max_seq_len >= 0, kWhat, "max_seq_len", max_seq_len, "an upper bound of seq_lens");
  const std::int64_t bound = std::max(s.shape.max_seq_len, max_seq_len);
  if (s.device == DeviceKind::kCpu) {
    const std::int64_t longest = longest_of(seq_lens);
    check_that(longest <= bound, kWhat, "max_seq_len", bound,
               "at least " + std::to_string(longest) + ", the largest of seq_lens");
  }
  s.shape.max_seq_len = bound;
  copy_bytes(s.device, s.seq_lens.data(), seq_lens.data, s.seq_lens.bytes(), stream);
  s.build_draft_step(0);
}

void StepMetadata::advance(Stream stream) {
  State& s = *state_;
  s.stream = stream;
  s.check_draft_step();
  if (s.device == DeviceKind::kCpu) {
    const std::int64_t longest = longest_of(s.seq_lens.view());
    check_that(longest < s.shape.max_seq_len || longest <= 0, kWhat, "max_seq_len of the loop", s.shape.max_seq_len,
               "at least " + std::to_string(longest + 1) + ", the longest request of this step");
  }
  s.build_draft_step(1);
}

const StepShape& StepMetadata::shape() const { return state_->shape; }

LayerStep StepMetadata::layer(std::int64_t layer) const {
  State& s = *state_;
  check_that(layer >= 0 && layer < s.layout.num_layers, kWhat, "layer", layer,
             "0 to " + std::to_string(s.layout.num_layers - 1));
  const LayerConfig& config = s.layers[static_cast<std::size_t>(layer)];
  const auto group = [&](CacheRole role) -> GroupStep& {
    return s.groups[static_cast<std::size_t>(s.layout.group_of(layer, role))];
  };
  const auto const_view = [](const DeviceTensor& t) { return t.view(); };
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
    step.topk_lens = const_view(ratio.topk_lens);
    if (!config.runs_indexer()) return step;
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
