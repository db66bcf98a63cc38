// config.json of DeepSeek-V4 in its public shapes: Hugging Face keys and those of the official inference code, flat or
// nested rope parameters.
#include "model/config_json.h"

#include <algorithm>
#include <cmath>

#include "model/json.h"
#include "sparsemla/error.h"

namespace smla {

namespace {

constexpr std::int64_t kMaxLayers = 1024;
constexpr std::int64_t kMaxWidth = std::int64_t{1} << 20;
constexpr double kMaxTheta = 1e12;

int checked_ratio(const JsonReader& json, const std::string& where, const JsonValue& value) {
  for (const int ratio : {0, 1, 4, 128}) {
    if (value.is_number() && value.number == ratio) return ratio;
  }
  throw InvalidArgument(json.where() + ": " + where + ": Unsupported DeepSeek-V4 compress_ratio=" + value.describe() +
                        "; expected 1, 4, or 128 (0 is 1)");
}

std::vector<int> ratios_from_list(const JsonReader& json, const JsonValue& list) {
  if (list.kind != JsonValue::Kind::kArray)
    json.fail("compress_ratios", list.describe(), "an array with one of 0, 1, 4, 128 a layer");
  std::vector<int> ratios;
  for (const JsonValue& item : list.items)
    ratios.push_back(checked_ratio(json, "compress_ratios[" + std::to_string(ratios.size()) + "]", item));
  return ratios;
}

/// Hugging Face's other spelling: layer names, and the ratio of each name (which may only be the architecture's own).
std::vector<int> ratios_from_layer_types(const JsonReader& json, const JsonValue& list) {
  constexpr std::pair<std::string_view, int> kTypes[] = {
      {"sliding_attention", 0}, {"compressed_sparse_attention", 4}, {"heavily_compressed_attention", 128}};
  if (const auto rates = json.object("compress_rates")) {
    for (const auto& [type, ratio] : kTypes) {
      const JsonValue* rate = rates->find(type);
      if (rate != nullptr && ratio != 0 && checked_ratio(*rates, std::string(type), *rate) != ratio) {
        rates->fail(type, rate->describe(), std::to_string(ratio));
      }
    }
  }
  const std::string expected = "sliding_attention, compressed_sparse_attention or heavily_compressed_attention";
  if (list.kind != JsonValue::Kind::kArray) json.fail("layer_types", list.describe(), "an array of " + expected);
  std::vector<int> ratios;
  for (const JsonValue& item : list.items) {
    int found = -1;
    for (const auto& [type, ratio] : kTypes) {
      if (item.kind == JsonValue::Kind::kString && item.text == type) found = ratio;
    }
    if (found < 0) json.fail("layer_types[" + std::to_string(ratios.size()) + "]", item.describe(), expected);
    ratios.push_back(found);
  }
  return ratios;
}

/// A file with both spellings must say the same in them; 0 and 1 both mean window only. Lists may differ in length:
/// that is about MTP layers.
void check_same_layers(const JsonReader& json, const JsonValue& types, const std::vector<int>& ratios) {
  const std::vector<int> others = ratios_from_layer_types(json, types);
  for (std::size_t i = 0; i < std::min(ratios.size(), others.size()); ++i) {
    if (std::max(ratios[i], 1) == std::max(others[i], 1)) continue;
    json.fail("layer_types[" + std::to_string(i) + "]", types.items[i].describe(),
              "the type of compress_ratios[" + std::to_string(i) + "], which is " + std::to_string(ratios[i]));
  }
}

void read_layers(const JsonReader& json, ModelConfig& config) {
  config.num_layers = json.integer("num_hidden_layers|n_layers", 1, kMaxLayers);
  const std::int64_t mtp = json.integer("num_nextn_predict_layers|n_mtp_layers", 0, 16, 0);
  const char* key = "compress_ratios";
  const JsonValue* list = json.find(key);
  const JsonValue* types = json.find("layer_types");
  if (list != nullptr) {
    config.compress_ratios = ratios_from_list(json, *list);
    if (types != nullptr) check_same_layers(json, *types, config.compress_ratios);
  } else if (types != nullptr) {
    key = "layer_types";
    config.compress_ratios = ratios_from_layer_types(json, *types);
  } else {
    json.fail(key, "no such key",
              "the checkpoint's list with one of 0, 1, 4, 128 a layer, or layer_types (no default is assumed: the "
              "generated one swaps C4A and C128A layers)");
  }
  const auto entries = static_cast<std::int64_t>(config.compress_ratios.size());
  const std::int64_t extra = entries - config.num_layers;
  if (extra != 0 && extra != mtp && extra != 1 && extra != 3) {
    json.fail(key, std::to_string(entries) + " entries",
              std::to_string(config.num_layers) + " (num_hidden_layers), with up to " +
                  std::to_string(std::max<std::int64_t>(mtp, 3)) + " more for MTP layers");
  }
  config.num_mtp_layers = std::max(mtp, extra);
}

/// IndexCache layer by layer: a letter for each C4A layer, or for each layer, of which those of C4A layers count.
std::string read_topk_pattern(const JsonReader& json, const ModelConfig& config) {
  constexpr const char* kKey = "index_topk_pattern";
  const std::string given = json.text(kKey, "");
  if (given.empty()) return {};
  const auto decoders = config.compress_ratios.begin() + static_cast<std::ptrdiff_t>(config.num_layers);
  const auto choosers = std::count(config.compress_ratios.begin(), decoders, 4);
  std::string pattern = given;
  if (std::ssize(given) == config.num_layers) {
    pattern.clear();
    for (std::size_t i = 0; i < given.size(); ++i) {
      if (config.compress_ratios[i] == 4) pattern += given[i];
    }
  }
  const bool sound = given.find_first_not_of("FS") == std::string::npos && std::ssize(pattern) == choosers &&
                     (pattern.empty() || pattern.front() == 'F');
  if (!sound) {
    json.fail(kKey, given,
              "F and then F or S, a letter for each of the " + std::to_string(choosers) + " C4A layers or of the " +
                  std::to_string(config.num_layers) + " layers");
  }
  return pattern;
}

/// DeepSeek-V4 rotates with YaRN's frequencies and leaves attention unscaled (spec 1), so a factor must say so.
void check_unscaled(const JsonReader& json) {
  if (const double factor = json.number("attention_factor", -1e6, 1e6, 1.0); factor != 1.0)
    json.fail("attention_factor", json.find("attention_factor")->describe(), "1");
  for (const char* key : {"mscale", "mscale_all_dim"}) {
    const double scale = json.number(key, -1e6, 1e6, 1.0);
    if (scale != 1.0 && scale != 0.0) json.fail(key, json.find(key)->describe(), "1, or 0 for none");
  }
}

/// YaRN from an object or from the whole file (official keys); nothing when the type says plain or the factor is 1.
std::optional<YarnConfig> read_yarn(const JsonReader& json, bool required) {
  check_unscaled(json);
  const std::string type = json.text("rope_type|type", required ? "yarn" : "default");
  if (type == "default" || type == "none") return std::nullopt;
  if (type != "yarn" && type != "deepseek_yarn")
    json.fail("rope_type", "the string \"" + type + "\"", "yarn or default");
  const YarnConfig standard;
  YarnConfig yarn{
      .factor = json.number("factor|rope_factor", 1.0, 1e6),
      .original_max_position = json.integer("original_max_position_embeddings|original_seq_len|original_max_position",
                                            1, std::int64_t{1} << 40),
      .beta_fast = json.number("beta_fast", 1e-6, 1e6, standard.beta_fast),
      .beta_slow = json.number("beta_slow", 1e-6, 1e6, standard.beta_slow)};
  if (yarn.factor == 1.0) return std::nullopt;
  return yarn;
}

void read_rope(const JsonReader& json, ModelConfig& config) {
  check_unscaled(json);
  config.rope_theta = json.number("rope_theta", 1.0 + 1e-6, kMaxTheta, config.rope_theta);
  config.compress_rope_theta = json.number("compress_rope_theta", 1.0 + 1e-6, kMaxTheta, config.compress_rope_theta);
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const auto rope = json.object(key);
    if (!rope) continue;
    const auto main = rope->object("main");
    const auto compress = rope->object("compress");
    if (main || compress) {
      if (!main) rope->fail("main", "no such key", "an object beside \"compress\"");
      if (!compress) rope->fail("compress", "no such key", "an object beside \"main\"");
      // A YaRN entry under "main" has no effect: window-only layers are never scaled.
      config.rope_theta = main->number("rope_theta|theta", 1.0 + 1e-6, kMaxTheta, config.rope_theta);
      config.compress_rope_theta =
          compress->number("rope_theta|theta", 1.0 + 1e-6, kMaxTheta, config.compress_rope_theta);
      config.yarn = read_yarn(*compress, compress->has("factor"));
    } else {
      config.rope_theta = rope->number("rope_theta", 1.0 + 1e-6, kMaxTheta, config.rope_theta);
      config.compress_rope_theta =
          rope->number("compress_rope_theta", 1.0 + 1e-6, kMaxTheta, config.compress_rope_theta);
      config.yarn = read_yarn(*rope, rope->has("factor"));
    }
    return;
  }
  if (json.has("rope_factor")) {
    // The official inference code's flat keys.
    const YarnConfig standard;
    config.yarn = YarnConfig{.factor = json.number("rope_factor", 1.0, 1e6),
                             .original_max_position = json.integer("original_seq_len", 1, std::int64_t{1} << 40,
                                                                   standard.original_max_position),
                             .beta_fast = json.number("beta_fast", 1e-6, 1e6, standard.beta_fast),
                             .beta_slow = json.number("beta_slow", 1e-6, 1e6, standard.beta_slow)};
    if (config.yarn->factor == 1.0) config.yarn.reset();
  }
}

}  // namespace

ModelConfig parse_model_config(std::string_view text, std::string_view where) {
  const JsonValue value = parse_json(where, text, {.max_bytes = std::size_t{16} << 20});
  const JsonReader json{std::string(where), value};
  ModelConfig config;
  if (const std::string type = json.text("model_type", "deepseek_v4"); type != "deepseek_v4") {
    json.fail("model_type", "the string \"" + type + "\"",
              std::string("deepseek_v4") + (type == "deepseek_v41" ? " (V4.1 is another architecture)" : ""));
  }
  config.name = json.text("_name_or_path|name", "config.json");
  if (config.name.empty()) config.name = "config.json";
  config.hidden_size = json.integer("hidden_size|dim", 1, kMaxWidth);
  config.num_heads = json.integer("num_attention_heads|n_heads", 1, 128);
  json.integer("num_key_value_heads", 1, 1, 1);
  config.head_dim = static_cast<int>(json.integer("head_dim", 512, 512, 512));
  config.rope_head_dim = static_cast<int>(json.integer("qk_rope_head_dim|rope_head_dim", 64, 64, 64));
  config.q_lora_rank = json.integer("q_lora_rank", 1, kMaxWidth);
  config.o_lora_rank = json.integer("o_lora_rank", 1, kMaxWidth);
  config.o_groups = json.integer("o_groups", 1, config.num_heads);
  if (config.num_heads % config.o_groups != 0) {
    json.fail("o_groups", std::to_string(config.o_groups),
              "a divisor of num_attention_heads " + std::to_string(config.num_heads));
  }
  config.window = json.integer("sliding_window|window_size", 1, kMaxWidth, 128);
  config.rms_norm_eps = static_cast<float>(json.number("rms_norm_eps|norm_eps", 1e-30, 1.0, 1e-6));
  config.max_position =
      json.integer("max_position_embeddings|max_seq_len", 1, std::int64_t{1} << 24, config.max_position);
  read_layers(json, config);
  config.index_n_heads = json.integer("index_n_heads", 1, 1024, config.index_n_heads);
  config.index_head_dim = static_cast<int>(json.integer("index_head_dim", 128, 128, 128));
  bool any_indexer = false;
  for (const int ratio : config.compress_ratios) any_indexer = any_indexer || ratio == 4;
  // The two public models differ here, so a missing key is no default.
  config.index_topk_freq = json.integer("index_topk_freq", 1, kMaxWidth, 1);
  config.index_topk_pattern = read_topk_pattern(json, config);
  config.index_topk = any_indexer ? json.integer("index_topk", 1, kMaxWidth)
                                  : json.integer("index_topk", 1, kMaxWidth, config.index_topk);
  read_rope(json, config);
  for (std::int64_t i = 0; i < config.num_layers; ++i) check_layer_config(config.layer(i));
  return config;
}

ModelConfig parse_model_config(std::string_view text) { return parse_model_config(text, "config.json"); }

}  // namespace smla
