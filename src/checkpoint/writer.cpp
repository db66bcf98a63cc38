#include "checkpoint/writer.h"

#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <utility>

#include "model/json.h"
#include "sparsemla/error.h"

namespace smla {

namespace {

std::string number(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

/// A float in the fewest digits that name it.
std::string number(float value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.9g", static_cast<double>(value));
  return text;
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.flush();
  if (!file) throw IoError(path + ": writing failed");
}

std::string shard_name(int shard, int shards) {
  char text[64];
  std::snprintf(text, sizeof text, "model-%05d-of-%05d.safetensors", shard + 1, shards);
  return text;
}

}  // namespace

void CheckpointWriter::add(const std::string& name, const ConstTensorView& tensor) {
  if (!tensor.contiguous())
    throw InvalidArgument("checkpoint writer: " + name + ": got strided rows, expected contiguous ones");
  HostTensor copy(tensor.dtype, std::vector<std::int64_t>(tensor.shape.begin(), tensor.shape.begin() + tensor.rank));
  if (copy.bytes() != 0) std::memcpy(copy.data(), tensor.data, copy.bytes());
  items_.push_back({.name = name, .tensor = std::move(copy), .dtype = {}});
}

void CheckpointWriter::add_linear(const std::string& stem, const ConstTensorView& weight, LinearEncoding encoding) {
  EncodedLinear e = encode_linear(weight, encoding);
  items_.push_back({.name = stem + ".weight", .tensor = std::move(e.weight), .dtype = {}});
  if (encoding == LinearEncoding::kFp8)
    items_.push_back({.name = stem + ".scale", .tensor = std::move(e.scale), .dtype = "F8_E8M0"});
  if (encoding == LinearEncoding::kNvfp4) {
    items_.push_back({.name = stem + ".weight_scale", .tensor = std::move(e.scale), .dtype = {}});
    items_.push_back({.name = stem + ".weight_scale_2", .tensor = std::move(e.global_scale), .dtype = {}});
  }
}

std::int64_t CheckpointWriter::bytes() const {
  std::int64_t sum = 0;
  for (const Item& item : items_) sum += static_cast<std::int64_t>(item.tensor.bytes());
  return sum;
}

void CheckpointWriter::write(const std::string& folder, const ModelConfig& model, int shards) const {
  const auto count = static_cast<std::int64_t>(items_.size());
  if (shards < 1 || shards > count) {
    throw InvalidArgument("checkpoint writer: shards: got " + std::to_string(shards) + ", expected 1 to " +
                          std::to_string(count) + ", the tensors");
  }
  write_text(folder + "/config.json", model_config_json(model));
  const std::map<std::string, std::string> metadata{{"format", "pt"}};
  std::string map;
  std::int64_t next = 0;
  std::int64_t written = 0;
  for (int shard = 0; shard < shards; ++shard) {
    // At least one tensor each, and one left for each shard to come.
    const std::int64_t goal = bytes() / shards * (shard + 1);
    const std::string name = shards == 1 ? "model.safetensors" : shard_name(shard, shards);
    std::vector<SafetensorsItem> list;
    while (next < count - (shards - 1 - shard) && (list.empty() || shard == shards - 1 || written < goal)) {
      const Item& item = items_[static_cast<std::size_t>(next++)];
      list.push_back({.name = item.name, .tensor = &item.tensor, .dtype = item.dtype});
      written += static_cast<std::int64_t>(item.tensor.bytes());
      map += (map.empty() ? "\n    " : ",\n    ") + json_string(item.name) + ": " + json_string(name);
    }
    write_safetensors_items(folder + "/" + name, metadata, list);
  }
  if (shards > 1) {
    write_text(folder + "/model.safetensors.index.json",
               "{\n  \"metadata\": {\"total_size\": " + std::to_string(bytes()) + "},\n  \"weight_map\": {" + map +
                   "\n  }\n}\n");
  }
}

std::string model_config_json(const ModelConfig& m) {
  std::string ratios;
  for (const int ratio : m.compress_ratios) ratios += (ratios.empty() ? "" : ", ") + std::to_string(ratio);
  std::string text = "{\n  \"architectures\": [\"DeepseekV4ForCausalLM\"],\n  \"model_type\": \"deepseek_v4\",\n";
  const auto put = [&](const char* key, const std::string& value) {
    text += "  \"" + std::string(key) + "\": " + value + ",\n";
  };
  put("_name_or_path", json_string(m.name));
  put("hidden_size", std::to_string(m.hidden_size));
  put("num_hidden_layers", std::to_string(m.num_layers));
  put("num_nextn_predict_layers", std::to_string(m.num_mtp_layers));
  put("num_attention_heads", std::to_string(m.num_heads));
  put("num_key_value_heads", "1");
  put("head_dim", std::to_string(m.head_dim));
  put("qk_rope_head_dim", std::to_string(m.rope_head_dim));
  put("q_lora_rank", std::to_string(m.q_lora_rank));
  put("o_lora_rank", std::to_string(m.o_lora_rank));
  put("o_groups", std::to_string(m.o_groups));
  put("sliding_window", std::to_string(m.window));
  put("index_n_heads", std::to_string(m.index_n_heads));
  put("index_head_dim", std::to_string(m.index_head_dim));
  put("index_topk", std::to_string(m.index_topk));
  put("rms_norm_eps", number(m.rms_norm_eps));
  put("rope_theta", number(m.rope_theta));
  put("compress_rope_theta", number(m.compress_rope_theta));
  if (m.yarn) {
    put("rope_scaling", "{\"type\": \"yarn\", \"factor\": " + number(m.yarn->factor) +
                            ", \"original_max_position_embeddings\": " + std::to_string(m.yarn->original_max_position) +
                            ", \"beta_fast\": " + number(m.yarn->beta_fast) +
                            ", \"beta_slow\": " + number(m.yarn->beta_slow) + "}");
  }
  put("max_position_embeddings", std::to_string(m.max_position));
  return text + "  \"compress_ratios\": [" + ratios + "]\n}\n";
}

}  // namespace smla
