#include "sparsemla/checkpoint.h"

#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "checkpoint/index.h"
#include "checkpoint/layer_tensors.h"
#include "core/read_file.h"
#include "model/json.h"
#include "sparsemla/error.h"

namespace smla {

namespace {

constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kFileName = "model.safetensors";
constexpr std::size_t kMaxIndexBytes = std::size_t{64} << 20;
constexpr std::size_t kMaxListed = 16;

bool exists(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0;
}

bool is_folder(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kMaxListed); ++i) text += (i == 0 ? "" : ", ") + names[i];
  return names.size() > kMaxListed ? text + " and " + std::to_string(names.size() - kMaxListed) + " more" : text;
}

std::string without_model(const std::string& name) { return name.starts_with("model.") ? name.substr(6) : name; }

}  // namespace

std::map<std::string, std::string> parse_checkpoint_index(const std::string& where, std::string_view json) {
  try {
    const JsonValue value = parse_json(where, json, {.max_bytes = kMaxIndexBytes, .max_depth = 8});
    const JsonReader reader(where, value);
    const std::optional<JsonReader> map = reader.object("weight_map");
    if (!map) reader.fail("weight_map", "no such key", "an object with the file of every tensor");
    std::map<std::string, std::string> files;
    for (const auto& [name, file] : map->value().members) {
      const bool plain = file.kind == JsonValue::Kind::kString && file.text.ends_with(".safetensors") &&
                         file.text.front() != '.' &&
                         file.text.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
      if (!plain) map->fail(name, file.describe(), "the name of a .safetensors file in the same folder");
      files.emplace(name, file.text);
    }
    return files;
  } catch (const InvalidArgument& e) {
    throw IoError(e.what());
  }
}

bool split_layer_name(std::string_view name, std::int64_t& layer, std::string& rest, std::string_view stack) {
  constexpr std::string_view kModel = "model.";
  if (name.starts_with(kModel)) name.remove_prefix(kModel.size());
  if (!name.starts_with(stack) || name.size() == stack.size() || name[stack.size()] != '.') return false;
  name.remove_prefix(stack.size() + 1);
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  const auto digits = static_cast<std::size_t>(end - name.data());
  if (error != std::errc() || layer < 0 || (digits > 1 && name[0] == '0') || name[0] == '-') return false;
  name.remove_prefix(digits);
  constexpr std::string_view kAttention = ".attn.";
  if (!name.starts_with(kAttention)) return false;
  rest = name.substr(kAttention.size());
  return true;
}

struct Checkpoint::State {
  std::string path;
  std::optional<ModelConfig> model;
  std::map<std::string, SafetensorsFile> files;  ///< by file name
  std::map<std::string, StoredTensor> tensors;   ///< by name without "model."
  std::map<std::int64_t, StoredLayer> layers;
  std::map<std::int64_t, StoredLayer> mtp;  ///< by their own numbers

  void open_shards();
  void open_file(const std::string& name, const std::string& file_path);
  void add(const SafetensorsFile& file, const std::string& name);
  const StoredLayer& layer(std::int64_t index) const;
  const StoredLayer& mtp_layer(std::int64_t index) const;
};

void Checkpoint::State::open_shards() {
  const std::string index = path + "/" + std::string(kIndexName);
  const std::map<std::string, std::string> weight_map =
      parse_checkpoint_index(index, read_text_file(index, kMaxIndexBytes, "JSON text"));
  std::set<std::string> shards;
  for (const auto& [name, shard] : weight_map) shards.insert(shard);
  std::vector<std::string> missing;
  for (const std::string& shard : shards) {
    if (!exists(path + "/" + shard)) missing.push_back(shard);
  }
  if (!missing.empty())
    throw IoError(index + ": got shards that are not there: " + listed(missing) + ", expected them beside the index");

  std::map<std::string, std::string> owner;
  for (const std::string& shard : shards) {
    const auto& file = files.try_emplace(shard, path + "/" + shard).first->second;
    for (const auto& [name, entry] : file.tensors()) {
      const auto [known, fresh] = owner.emplace(name, shard);
      if (!fresh)
        throw IoError(index + ": tensor " + name + ": got it in both " + known->second + " and " + shard +
                      ", expected it once");
    }
  }
  for (const auto& [name, shard] : weight_map) {
    if (!files.at(shard).has(name)) missing.push_back(name + " (" + shard + ")");
  }
  if (!missing.empty())
    throw IoError(index + ": got tensors that their shards do not hold: " + listed(missing) + ", expected them there");
  // What a shard holds beyond the index counts too, so that a stray attention tensor is seen.
  for (const auto& [name, shard] : owner) add(files.at(shard), name);
}

void Checkpoint::State::open_file(const std::string& name, const std::string& file_path) {
  const SafetensorsFile& file = files.try_emplace(name, file_path).first->second;
  for (const auto& [tensor, entry] : file.tensors()) add(file, tensor);
}

void Checkpoint::State::add(const SafetensorsFile& file, const std::string& name) {
  const StoredTensor stored{.file = &file, .name = name, .entry = &file.tensors().at(name)};
  const auto [known, fresh] = tensors.emplace(without_model(name), stored);
  if (!fresh)
    throw IoError(path + ": tensor " + name + ": got it beside " + known->second.name + ", expected it under one name");
  std::int64_t layer = 0;
  std::string rest;
  if (split_layer_name(name, layer, rest)) layers[layer].emplace(rest, stored);
  if (split_layer_name(name, layer, rest, "mtp")) mtp[layer].emplace(rest, stored);
}

const StoredLayer& Checkpoint::State::layer(std::int64_t index) const {
  const auto found = layers.find(index);
  const std::int64_t own = model ? index - model->num_layers : -1;  // its number among the MTP layers
  if (own >= 0 && mtp.contains(own)) {
    if (found == layers.end()) return mtp.at(own);
    throw IoError(path + ": layer " + std::to_string(index) + ": got tensors named layers." + std::to_string(index) +
                  ".attn.* and mtp." + std::to_string(own) + ".attn.*, expected one of the two");
  }
  if (found != layers.end()) return found->second;
  throw InvalidArgument(path + ": layer " + std::to_string(index) + ": got no tensor named layers." +
                        std::to_string(index) + ".attn.*, expected its attention weights (the checkpoint has them of " +
                        std::to_string(layers.size()) + " layers)");
}

const StoredLayer& Checkpoint::State::mtp_layer(std::int64_t index) const {
  const auto found = mtp.find(index);
  if (found != mtp.end()) return found->second;
  throw InvalidArgument(path + ": MTP layer " + std::to_string(index) + ": got no tensor named mtp." +
                        std::to_string(index) + ".attn.*, expected its attention weights (the checkpoint has them of " +
                        std::to_string(mtp.size()) + " MTP layers)");
}

Checkpoint::Checkpoint(const std::string& path) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.path = path;
  if (!is_folder(path)) {
    s.open_file(path, path);
    return;
  }
  const std::string config = path + "/config.json";
  if (exists(config)) s.model = load_model_config(config);
  if (exists(path + "/" + std::string(kIndexName))) {
    s.open_shards();
  } else {
    const std::string file = path + "/" + std::string(kFileName);
    if (!exists(file))
      throw IoError(path + ": got neither " + std::string(kFileName) + " nor " + std::string(kIndexName) +
                    ", expected one of them");
    s.open_file(std::string(kFileName), file);
  }
}

Checkpoint::~Checkpoint() = default;
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;

const std::string& Checkpoint::path() const { return state_->path; }
const std::optional<ModelConfig>& Checkpoint::model() const { return state_->model; }

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> names;
  for (const auto& [name, stored] : state_->tensors) names.push_back(name);
  return names;
}

bool Checkpoint::has_cache_scales(std::int64_t index) const {
  const StoredLayer& layer = state_->layer(index);
  return std::ranges::any_of(layer, [](const auto& item) {
    const std::string& name = item.first;
    const std::string_view last = std::string_view(name).substr(name.rfind('.') + 1);
    return last == "q_scale" || last == "kv_scale" || last == "k_scale" || last == "v_scale";
  });
}

LayerTensors Checkpoint::load_layer(std::int64_t index, int tp_rank, int tp_size, const LoadOptions& options) const {
  if (!state_->model)
    throw InvalidArgument(state_->path + ": got no config.json, expected one, or the numbers of layer " +
                          std::to_string(index));
  return load_layer(index, state_->model->layer(index), tp_rank, tp_size, options);
}

LayerTensors Checkpoint::load_layer(std::int64_t index, const LayerConfig& layer, int tp_rank, int tp_size,
                                    const LoadOptions& options) const {
  return read_layer(state_->path + ": layer " + std::to_string(index), state_->layer(index), layer, tp_rank, tp_size,
                    options);
}

LayerTensors Checkpoint::load_mtp_layer(std::int64_t index, const LayerConfig& layer, int tp_rank, int tp_size,
                                        const LoadOptions& options) const {
  return read_layer(state_->path + ": MTP layer " + std::to_string(index), state_->mtp_layer(index), layer, tp_rank,
                    tp_size, options);
}

}  // namespace smla
