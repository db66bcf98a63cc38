#include "sparsemla/model_config.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "core/read_file.h"
#include "model/config_json.h"
#include "sparsemla/error.h"

namespace smla {

namespace {

/// `first` entries, then 4 and 128 in turn (4 first) up to `layers` decoder layers, then one window-only MTP layer
/// (spec 1).
std::vector<int> alternating_ratios(std::vector<int> first, std::size_t layers) {
  const std::size_t start = first.size();
  while (first.size() < layers) first.push_back((first.size() - start) % 2 == 0 ? 4 : 128);
  first.push_back(0);
  return first;
}

ModelConfig v4_flash() {
  return {.name = "v4-flash",
          .hidden_size = 4096,
          .num_layers = 43,
          .num_mtp_layers = 1,
          .num_heads = 64,
          .q_lora_rank = 1024,
          .o_lora_rank = 1024,
          .o_groups = 8,
          .index_topk = 512,
          .yarn = YarnConfig{},
          .compress_ratios = alternating_ratios({0, 0}, 43)};
}

ModelConfig v4_pro() {
  return {.name = "v4-pro",
          .hidden_size = 7168,
          .num_layers = 61,
          .num_mtp_layers = 1,
          .num_heads = 128,
          .q_lora_rank = 1536,
          .o_lora_rank = 1024,
          .o_groups = 16,
          .index_topk = 1024,
          .yarn = YarnConfig{},
          .compress_ratios = alternating_ratios({128, 128}, 61)};
}

ModelConfig tiny() {
  return {.name = "tiny",
          .hidden_size = 256,
          .num_layers = 4,
          .num_mtp_layers = 1,
          .num_heads = 8,
          .q_lora_rank = 128,
          .o_lora_rank = 64,
          .o_groups = 2,
          .index_n_heads = 8,
          .index_topk = 32,
          .yarn = YarnConfig{},
          .max_position = 16384,
          .compress_ratios = {0, 4, 128, 4}};
}

struct Preset {
  std::string_view name;
  ModelConfig (*make)();
};
constexpr Preset kPresets[] = {{"v4-flash", v4_flash}, {"v4-pro", v4_pro}, {"tiny", tiny}};

const Preset* find_preset(std::string_view name) {
  for (const Preset& preset : kPresets) {
    if (preset.name == name) return &preset;
  }
  return nullptr;
}

std::string preset_list() {
  std::string names;
  for (const Preset& preset : kPresets) names += (names.empty() ? "" : ", ") + std::string(preset.name);
  return names;
}

void check_count(std::string_view what, std::int64_t got, std::int64_t min, std::int64_t max) {
  if (got >= min && got <= max) return;
  throw InvalidArgument("layer config: " + std::string(what) + ": got " + std::to_string(got) + ", expected " +
                        (min == max ? std::to_string(min) : std::to_string(min) + " to " + std::to_string(max)));
}

}  // namespace

void check_layer_config(const LayerConfig& config) {
  constexpr std::int64_t kMaxWidth = std::int64_t{1} << 20;
  check_count("hidden_size", config.hidden_size, 1, kMaxWidth);
  check_count("num_heads", config.num_heads, 1, 128);
  check_count("head_dim", config.head_dim, 512, 512);
  check_count("rope_head_dim", config.rope_head_dim, 64, 64);
  check_count("q_lora_rank", config.q_lora_rank, 1, kMaxWidth);
  check_count("o_lora_rank", config.o_lora_rank, 1, kMaxWidth);
  check_count("o_groups", config.o_groups, 1, config.num_heads);
  if (config.num_heads % config.o_groups != 0) {
    throw InvalidArgument("layer config: o_groups: got " + std::to_string(config.o_groups) +
                          ", expected a divisor of num_heads " + std::to_string(config.num_heads));
  }
  check_count("window", config.window, 1, kMaxWidth);
  if (config.compress_ratio != 0 && config.compress_ratio != 1 && config.compress_ratio != 4 &&
      config.compress_ratio != 128) {
    throw InvalidArgument("layer config: Unsupported compress_ratio=" + std::to_string(config.compress_ratio) +
                          "; expected 1, 4, or 128");
  }
  if (config.has_indexer()) {
    check_count("index_n_heads", config.index_n_heads, 1, 1024);
    check_count("index_head_dim", config.index_head_dim, 128, 128);
    check_count("index_topk", config.index_topk, 1, kMaxWidth);
  }
  if (!(config.rms_norm_eps > 0.0F) || config.rms_norm_eps > 1.0F) {
    throw InvalidArgument("layer config: rms_norm_eps: got " + std::to_string(config.rms_norm_eps) +
                          ", expected a number above 0, at most 1");
  }
  check_count("rope.dim", config.rope.dim, config.rope_head_dim, config.rope_head_dim);
  rope_frequencies(config.rope);  // throws for an impossible theta or YaRN
}

LayerConfig ModelConfig::layer(std::int64_t index) const {
  if (index < 0 || index >= num_layers + num_mtp_layers) {
    throw InvalidArgument("model " + name + ": got layer " + std::to_string(index) + ", expected 0 to " +
                          std::to_string(num_layers + num_mtp_layers - 1));
  }
  int ratio = 1;  // MTP layers are window-only whatever their entry says
  if (index < num_layers) {
    if (index >= static_cast<std::int64_t>(compress_ratios.size())) {
      throw InvalidArgument("model " + name + ": compress_ratios: got " + std::to_string(compress_ratios.size()) +
                            " entries, expected at least " + std::to_string(num_layers));
    }
    ratio =
        compress_ratios[static_cast<std::size_t>(index)] == 0 ? 1 : compress_ratios[static_cast<std::size_t>(index)];
  }
  const bool compress = ratio > 1;
  LayerConfig layer{.hidden_size = hidden_size,
                    .num_heads = num_heads,
                    .head_dim = head_dim,
                    .rope_head_dim = rope_head_dim,
                    .q_lora_rank = q_lora_rank,
                    .o_lora_rank = o_lora_rank,
                    .o_groups = o_groups,
                    .window = window,
                    .compress_ratio = ratio,
                    .index_n_heads = index_n_heads,
                    .index_head_dim = index_head_dim,
                    .index_topk = index_topk,
                    .rms_norm_eps = rms_norm_eps,
                    .rope = {.theta = compress ? compress_rope_theta : rope_theta, .dim = rope_head_dim},
                    .hadamard = hadamard};
  if (layer.has_indexer()) {
    const auto before =
        std::count(compress_ratios.begin(), compress_ratios.begin() + static_cast<std::ptrdiff_t>(index), 4);
    if (index_topk_pattern.empty()) {
      layer.reuses_topk = before % index_topk_freq != 0;
    } else if (before < std::ssize(index_topk_pattern)) {
      layer.reuses_topk = index_topk_pattern[static_cast<std::size_t>(before)] == 'S';
    } else {
      throw InvalidArgument("model " + name + ": index_topk_pattern: got " + index_topk_pattern +
                            ", expected a letter for each C4A layer");
    }
  }
  if (compress) layer.rope.yarn = yarn;
  return layer;
}

ModelConfig model_preset(std::string_view name) {
  const Preset* preset = find_preset(name);
  if (preset == nullptr)
    throw InvalidArgument("model: got \"" + std::string(name) + "\", expected one of " + preset_list());
  return preset->make();
}

std::vector<std::string> model_preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.emplace_back(preset.name);
  return names;
}

ModelConfig load_model_config(const std::string& preset_or_path) {
  if (find_preset(preset_or_path) != nullptr) return model_preset(preset_or_path);
  constexpr std::size_t kMaxBytes = std::size_t{16} << 20;
  return parse_model_config(read_text_file(preset_or_path, kMaxBytes, preset_list() + " or a config.json"),
                            preset_or_path);
}

}  // namespace smla
