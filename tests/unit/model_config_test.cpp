#include "sparsemla/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <limits>
#include <string>

#include "sparsemla/error.h"

namespace smla {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string join(const std::vector<int>& values) {
  std::string out;
  for (const int v : values) out += (out.empty() ? "" : ", ") + std::to_string(v);
  return "[" + out + "]";
}

/// A small config.json whose parts can be replaced.
struct Text {
  std::string hidden = "\"hidden_size\": 256";
  std::string layers = "\"num_hidden_layers\": 3, \"compress_ratios\": [0, 4, 128]";
  std::string rope =
      "\"rope_theta\": 10000, \"compress_rope_theta\": 160000, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 16, "
      "\"original_max_position_embeddings\": 65536, \"beta_fast\": 32, \"beta_slow\": 1}";
  std::string rest =
      "\"num_attention_heads\": 8, \"q_lora_rank\": 128, \"o_lora_rank\": 64, \"o_groups\": 2, \"index_topk\": 16";
  std::string more;
  std::string str() const {
    return "{" + hidden + ", " + layers + (rope.empty() ? "" : ", " + rope) + (rest.empty() ? "" : ", " + rest) +
           (more.empty() ? "" : ", " + more) + "}";
  }
};

/// The text of the error that parsing raises; empty when there is none.
std::string error_of(const std::string& text) {
  try {
    parse_model_config(text);
  } catch (const InvalidArgument& e) {
    return e.what();
  }
  return "";
}

std::array<int, 3> kinds(const ModelConfig& model) {
  std::array<int, 3> counts{};
  for (std::int64_t i = 0; i < model.num_layers; ++i) {
    const LayerConfig layer = model.layer(i);
    check_layer_config(layer);
    ++counts[layer.compress_ratio == 1 ? 0 : layer.compress_ratio == 4 ? 1 : 2];
  }
  return counts;
}

TEST(ModelConfig, FlashPreset) {
  const ModelConfig m = model_preset("v4-flash");
  EXPECT_EQ(m.compress_ratios.size(), 44U);
  EXPECT_EQ(kinds(m), (std::array<int, 3>{2, 21, 20}));
  EXPECT_EQ(std::vector<int>(m.compress_ratios.begin(), m.compress_ratios.begin() + 5),
            (std::vector<int>{0, 0, 4, 128, 4}));
  EXPECT_EQ(m.compress_ratios[42], 4);
  EXPECT_EQ(m.compress_ratios[43], 0);
  EXPECT_EQ(m.hidden_size, 4096);
  EXPECT_EQ(m.num_heads, 64);
  EXPECT_EQ(m.q_lora_rank, 1024);
  EXPECT_EQ(m.o_groups, 8);
  EXPECT_EQ(m.index_topk, 512);
  EXPECT_EQ(m.max_position, 1048576);
}

TEST(ModelConfig, ProPreset) {
  const ModelConfig m = model_preset("v4-pro");
  EXPECT_EQ(m.compress_ratios.size(), 62U);
  EXPECT_EQ(kinds(m), (std::array<int, 3>{0, 30, 31}));
  EXPECT_EQ(std::vector<int>(m.compress_ratios.begin(), m.compress_ratios.begin() + 5),
            (std::vector<int>{128, 128, 4, 128, 4}));
  EXPECT_EQ(m.compress_ratios[60], 4);
  EXPECT_EQ(m.hidden_size, 7168);
  EXPECT_EQ(m.q_lora_rank, 1536);
  EXPECT_EQ(m.index_topk, 1024);
}

TEST(ModelConfig, TinyPresetHasAllThreeKinds) {
  const auto counts = kinds(model_preset("tiny"));
  for (const int n : counts) EXPECT_GE(n, 1);
}

TEST(ModelConfig, RopeIsChosenByLayerKind) {
  const ModelConfig m = model_preset("v4-flash");
  EXPECT_EQ(m.layer(0).rope, (RopeConfig{.theta = 10000.0}));
  EXPECT_EQ(m.layer(2).rope, (RopeConfig{.theta = 160000.0, .yarn = YarnConfig{}}));
  EXPECT_EQ(m.layer(3).rope, m.layer(2).rope);
  EXPECT_EQ(m.layer(43).compress_ratio, 1);  // the MTP layer
  EXPECT_EQ(m.layer(43).rope, m.layer(0).rope);
  EXPECT_THROW(m.layer(44), InvalidArgument);
  EXPECT_THROW(m.layer(-1), InvalidArgument);
}

TEST(ModelConfig, UnknownPresetAndMissingFile) {
  EXPECT_THROW(model_preset("v5"), InvalidArgument);
  EXPECT_THROW(load_model_config("/no/such/config.json"), IoError);
  EXPECT_EQ(load_model_config("tiny").name, "tiny");
}

TEST(ModelConfig, FlatShapeGivesThePreset) {
  const ModelConfig want = model_preset("v4-flash");
  const ModelConfig got = parse_model_config(
      "{\"model_type\": \"deepseek_v4\", \"hidden_size\": 4096, \"num_hidden_layers\": 43, "
      "\"num_nextn_predict_layers\": 1, \"num_attention_heads\": "
      "64, "
      "\"num_key_value_heads\": 1, \"head_dim\": 512, \"qk_rope_head_dim\": 64, \"q_lora_rank\": 1024, "
      "\"o_lora_rank\": 1024, \"o_groups\": 8, "
      "\"sliding_window\": 128, \"index_n_heads\": 64, \"index_head_dim\": 128, \"index_topk\": 512, \"rms_norm_eps\": "
      "1e-06, \"rope_theta\": 10000, "
      "\"compress_rope_theta\": 160000, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 16, "
      "\"original_max_position_embeddings\": 65536, "
      "\"beta_fast\": 32, \"beta_slow\": 1}, \"max_position_embeddings\": 1048576, \"quantization_config\": {\"fmt\": "
      "\"e4m3\"}, "
      "\"compress_ratios\": " +
      join(want.compress_ratios) + "}");
  EXPECT_EQ(got.compress_ratios, want.compress_ratios);
  EXPECT_EQ(got.num_mtp_layers, 1);
  EXPECT_EQ(got.yarn, want.yarn);
  for (std::int64_t i = 0; i < 44; ++i) {
    EXPECT_EQ(got.layer(i).rope, want.layer(i).rope);
    EXPECT_EQ(got.layer(i).compress_ratio, want.layer(i).compress_ratio);
    EXPECT_EQ(got.layer(i).rms_norm_eps, want.layer(i).rms_norm_eps);
  }
}

TEST(ModelConfig, NestedRopeParameters) {
  Text text;
  text.rope =
      "\"rope_parameters\": {\"main\": {\"rope_type\": \"default\", \"rope_theta\": 20000.0}, \"compress\": "
      "{\"rope_type\": \"yarn\", "
      "\"rope_theta\": 170000.0, "
      "\"factor\": 8, \"original_max_position_embeddings\": 4096, \"beta_fast\": 16, \"beta_slow\": 2}}";
  const ModelConfig m = parse_model_config(text.str());
  EXPECT_EQ(m.layer(0).rope, (RopeConfig{.theta = 20000.0}));
  EXPECT_EQ(
      m.layer(1).rope,
      (RopeConfig{.theta = 170000.0,
                  .yarn = YarnConfig{.factor = 8, .original_max_position = 4096, .beta_fast = 16, .beta_slow = 2}}));
  text.rope = "\"rope_parameters\": {\"main\": {\"rope_theta\": 20000.0}}";
  EXPECT_THAT(error_of(text.str()), AllOf(HasSubstr("rope_parameters"), HasSubstr("compress")));
}

TEST(ModelConfig, OfficialInferenceKeys) {
  const ModelConfig m = parse_model_config(
      R"({"dim": 256, "n_layers": 3, "n_heads": 8, "q_lora_rank": 128, "o_lora_rank": 64, "o_groups": 2, "rope_head_dim": 64, "norm_eps": 1e-5,
          "window_size": 64, "compress_ratios": [1, 4, 128, 0], "n_mtp_layers": 1, "index_topk": 16, "rope_theta": 10000.0, "compress_rope_theta": 160000.0,
          "rope_factor": 16, "original_seq_len": 65536, "beta_fast": 32, "beta_slow": 1, "max_seq_len": 4096})");
  EXPECT_EQ(m.hidden_size, 256);
  EXPECT_EQ(m.window, 64);
  EXPECT_EQ(m.max_position, 4096);
  EXPECT_EQ(m.num_mtp_layers, 1);
  EXPECT_EQ(m.yarn, YarnConfig{});
  EXPECT_FLOAT_EQ(m.rms_norm_eps, 1e-5F);
}

TEST(ModelConfig, LayerTypesStandInForTheList) {
  Text text;
  text.layers =
      "\"num_hidden_layers\": 3, \"layer_types\": [\"sliding_attention\", \"compressed_sparse_attention\", "
      "\"heavily_compressed_attention\"], "
      "\"compress_rates\": {\"compressed_sparse_attention\": 4, \"heavily_compressed_attention\": 128}";
  EXPECT_EQ(parse_model_config(text.str()).compress_ratios, (std::vector<int>{0, 4, 128}));
  // Both spellings in one file must agree; 0 and 1 are the same, and trailing MTP entries are no contradiction.
  text.more = "\"compress_ratios\": [1, 4, 128, 0]";
  EXPECT_EQ(parse_model_config(text.str()).compress_ratios, (std::vector<int>{1, 4, 128, 0}));
  text.more = "\"compress_ratios\": [0, 128, 128]";
  EXPECT_THAT(error_of(text.str()), AllOf(HasSubstr("layer_types[1]"), HasSubstr("compressed_sparse_attention"),
                                          HasSubstr("the type of compress_ratios[1], which is 128")));
  text.more.clear();
  text.layers = "\"num_hidden_layers\": 1, \"layer_types\": [\"full_attention\"]";
  EXPECT_THAT(error_of(text.str()),
              AllOf(HasSubstr("layer_types[0]"), HasSubstr("full_attention"), HasSubstr("sliding_attention")));
  text.layers =
      "\"num_hidden_layers\": 1, \"layer_types\": [\"sliding_attention\"], \"compress_rates\": "
      "{\"compressed_sparse_attention\": 2}";
  EXPECT_THAT(error_of(text.str()), HasSubstr("compress_ratio=2; expected 1, 4, or 128"));
}

TEST(ModelConfig, AttentionIsNotScaledByYarn) {
  for (const char* key : {"mscale", "mscale_all_dim", "attention_factor"}) {
    const std::string field = std::string("\"") + key + "\": ";
    for (const char* value : {"1", "1.0"}) {
      Text text;
      text.rope.insert(text.rope.size() - 1, ", " + field + value);
      EXPECT_EQ(error_of(text.str()), "") << key << " " << value;
    }
    for (const char* value : {"1.277", "-1", "2", "\"1\""}) {
      Text text;
      text.rope.insert(text.rope.size() - 1, ", " + field + value);
      EXPECT_THAT(error_of(text.str()), AllOf(HasSubstr(key), HasSubstr("expected "))) << value;
      Text flat;
      flat.more = field + value;
      EXPECT_THAT(error_of(flat.str()), AllOf(HasSubstr(key), HasSubstr("expected "))) << value;
    }
  }
}

TEST(ModelConfig, OtherArchitecturesAndCrossedYarnAreRefused) {
  Text text;
  text.more = "\"model_type\": \"llama\"";
  EXPECT_THAT(error_of(text.str()), AllOf(HasSubstr("model_type"), HasSubstr("llama"), HasSubstr("deepseek_v4")));
  text.more = "\"model_type\": \"deepseek_v4\"";
  EXPECT_EQ(error_of(text.str()), "");
  text.rope.replace(text.rope.find("\"beta_fast\": 32"), 15, "\"beta_fast\": 0.5");
  EXPECT_THAT(error_of(text.str()), AllOf(HasSubstr("beta_fast"), HasSubstr("0.5"), HasSubstr("beta_slow 1")));
}

TEST(ModelConfig, ErrorsNameTheFile) {
  const std::string path = ::testing::TempDir() + "smla_config_" + std::to_string(getpid()) + ".json";
  std::ofstream(path) << "{\"hidden_size\": -1}";
  const auto error = [](const std::string& file) -> std::string {
    try {
      load_model_config(file);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_THAT(error(path), HasSubstr(path + ": hidden_size: got -1"));
  std::remove(path.c_str());
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(error(path), AllOf(HasSubstr(path), HasSubstr("no regular file"))) << "a pipe must not hang the reader";
  std::remove(path.c_str());
  EXPECT_THAT(error(::testing::TempDir()), HasSubstr("no regular file"));
}

/// IndexCache: which C4A layers choose, by frequency or by pattern.
TEST(ModelConfig, WhichLayersReuseTheTopk) {
  Text text;
  text.layers = "\"num_hidden_layers\": 6, \"compress_ratios\": [0, 4, 4, 128, 4, 4]";
  const auto choosers = [&](const std::string& more) {
    text.more = more;
    const ModelConfig model = parse_model_config(text.str());
    std::string letters;
    for (std::int64_t i = 0; i < model.num_layers; ++i) {
      const LayerConfig layer = model.layer(i);
      if (layer.has_indexer()) letters += layer.runs_indexer() ? 'F' : 'S';
    }
    return letters;
  };
  EXPECT_EQ(choosers(""), "FFFF");
  EXPECT_EQ(choosers("\"index_topk_freq\": 3"), "FSSF");
  EXPECT_EQ(choosers("\"index_topk_pattern\": \"FFSS\""), "FFSS");
  EXPECT_EQ(choosers("\"index_topk_pattern\": \"SFSSFS\""), "FSFS") << "a letter for every layer";
  EXPECT_EQ(choosers("\"index_topk_freq\": 2, \"index_topk_pattern\": \"FFFS\""), "FFFS") << "before the frequency";
  EXPECT_EQ(choosers("\"index_topk_freq\": 2, \"index_topk_pattern\": null"), "FSFS");
  for (const char* bad : {"SFFF", "FSF", "FSFSF", "FfSS", "SSFFFF"}) {
    text.more = std::string("\"index_topk_pattern\": \"") + bad + "\"";
    EXPECT_THAT(error_of(text.str()),
                HasSubstr(std::string("index_topk_pattern: got ") + bad +
                          ", expected F and then F or S, a letter for each of the 4 C4A layers or of the 6 layers"));
  }
  ModelConfig model = model_preset("tiny");
  model.index_topk_pattern = "F";
  EXPECT_TRUE(model.layer(1).runs_indexer());
  EXPECT_THROW(model.layer(3), InvalidArgument) << "it says nothing about the second C4A layer";
}

TEST(ModelConfig, NoListMeansNoGuess) {
  Text text;
  text.layers = "\"num_hidden_layers\": 3";
  EXPECT_THAT(error_of(text.str()), AllOf(HasSubstr("compress_ratios"), HasSubstr("no such key"), HasSubstr("swaps")));
}

TEST(ModelConfig, RatiosAndTrailingEntries) {
  Text text;
  for (const char* list : {"[0,4,128]", "[1,4,128]", "[0.0, 4.0, 128.0]", "[0,4,128,0]", "[0,4,128,0,0,0]"}) {
    text.layers = std::string("\"num_hidden_layers\": 3, \"compress_ratios\": ") + list;
    EXPECT_EQ(error_of(text.str()), "") << list;
  }
  EXPECT_EQ(parse_model_config(text.str()).num_mtp_layers, 3);
  for (const char* list : {"[0,4]", "[0,4,128,0,0]", "[]"}) {
    text.layers = std::string("\"num_hidden_layers\": 3, \"compress_ratios\": ") + list;
    EXPECT_THAT(error_of(text.str()), HasSubstr("compress_ratios")) << list;
  }
  for (const char* bad : {"2", "3", "64", "-4", "5000000000", "4.5", "\"4\"", "null", "[4]", "1e3"}) {
    text.layers = std::string("\"num_hidden_layers\": 3, \"compress_ratios\": [0, ") + bad + ", 4]";
    EXPECT_THAT(error_of(text.str()), AllOf(HasSubstr("compress_ratios[1]"), HasSubstr("expected 1, 4, or 128")))
        << bad;
  }
  text.layers = "\"num_hidden_layers\": 3, \"compress_ratios\": \"all\"";
  EXPECT_THAT(error_of(text.str()), HasSubstr("compress_ratios"));
  text.layers = "\"num_hidden_layers\": 3, \"compress_ratios\": {\"0\": 4}";
  EXPECT_THAT(error_of(text.str()), HasSubstr("compress_ratios"));
}

TEST(ModelConfig, EveryBadNumberIsNamed) {
  for (const char* key :
       {"hidden_size", "num_attention_heads", "q_lora_rank", "o_lora_rank", "o_groups", "index_topk", "sliding_window",
        "head_dim", "qk_rope_head_dim", "index_n_heads", "index_head_dim", "max_position_embeddings", "rms_norm_eps",
        "rope_theta", "compress_rope_theta", "num_hidden_layers", "num_nextn_predict_layers"}) {
    for (const char* bad : {"-1", "1e18", "99999999999999999999", "\"x\"", "[1]", "{}", "true"}) {
      // The whole file with this one key replaced.
      Text text;
      std::string json = text.str();
      const std::string quoted = "\"" + std::string(key) + "\": ";
      const std::size_t at = json.find(quoted);
      if (at == std::string::npos) {
        json.insert(1, quoted + bad + ", ");
      } else {
        const std::size_t end = json.find_first_of(",}", at);
        json.replace(at, end - at, quoted + bad);
      }
      EXPECT_THAT(error_of(json), AllOf(HasSubstr(key), HasSubstr("got "), HasSubstr("expected ")))
          << key << " = " << bad;
    }
  }
}

TEST(ModelConfig, MissingKeysAreNamed) {
  for (const char* key : {"hidden_size", "num_attention_heads", "q_lora_rank", "o_lora_rank", "o_groups", "index_topk",
                          "num_hidden_layers"}) {
    std::string json = Text().str();
    const std::size_t at = json.find(key);
    json.replace(at, 1, "_");
    EXPECT_THAT(error_of(json), AllOf(HasSubstr(std::string(key)), HasSubstr("no such key"))) << key;
  }
}

TEST(ModelConfig, ContradictionsAreErrors) {
  Text text;
  text.more = "\"dim\": 512";
  EXPECT_THAT(error_of(text.str()), AllOf(HasSubstr("dim"), HasSubstr("512"), HasSubstr("256")));
  text = Text();
  text.rest =
      "\"num_attention_heads\": 8, \"q_lora_rank\": 128, \"o_lora_rank\": 64, \"o_groups\": 3, \"index_topk\": 16";
  EXPECT_THAT(error_of(text.str()), AllOf(HasSubstr("o_groups"), HasSubstr("8")));
  text = Text();
  text.more = "\"model_type\": \"deepseek_v41\"";
  EXPECT_THAT(error_of(text.str()), HasSubstr("model_type"));
  text = Text();
  text.rope = "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 4}";
  EXPECT_THAT(error_of(text.str()), AllOf(HasSubstr("rope_type"), HasSubstr("linear")));
  text.rope = "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 16}";
  EXPECT_THAT(error_of(text.str()), HasSubstr("original_max_position_embeddings"));
}

TEST(ModelConfig, HostileJson) {
  const std::string good = Text().str();
  EXPECT_EQ(error_of(good), "");
  for (std::size_t n = 0; n < good.size(); ++n) EXPECT_NE(error_of(good.substr(0, n)), "") << "truncated at " << n;
  EXPECT_NE(error_of(""), "");
  EXPECT_NE(error_of("[]"), "");
  EXPECT_NE(error_of("3"), "");
  EXPECT_NE(error_of(good + "x"), "");
  EXPECT_NE(error_of(std::string("\0\0\0", 3)), "");
  EXPECT_THAT(error_of("{\"hidden_size\": NaN}"), HasSubstr("hidden_size"));
  EXPECT_THAT(error_of("{\"rope_theta\": 1e999}"), AllOf(HasSubstr("rope_theta"), HasSubstr("double")));
  EXPECT_THAT(error_of("{\"hidden_size\": 4, \"hidden_size\": 8}"),
              AllOf(HasSubstr("hidden_size"), HasSubstr("twice")));
  EXPECT_THAT(error_of("{\"x\": " + std::string(100000, '[') + std::string(100000, ']') + "}"), HasSubstr("nesting"));
  std::string objects = "{\"a\":";
  for (int i = 0; i < 5000; ++i) objects += "{\"a\":";
  EXPECT_THAT(error_of(objects), HasSubstr("nesting"));
}

TEST(ModelConfig, ReadsAFile) {
  const std::string path = ::testing::TempDir() + "smla_config.json";
  std::ofstream(path) << Text().str();
  EXPECT_EQ(load_model_config(path).hidden_size, 256);
  EXPECT_THROW(load_model_config(::testing::TempDir()), Error);  // a directory
}

TEST(LayerConfig, ChecksNameTheNumber) {
  const LayerConfig good = model_preset("tiny").layer(1);
  check_layer_config(good);
  const auto text = [](LayerConfig config) -> std::string {
    try {
      check_layer_config(config);
    } catch (const InvalidArgument& e) {
      return e.what();
    }
    return "";
  };
  LayerConfig c = good;
  c.num_heads = 129;
  EXPECT_THAT(text(c), HasSubstr("num_heads"));
  c = good;
  c.o_groups = 3;
  EXPECT_THAT(text(c), HasSubstr("o_groups"));
  c = good;
  c.compress_ratio = 2;
  EXPECT_THAT(text(c), HasSubstr("compress_ratio=2; expected 1, 4, or 128"));
  c = good;
  c.head_dim = 256;
  EXPECT_THAT(text(c), HasSubstr("head_dim"));
  c = good;
  c.index_topk = 0;
  EXPECT_THAT(text(c), HasSubstr("index_topk"));
  c = good;
  c.rms_norm_eps = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(text(c), HasSubstr("rms_norm_eps"));
  c = good;
  c.rope.theta = -1.0;
  EXPECT_THAT(text(c), HasSubstr("theta"));
}

}  // namespace
}  // namespace smla
