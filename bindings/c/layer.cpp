#include <memory>
#include <set>
#include <utility>

#include "c/descriptors.h"
#include "c/handles.h"
#include "c/layer_settings.h"
#include "c/status.h"
#include "model/weight_table.h"

namespace {

using namespace smla;
using namespace smla::c;

std::unique_ptr<smla_layer> make_layer(LayerSource source, const Options& options) {
  auto made = std::make_unique<smla_layer>();
  auto rope = std::make_shared<RopeTable>(source.config.rope, options.max_position, options.layer.device);
  made->placed.emplace(std::move(source), options.layer, std::move(rope));
  return made;
}

/// @throws InvalidArgument that lists every name that is missing and every one that a layer of this kind does not have.
void check_names(const LayerTensors& given) {
  std::set<std::string, std::less<>> known;
  std::string wrong;
  LayerWeights unused;
  visit_weights(given.config, unused, [&](std::string_view name, ConstTensorView& view) {
    known.emplace(name);
    const auto found = given.tensors.find(name);
    if (found != given.tensors.end()) view = found->second;
    if (found == given.tensors.end()) wrong += "\n  " + std::string(name) + ": got no such tensor, expected it";
  });
  for (std::string& name : idle_weight_names(given.config)) known.insert(std::move(name));
  for (const auto& [name, tensor] : given.tensors) {
    if (!known.contains(name))
      wrong += "\n  " + name + ": got a tensor, expected none of that name in a layer of this kind";
  }
  if (!wrong.empty()) throw InvalidArgument("smla_layer_create:" + wrong);
}

}  // namespace

extern "C" {

smla_status smla_model_layer_config(const char* model, int64_t layer, smla_layer_config* config) {
  return guarded([&] {
    need_pointer(model, "smla_model_layer_config", "model");
    write_struct("smla_layer_config", config, write_config(load_model_config(model).layer(layer)));
  });
}

smla_status smla_layer_create(const smla_layer_config* config, const smla_layer_options* options,
                              const char* const* names, const smla_tensor* const* tensors, int64_t count,
                              smla_layer** layer) {
  return guarded([&] {
    constexpr const char* kName = "smla_layer_create";
    need_pointer(static_cast<const void*>(layer), kName, "layer");
    *layer = nullptr;
    LayerTensors weights{.config = read_config(config),
                         .tensors = {},
                         .q_scale = {},
                         .kv_scale = {},
                         .compressed_kv_scale = {},
                         .memory = nullptr};
    const Options read = read_options(options);
    if (count < 0)
      throw InvalidArgument("smla_layer_create: count: got " + std::to_string(count) + ", expected 0 or more");
    if (count > 0) {
      need_pointer(static_cast<const void*>(names), kName, "names");
      need_pointer(static_cast<const void*>(tensors), kName, "tensors");
    }
    for (std::int64_t i = 0; i < count; ++i) {
      need_pointer(names[i], kName, ("names[" + std::to_string(i) + "]").c_str());
      need_pointer(tensors[i], kName, names[i]);
      if (!weights.tensors.emplace(names[i], read_tensor(names[i], tensors[i])).second) {
        throw InvalidArgument(std::string("smla_layer_create: ") + names[i] + ": got it twice, expected it once");
      }
    }
    check_names(weights);
    LayerSource source = LayerSource::of(std::move(weights));
    source.on_device = true;
    *layer = make_layer(std::move(source), read).release();
  });
}

smla_status smla_layer_create_from_checkpoint(const char* folder, int64_t index, const smla_layer_options* options,
                                              int32_t tp_rank, int32_t tp_size, smla_layer** layer) {
  return guarded([&] {
    need_pointer(static_cast<const void*>(layer), "smla_layer_create_from_checkpoint", "layer");
    *layer = nullptr;
    need_pointer(folder, "smla_layer_create_from_checkpoint", "folder");
    const Options read = read_options(options);
    LayerTensors weights = Checkpoint(folder).load_layer(
        index, tp_rank, tp_size == 0 ? 1 : tp_size, {.keep_fp8 = read.fp8_weights, .keep_nvfp4 = read.nvfp4_weights});
    write_config(weights.config);  // refuses a layer that this interface cannot describe
    *layer = make_layer(LayerSource::of(std::move(weights)), read).release();
  });
}

void smla_layer_destroy(smla_layer* layer) { delete layer; }

smla_status smla_layer_get_config(const smla_layer* layer, smla_layer_config* config) {
  return guarded([&] {
    need_pointer(layer, "smla_layer_get_config", "layer");
    write_struct("smla_layer_config", config, write_config(layer->layer().config()));
  });
}

int32_t smla_layer_num_groups(const smla_layer* layer) {
  return layer == nullptr ? 0 : static_cast<int32_t>(layer->layout().groups.size());
}

smla_status smla_layer_cache_need(const smla_layer* layer, int32_t role, smla_cache_need* need) {
  return guarded([&] {
    need_pointer(layer, "smla_layer_cache_need", "layer");
    if (role < 0 || role >= SMLA_NUM_CACHES) {
      throw InvalidArgument("smla_layer_cache_need: role: got " + std::to_string(role) + ", expected 0 to " +
                            std::to_string(SMLA_NUM_CACHES - 1));
    }
    smla_cache_need out{};
    const auto cache_role = static_cast<CacheRole>(role);
    if (const LayerCache* cache = layer->layout().find(0, cache_role); cache != nullptr) {
      const int group = layer->layout().group_of(0, cache_role);
      const CacheGroup& shared = layer->layout().groups[static_cast<std::size_t>(group)];
      out.present = 1;
      out.group = group;
      out.format = cache->format->name.data();  // a literal, so it ends in 0
      out.block_size = cache->block_size;
      out.block_tokens = shared.block_tokens;
      out.window = shared.kept();
      out.page_bytes = cache->page_bytes;
      out.kv_scale = layer->placed->scale_of(cache_role);
    }
    write_struct("smla_cache_need", need, out);
  });
}

}  // extern "C"
