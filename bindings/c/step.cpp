#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "c/descriptors.h"
#include "c/handles.h"
#include "c/status.h"

namespace {

using namespace smla;
using namespace smla::c;

static_assert(SMLA_NUM_CACHES == kNumCacheRoles);
static_assert(SMLA_CACHE_INDEX_STATE == static_cast<int>(CacheRole::kIndexState));

void copy_table(const ConstTensorView& table, DeviceTensor& copy, DeviceKind device, Stream stream) {
  copy.reshape(device, DType::kI32, {table.size(0), table.size(1)});
  const std::int64_t row = table.size(1) * size_of(DType::kI32);
  if (table.contiguous()) return copy_bytes(device, copy.data(), table.data, copy.bytes(), stream);
  for (std::int64_t r = 0; r < table.size(0); ++r) {
    copy_bytes(device, static_cast<std::uint8_t*>(copy.data()) + r * row,
               static_cast<const std::uint8_t*>(table.data) + r * table.stride[0] * size_of(DType::kI32),
               static_cast<std::size_t>(row), stream);
  }
}

std::int64_t largest(const ConstTensorView& seq_lens) {
  if (seq_lens.absent() || seq_lens.rank != 1 || seq_lens.dtype != DType::kI32 || seq_lens.size(0) == 0 ||
      seq_lens.data == nullptr)
    return 0;
  std::int64_t most = 0;
  for (std::int64_t i = 0; i < seq_lens.size(0); ++i)
    most = std::max<std::int64_t>(most, seq_lens.as<std::int32_t>()[i * seq_lens.stride[0]]);
  return most;
}

void build(smla_step& step, const smla_step_batch* batch) {
  const smla_step_batch given = read_struct("smla_step_batch", batch, offsetof(smla_step_batch, host_query_start_loc));
  check_reserved("smla_step_batch", given.reserved);
  StepBatch out{.query_start_loc = read_tensor("query_start_loc", given.query_start_loc),
                .seq_lens = read_tensor("seq_lens", given.seq_lens),
                .positions = read_tensor("positions", given.positions),
                .block_tables = {},
                .max_seq_len = given.max_seq_len,
                .decode_threshold = given.decode_threshold == 0 ? 1 : given.decode_threshold};
  if (given.decode_threshold < 0)
    throw InvalidArgument("decode_threshold: got " + std::to_string(given.decode_threshold) + ", expected 0 or more");
  if (given.max_seq_len < 0)
    throw InvalidArgument("max_seq_len: got " + std::to_string(given.max_seq_len) + ", expected 0 or more");
  if (given.dspark_tokens < 0)
    throw InvalidArgument("dspark_tokens: got " + std::to_string(given.dspark_tokens) + ", expected 0 or more");
  out.causal = given.dspark_tokens == 0;
  out.dspark_tokens = given.dspark_tokens;
  const Stream stream{.handle = given.stream};
  ConstTensorView host_lens = step.device == DeviceKind::kCpu ? out.seq_lens : ConstTensorView();
  if (given.host_query_start_loc != nullptr && out.query_start_loc.rank == 1) {
    out.host_query_start_loc = {given.host_query_start_loc, static_cast<std::size_t>(out.query_start_loc.size(0))};
  }
  if (given.host_seq_lens != nullptr && out.seq_lens.rank == 1) {
    out.host_seq_lens = {given.host_seq_lens, static_cast<std::size_t>(out.seq_lens.size(0))};
    host_lens = view_of(given.host_seq_lens, {out.seq_lens.size(0)});
  }
  const std::int64_t longest = largest(host_lens);
  if (given.max_seq_len == 0) out.max_seq_len = longest;
  if (out.max_seq_len < longest) {
    throw InvalidArgument("max_seq_len: got " + std::to_string(out.max_seq_len) + ", expected at least " +
                          std::to_string(longest) + ", the largest of seq_lens");
  }
  const std::size_t groups = step.layout.groups.size();
  if (given.num_block_tables != static_cast<std::int32_t>(groups)) {
    throw InvalidArgument("block_tables: got " + std::to_string(given.num_block_tables) + ", expected " +
                          std::to_string(groups) + ", one for each cache group");
  }
  need_pointer(static_cast<const void*>(given.block_tables), "smla_step_build", "block_tables");
  step.block_tables.resize(groups);
  for (std::size_t g = 0; g < groups; ++g) {
    const std::string name = "block_tables[" + step.layout.groups[g].name + "]";
    const ConstTensorView table = read_tensor(name, given.block_tables[g]);
    if (table.rank != 2 || table.dtype != DType::kI32 || (table.numel() > 0 && table.data == nullptr)) {
      throw InvalidArgument(name + ": got " + (table.absent() ? "no tensor" : describe(table)) +
                            ", expected [requests, columns] I32 with data");
    }
    copy_table(table, step.block_tables[g], step.device, stream);
    out.block_tables.push_back(step.block_tables[g].view());
  }
  step.metadata.build(out, stream);
  step.built = true;
}

const StepMetadata& built(const smla_step* step, const char* function) {
  need_pointer(step, function, "step");
  if (!step->built)
    throw InvalidArgument(std::string(function) +
                          ": step: got one that was not built, expected smla_step_build before");
  return step->metadata;
}

/// Caches of the shape that the layer asks for, without memory: what a plan looks at.
LayerCaches shapes_of(const smla_layer& layer) {
  LayerCaches out;
  for (const CacheRole role : kCacheRoles) {
    const LayerCache* need = layer.layout().find(0, role);
    if (need == nullptr) continue;
    out[role] = {.format = need->format, .block_size = need->block_size, .block_stride_bytes = need->page_bytes};
  }
  return out;
}

/// The caches as errors name them, by role.
constexpr std::array<std::string_view, kNumCacheRoles> kCacheNames{"window cache", "compressed cache", "index cache",
                                                                   "state cache", "index_state cache"};

PagedCache read_one(const smla_layer& layer, CacheRole role, const smla_cache* given) {
  const std::string_view name = kCacheNames[static_cast<std::size_t>(role)];
  const LayerCache* need = layer.layout().find(0, role);
  const PagedCache cache = read_cache(name, given, layer.placed->scale_of(role));
  if (*cache.format != *need->format || cache.block_size != need->block_size) {
    throw InvalidArgument(std::string(name) + ": got blocks of " + std::to_string(cache.block_size) + " " +
                          std::string(cache.format->name) + " rows, expected " + std::to_string(need->block_size) +
                          " " + std::string(need->format->name) + " rows");
  }
  return cache;
}

LayerCaches read_caches(const smla_layer& layer, const smla_layer_caches* caches) {
  const smla_layer_caches given = read_struct("smla_layer_caches", caches);
  LayerCaches out;
  for (int i = 0; i < kNumCacheRoles; ++i) {
    const auto role = static_cast<CacheRole>(i);
    const std::string_view name = kCacheNames[static_cast<std::size_t>(i)];
    const LayerCache* need = layer.layout().find(0, role);
    if ((need == nullptr) != (given.cache[i] == nullptr)) {
      throw InvalidArgument(std::string(name) + (need == nullptr
                                                     ? ": got one, expected NULL: a layer of this kind has none"
                                                     : ": got NULL, expected one"));
    }
    if (need != nullptr) out[role] = read_one(layer, role, given.cache[i]);
  }
  return out;
}

/// Whether a step's slots mean the same in the caches of this layer.
void check_same_kind(const smla_layer& layer, const smla_step& step, const char* function) {
  const LayerConfig& config = layer.layer().config();
  bool same = layer.layer().options().device == step.device && config.compress_ratio == step.config.compress_ratio &&
              config.window == step.config.window;
  for (int role = 0; same && role < kNumCacheRoles; ++role) {
    const LayerCache* a = layer.layout().find(0, static_cast<CacheRole>(role));
    const LayerCache* b = step.layout.find(0, static_cast<CacheRole>(role));
    // A layer that reuses a choice runs with the step of the one that chooses, which has caches more.
    const bool extra = config.reuses_topk && a == nullptr;
    same = extra || ((a == nullptr) == (b == nullptr) && (a == nullptr || a->block_size == b->block_size));
  }
  if (!same) {
    throw InvalidArgument(std::string(function) + ": step: got one for compress_ratio " +
                          std::to_string(step.config.compress_ratio) + ", expected one for layers of compress_ratio " +
                          std::to_string(config.compress_ratio) + " on " + name_of(layer.layer().options().device) +
                          " and their cache formats");
  }
}

/// The rest of a step's shape is compared by the layer.
void check_plan(const smla_layer& layer, const smla_layer_plan& plan, const StepShape& shape) {
  constexpr const char* kPlan = "smla_layer_forward: plan: got one ";
  if (plan.layer_id != layer.id)
    throw InvalidArgument(std::string(kPlan) + "of another layer, expected one of this layer");
  if (plan.shape.prefill_query_lens != shape.prefill_query_lens ||
      plan.shape.prefill_seq_lens != shape.prefill_seq_lens)
    throw InvalidArgument(std::string(kPlan) + "for prefills of other lengths, expected one made with this step");
}

ConstTensorView tensor_of(const LayerStep& s, std::string_view name) {
  const std::array<std::pair<std::string_view, ConstTensorView>, 9> tensors{{{"window_slots", s.window_slots},
                                                                             {"window_indices", s.window_indices},
                                                                             {"window_lens", s.window_lens},
                                                                             {"entry_slots", s.entry_slots},
                                                                             {"entry_lens", s.entry_lens},
                                                                             {"state_slots", s.state_slots},
                                                                             {"index_state_slots", s.index_state_slots},
                                                                             {"dense_indices", s.dense_indices},
                                                                             {"dense_lens", s.dense_lens}}};
  std::string accepted;
  for (const auto& [known, tensor] : tensors) {
    if (tensor.absent()) continue;
    if (known == name) return tensor;
    accepted += (accepted.empty() ? "" : ", ") + std::string(known);
  }
  throw InvalidArgument("smla_step_get_tensor: name: got \"" + std::string(name) + "\", expected one of " + accepted);
}

}  // namespace

extern "C" {

smla_status smla_step_create(const smla_layer* layer, smla_step** step) {
  return guarded([&] {
    need_pointer(static_cast<const void*>(step), "smla_step_create", "step");
    *step = nullptr;
    need_pointer(layer, "smla_step_create", "layer");
    if (layer->layer().config().reuses_topk) {
      throw InvalidArgument(
          "smla_step_create: layer: got one that reuses a choice of entries, expected the one that chooses");
    }
    *step = std::make_unique<smla_step>(layer->layout(), layer->layer().config(), layer->layer().options()).release();
  });
}

void smla_step_destroy(smla_step* step) { delete step; }

smla_status smla_step_build(smla_step* step, const smla_step_batch* batch) {
  return guarded([&] {
    need_pointer(step, "smla_step_build", "step");
    step->built = false;
    build(*step, batch);
  });
}

smla_status smla_step_advance(smla_step* step, const smla_tensor* seq_lens, int64_t max_seq_len, void* stream) {
  return guarded([&] {
    constexpr const char* kName = "smla_step_advance";
    const StepMetadata& metadata = built(step, kName);
    if (max_seq_len < 0)
      throw InvalidArgument("max_seq_len: got " + std::to_string(max_seq_len) + ", expected 0 or more");
    if (seq_lens == nullptr) return step->metadata.advance({.handle = stream});
    const std::int64_t bound = max_seq_len == 0 ? metadata.shape().max_seq_len : max_seq_len;
    step->metadata.advance(read_tensor("seq_lens", seq_lens), bound, {.handle = stream});
  });
}

smla_status smla_step_get_tensor(const smla_step* step, const char* name, smla_tensor* tensor) {
  return guarded([&] {
    need_pointer(name, "smla_step_get_tensor", "name");
    const ConstTensorView view = tensor_of(built(step, "smla_step_get_tensor").layer(0), name);
    smla_tensor out{};
    out.data = const_cast<void*>(view.data);
    out.dtype = write_dtype(view.dtype);
    out.rank = view.rank;
    std::ranges::copy(view.shape, out.shape);
    std::ranges::copy(view.stride, out.strides);
    write_struct("smla_tensor", tensor, out);
  });
}

smla_status smla_layer_workspace(const smla_layer* layer, int64_t tokens, int64_t requests, int64_t max_seq_len,
                                 size_t* workspace_bytes) {
  return guarded([&] {
    need_pointer(layer, "smla_layer_workspace", "layer");
    need_pointer(workspace_bytes, "smla_layer_workspace", "workspace_bytes");
    *workspace_bytes = layer->layer().reserve_bytes(tokens, requests, max_seq_len, shapes_of(*layer));
  });
}

smla_status smla_layer_plan_create(const smla_layer* layer, const smla_step* step, smla_layer_plan** plan) {
  return guarded([&] {
    constexpr const char* kName = "smla_layer_plan_create";
    need_pointer(static_cast<const void*>(plan), kName, "plan");
    *plan = nullptr;
    need_pointer(layer, kName, "layer");
    const StepMetadata& metadata = built(step, kName);
    check_same_kind(*layer, *step, kName);
    auto made = std::make_unique<smla_layer_plan>();
    made->layer_id = layer->id;
    made->shape = metadata.shape();
    made->plan = layer->layer().plan(made->shape, shapes_of(*layer));
    *plan = made.release();
  });
}

void smla_layer_plan_destroy(smla_layer_plan* plan) { delete plan; }

smla_status smla_layer_plan_workspace(const smla_layer_plan* plan, size_t* workspace_bytes) {
  return guarded([&] {
    need_pointer(plan, "smla_layer_plan_workspace", "plan");
    need_pointer(workspace_bytes, "smla_layer_plan_workspace", "workspace_bytes");
    *workspace_bytes = plan->plan.workspace_bytes();
  });
}

smla_status smla_layer_context_workspace(const smla_layer* layer, int64_t tokens, size_t* workspace_bytes) {
  return guarded([&] {
    constexpr const char* kName = "smla_layer_context_workspace";
    need_pointer(layer, kName, "layer");
    need_pointer(workspace_bytes, kName, "workspace_bytes");
    *workspace_bytes = layer->layer().context_bytes(tokens);
  });
}

smla_status smla_layer_insert_context(const smla_layer* layer, const smla_tensor* hidden, const smla_tensor* positions,
                                      const smla_tensor* slots, const smla_cache* window, void* workspace,
                                      size_t workspace_bytes, void* stream) {
  return guarded([&] {
    constexpr const char* kName = "smla_layer_insert_context";
    need_pointer(layer, kName, "layer");
    need_pointer(window, kName, "window");
    check_workspace("workspace", workspace, workspace_bytes);
    layer->layer().insert_context(read_tensor("hidden", hidden), read_tensor("positions", positions),
                                  read_tensor("slots", slots), read_one(*layer, CacheRole::kWindow, window),
                                  {.data = workspace, .bytes = workspace_bytes}, {.handle = stream});
  });
}

smla_status smla_layer_forward(const smla_layer* layer, const smla_layer_plan* plan, const smla_step* step,
                               const smla_layer_caches* caches, const smla_tensor* hidden, const smla_tensor* output,
                               void* workspace, size_t workspace_bytes, void* stream) {
  return guarded([&] {
    constexpr const char* kName = "smla_layer_forward";
    need_pointer(layer, kName, "layer");
    const StepMetadata& metadata = built(step, kName);
    check_same_kind(*layer, *step, kName);
    if (plan != nullptr) check_plan(*layer, *plan, metadata.shape());
    check_workspace("workspace", workspace, workspace_bytes);
    const LayerCaches read = read_caches(*layer, caches);
    const TensorView in = read_tensor("hidden", hidden);
    const TensorView out = read_tensor("output", output);
    const Workspace lent{.data = workspace, .bytes = workspace_bytes};
    const LayerStep s = metadata.layer(0);
    if (plan != nullptr) return layer->layer().forward(plan->plan, s, read, in, out, lent, {.handle = stream});
    layer->layer().forward(layer->layer().plan(metadata.shape(), read), s, read, in, out, lent, {.handle = stream});
  });
}

}  // extern "C"
