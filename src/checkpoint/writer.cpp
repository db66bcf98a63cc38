#include "checkpoint/writer.h"

#include <cstdio>
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

}  // namespace

void CheckpointWriter::plan(const std::string& name, DType dtype, const std::vector<std::int64_t>& shape) {
  plans_.push_back({.name = name, .dtype = std::string(name_of(dtype)), .shape = shape});
}

void CheckpointWriter::plan_linear(const std::string& stem, std::int64_t outputs, std::int64_t inputs,
                                   LinearEncoding encoding) {
  for (SafetensorsPlan& plan : smla::plan_linear(stem, outputs, inputs, encoding)) plans_.push_back(std::move(plan));
}

std::int64_t CheckpointWriter::bytes() const {
  std::int64_t sum = 0;
  for (const SafetensorsPlan& plan : plans_) sum += plan.bytes();
  return sum;
}

void CheckpointWriter::begin(const std::string& folder, int shards) {
  const auto count = static_cast<std::int64_t>(plans_.size());
  if (shards < 1 || shards > count) {
    throw InvalidArgument("checkpoint writer: shards: got " + std::to_string(shards) + ", expected 1 to " +
                          std::to_string(count) + ", the tensors");
  }
  folder_ = folder;
  const std::int64_t all = bytes();
  std::int64_t planned = 0;
  std::size_t next = 0;
  for (int shard = 0; shard < shards; ++shard) {
    // At least one tensor each, and one left for each shard to come.
    const std::int64_t goal = all / shards * (shard + 1);
    const std::size_t last = plans_.size() - static_cast<std::size_t>(shards - 1 - shard);
    const std::size_t first = next;
    while (next < last && (next == first || shard == shards - 1 || planned < goal)) planned += plans_[next++].bytes();
    ends_.push_back(next);
  }
  open_next();
}

std::string CheckpointWriter::file_name(int shard) const {
  if (ends_.size() == 1) return "model.safetensors";
  char text[64];
  std::snprintf(text, sizeof text, "model-%05d-of-%05zu.safetensors", shard + 1, ends_.size());
  return text;
}

void CheckpointWriter::open_next() {
  if (file_) file_->finish();
  ++shard_;
  const std::vector<SafetensorsPlan> part(
      plans_.begin() + static_cast<std::ptrdiff_t>(next_),
      plans_.begin() + static_cast<std::ptrdiff_t>(ends_[static_cast<std::size_t>(shard_)]));
  file_.emplace(folder_ + "/" + file_name(shard_), std::map<std::string, std::string>{{"format", "pt"}}, part);
}

void CheckpointWriter::append(const std::string& name, const std::string& dtype, const std::vector<std::int64_t>& shape,
                              const void* data) {
  const bool planned = file_ && next_ < plans_.size() && plans_[next_].name == name && plans_[next_].dtype == dtype &&
                       plans_[next_].shape == shape;
  if (!planned) {
    throw InvalidArgument("checkpoint writer: got " + name + ", expected " +
                          (file_ && next_ < plans_.size() ? plans_[next_].name + " as it was planned" : "no tensor"));
  }
  if (next_ == ends_[static_cast<std::size_t>(shard_)]) open_next();
  const std::int64_t size = plans_[next_++].bytes();
  file_->append(data, static_cast<std::size_t>(size));
  written_ += size;
}

void CheckpointWriter::add(const std::string& name, const ConstTensorView& tensor) {
  if (!tensor.contiguous())
    throw InvalidArgument("checkpoint writer: " + name + ": got strided rows, expected contiguous ones");
  append(name, std::string(name_of(tensor.dtype)), {tensor.shape.begin(), tensor.shape.begin() + tensor.rank},
         tensor.data);
}

void CheckpointWriter::add_linear(const std::string& stem, const ConstTensorView& weight, LinearEncoding encoding) {
  const EncodedLinear e = encode_linear(weight, encoding);
  const HostTensor* parts[] = {&e.weight, &e.scale, &e.global_scale};
  const HostTensor* const* part = parts;
  for (const SafetensorsPlan& plan : smla::plan_linear(stem, weight.size(0), weight.size(1), encoding))
    append(plan.name, plan.dtype, plan.shape, (*part++)->data());
}

void CheckpointWriter::finish(const ModelConfig& model) {
  if (!file_ || next_ != plans_.size()) {
    throw InvalidArgument("checkpoint writer: got " + std::to_string(next_) + " tensors, expected the " +
                          std::to_string(plans_.size()) + " that were planned");
  }
  file_->finish();
  file_.reset();
  if (ends_.size() > 1) {
    std::string map;
    int shard = 0;
    for (std::size_t i = 0; i < plans_.size(); ++i) {
      if (i == ends_[static_cast<std::size_t>(shard)]) ++shard;
      map += (i == 0 ? "\n    " : ",\n    ") + json_string(plans_[i].name) + ": " + json_string(file_name(shard));
    }
    write_text(folder_ + "/model.safetensors.index.json",
               "{\n  \"metadata\": {\"total_size\": " + std::to_string(bytes()) + "},\n  \"weight_map\": {" + map +
                   "\n  }\n}\n");
  }
  write_text(folder_ + "/config.json", model_config_json(model));
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
  if (m.index_topk_freq > 1) put("index_topk_freq", std::to_string(m.index_topk_freq));
  if (!m.index_topk_pattern.empty()) put("index_topk_pattern", json_string(m.index_topk_pattern));
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
