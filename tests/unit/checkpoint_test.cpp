// Long: one fixture that writes checkpoints by hand, and everything that can be wrong with one.
#include "sparsemla/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <random>
#include <tuple>

#include "checkpoint/index.h"
#include "checkpoint/linear.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/writer.h"
#include "sparsemla/weights.h"

namespace smla {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

enum class Encoding { kBF16, kF32, kFp8Ue8m0, kFp8F32, kNvfp4 };
constexpr Encoding kEncodings[] = {Encoding::kBF16, Encoding::kF32, Encoding::kFp8Ue8m0, Encoding::kFp8F32,
                                   Encoding::kNvfp4};

// The dequantiser of this test knows the formats from their definition, not from the library.
double e4m3_value(unsigned code) {
  const int exponent = static_cast<int>(code >> 3) & 15;
  const int fraction = static_cast<int>(code & 7);
  const double magnitude = exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}
double e2m1_value(unsigned code) {
  const int exponent = static_cast<int>(code >> 1) & 3;
  const int fraction = static_cast<int>(code & 1);
  const double magnitude = exponent == 0 ? fraction * 0.5 : std::ldexp(2 + fraction, exponent - 2);
  return (code & 8) != 0 ? -magnitude : magnitude;
}
double nearest_bf16(double x) {
  if (x == 0) return x;
  const int unit = std::max(std::ilogb(x), -126) - 7;
  return std::ldexp(std::nearbyint(std::ldexp(x, -unit)), unit);
}

struct Item {
  HostTensor tensor;
  std::string dtype;  ///< in the file, where it is not the tensor's own
};
using Items = std::map<std::string, Item>;

/// A layer with no dimension that is a multiple of 128 where that can be.
LayerConfig odd_layer(int ratio) {
  LayerConfig c{.hidden_size = 272,
                .num_heads = 8,
                .q_lora_rank = 144,
                .o_lora_rank = 48,
                .o_groups = 8,
                .compress_ratio = ratio,
                .index_n_heads = 3,
                .index_topk = 7,
                .rope = {}};
  if (ratio > 1) c.rope = {.theta = 160000.0, .yarn = YarnConfig{}, .dim = 64};
  return c;
}

/// A layer's tensors with random contents, and what they mean.
class RandomLayer {
 public:
  RandomLayer(const LayerConfig& c, Encoding encoding, unsigned seed, std::string prefix = "layers.0.attn.")
      : random_(seed), prefix_(std::move(prefix)) {
    linear("wq_a", c.q_lora_rank, c.hidden_size, encoding);
    plain("q_norm.weight", {c.q_lora_rank}, DType::kBF16);
    linear("wq_b", c.num_heads * c.head_dim, c.q_lora_rank, encoding);
    linear("wkv", c.head_dim, c.hidden_size, encoding);
    plain("kv_norm.weight", {c.head_dim}, DType::kBF16);
    linear("wo_a", c.o_groups * c.o_lora_rank, c.num_heads / c.o_groups * c.head_dim, encoding);
    linear("wo_b", c.hidden_size, c.o_groups * c.o_lora_rank, encoding);
    plain("attn_sink", {c.num_heads}, encoding == Encoding::kBF16 ? DType::kBF16 : DType::kF32);
    if (c.has_compressor()) compressor("compressor.", c, c.head_dim, encoding);
    if (c.has_indexer()) {
      compressor("indexer.compressor.", c, c.index_head_dim, encoding);
      linear("indexer.wq_b", c.index_n_heads * c.index_head_dim, c.q_lora_rank, encoding);
      linear("indexer.weights_proj", c.index_n_heads, c.hidden_size, encoding);
    }
  }

  Items items;                                         ///< by full name
  std::map<std::string, std::vector<double>> meaning;  ///< by name below attn.

 private:
  double uniform(double low, double high) { return std::uniform_real_distribution<double>(low, high)(random_); }
  unsigned byte() { return static_cast<unsigned>(random_() & 0xFFU); }

  void compressor(const std::string& name, const LayerConfig& c, std::int64_t dim, Encoding encoding) {
    const std::int64_t width = (c.has_indexer() ? 2 : 1) * dim;
    linear(name + "wkv", width, c.hidden_size, encoding);
    linear(name + "wgate", width, c.hidden_size, encoding);
    plain(name + "ape", {c.compress_ratio, width}, encoding == Encoding::kF32 ? DType::kBF16 : DType::kF32);
    plain(name + "norm.weight", {dim}, DType::kF32);
  }
  void plain(const std::string& name, std::vector<std::int64_t> shape, DType dtype) {
    HostTensor t(dtype, std::move(shape));
    std::vector<double>& values = meaning[name];
    for (std::int64_t i = 0; i < t.numel(); ++i) {
      const double v = nearest_bf16(uniform(-2, 2));
      if (dtype == DType::kF32) {
        t.as<float>()[i] = static_cast<float>(v);
      } else {
        t.as<BF16>()[i] = to_bf16(static_cast<float>(v));
      }
      values.push_back(v);
    }
    items[prefix_ + name] = {std::move(t), ""};
  }
  void linear(const std::string& name, std::int64_t n, std::int64_t k, Encoding encoding) {
    if (encoding == Encoding::kBF16 || encoding == Encoding::kF32)
      return plain(name + ".weight", {n, k}, encoding == Encoding::kF32 ? DType::kF32 : DType::kBF16);
    std::vector<double>& values = meaning[name + ".weight"];
    values.resize(static_cast<std::size_t>(n * k));
    if (encoding == Encoding::kNvfp4) return nvfp4(name, n, k, values);
    const std::int64_t rows = (n + 127) / 128;
    const std::int64_t columns = (k + 127) / 128;
    HostTensor codes(DType::kE4M3, {n, k});
    HostTensor scales(encoding == Encoding::kFp8F32 ? DType::kF32 : DType::kU8, {rows, columns});
    std::vector<double> scale(static_cast<std::size_t>(rows * columns));
    for (std::size_t i = 0; i < scale.size(); ++i) {
      if (encoding == Encoding::kFp8F32) {
        scales.as<float>()[i] = static_cast<float>(uniform(1e-5, 1e-2));
        scale[i] = static_cast<double>(scales.as<float>()[i]);
      } else {
        scales.as<std::uint8_t>()[i] = static_cast<std::uint8_t>(100 + byte() % 30);
        scale[i] = std::ldexp(1.0, scales.as<std::uint8_t>()[i] - 127);
      }
    }
    for (std::int64_t i = 0; i < n * k; ++i) {
      unsigned code = byte();
      if ((code & 0x7F) == 0x7F) code ^= 1;  // no NaN
      codes.as<E4M3>()[i].bits = static_cast<std::uint8_t>(code);
      values[static_cast<std::size_t>(i)] =
          nearest_bf16(e4m3_value(code) * scale[static_cast<std::size_t>(i / k / 128 * columns + i % k / 128)]);
    }
    items[prefix_ + name + ".weight"] = {std::move(codes), ""};
    if (encoding == Encoding::kFp8F32) {
      items[prefix_ + name + (name == "wq_a" ? ".scale" : (name == "wkv" ? ".weight_scale" : ".weight_scale_inv"))] = {
          std::move(scales), ""};
    } else {
      items[prefix_ + name + ".scale"] = {std::move(scales), name == "wq_a" ? "U8" : "F8_E8M0"};
    }
  }
  void nvfp4(const std::string& name, std::int64_t n, std::int64_t k, std::vector<double>& values) {
    HostTensor codes(DType::kU8, {n, k / 2});
    HostTensor scales(DType::kE4M3, {n, k / 16});
    HostTensor global(DType::kF32, name == "wkv" ? std::vector<std::int64_t>{1} : std::vector<std::int64_t>{});
    global.as<float>()[0] = static_cast<float>(uniform(1e-4, 1e-2));
    for (std::int64_t i = 0; i < n * k / 16; ++i) scales.as<E4M3>()[i].bits = static_cast<std::uint8_t>(byte() % 0x7F);
    for (std::int64_t i = 0; i < n * k; ++i) {
      const unsigned code = byte() & 15U;
      codes.as<std::uint8_t>()[i / 2] |= static_cast<std::uint8_t>(i % 2 == 0 ? code : code << 4U);
      values[static_cast<std::size_t>(i)] = nearest_bf16(e2m1_value(code) * e4m3_value(scales.as<E4M3>()[i / 16].bits) *
                                                         static_cast<double>(global.as<float>()[0]));
    }
    items[prefix_ + name + ".weight"] = {std::move(codes), ""};
    items[prefix_ + name + ".weight_scale"] = {std::move(scales), ""};
    items[prefix_ + name + ".weight_scale_2"] = {std::move(global), ""};
  }

  std::mt19937 random_;
  std::string prefix_;
};

HostTensor scalar(float value) {
  HostTensor t(DType::kF32, {});
  t.as<float>()[0] = value;
  return t;
}

class CheckpointFiles : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  std::string at(const std::string& name) const { return folder_ + "/" + name; }
  void write(const std::string& name, const Items& items) const {
    std::vector<SafetensorsItem> list;
    for (const auto& [key, item] : items) list.push_back({.name = key, .tensor = &item.tensor, .dtype = item.dtype});
    write_safetensors_items(at(name), {}, list);
  }
  void text(const std::string& name, const std::string& content) const {
    std::ofstream(at(name), std::ios::binary) << content;
  }
  /// One shard of these names each, and the index.
  void write_shards(const Items& items, int shards) const {
    std::vector<Items> parts(static_cast<std::size_t>(shards));
    std::string map;
    std::size_t i = 0;
    for (const auto& [name, item] : items) {
      const std::size_t part = i++ % parts.size();
      parts[part][name] = {item.tensor.clone(), item.dtype};
      map += (map.empty() ? "\"" : ",\"") + name + "\":\"s" + std::to_string(part) + ".safetensors\"";
    }
    for (std::size_t p = 0; p < parts.size(); ++p) write("s" + std::to_string(p) + ".safetensors", parts[p]);
    text("model.safetensors.index.json", "{\"metadata\":{\"total_size\":1},\"weight_map\":{" + map + "}}");
  }
  template <class Expected = Error>
  static std::string error_of(const std::function<void()>& f) {
    try {
      f();
    } catch (const Expected& e) {
      return e.what();
    }
    return "no error";
  }
  /// The error of loading `items` as layer 0.
  template <class Expected = Error>
  std::string load_error(const Items& items, int ratio) const {
    write("model.safetensors", items);
    return error_of<Expected>([&] { Checkpoint(folder_).load_layer(0, odd_layer(ratio)); });
  }

  std::string folder_ =
      ::testing::TempDir() + "smla_checkpoint_" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
};

double value_of(const ConstTensorView& v, std::int64_t i) {
  return v.dtype == DType::kF32 ? static_cast<double>(v.as<float>()[i])
                                : static_cast<double>(to_float(v.as<BF16>()[i]));
}

void expect_meaning(const LayerTensors& tensors, const RandomLayer& layer, const std::string& what) {
  ASSERT_EQ(tensors.tensors.size(), layer.meaning.size()) << what;
  for (const auto& [name, values] : layer.meaning) {
    const ConstTensorView view = tensors.tensors.at(name);
    ASSERT_EQ(view.numel(), static_cast<std::int64_t>(values.size())) << what << name;
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (value_of(view, static_cast<std::int64_t>(i)) != values[i]) ++wrong;
    }
    EXPECT_EQ(wrong, 0U) << what << name;
  }
}

TEST_F(CheckpointFiles, EveryEncodingMeansWhatItsDefinitionSays) {
  for (const int ratio : {1, 4, 128}) {
    for (const Encoding encoding : kEncodings) {
      if (ratio != 4 && encoding != Encoding::kFp8Ue8m0) continue;
      const std::string what =
          "ratio " + std::to_string(ratio) + " encoding " + std::to_string(static_cast<int>(encoding)) + " ";
      const RandomLayer layer(odd_layer(ratio), encoding, 3, ratio == 4 ? "model.layers.0.attn." : "layers.0.attn.");
      write("model.safetensors", layer.items);
      const LayerTensors loaded = Checkpoint(folder_).load_layer(0, odd_layer(ratio));
      expect_meaning(loaded, layer, what);
      EXPECT_EQ(loaded.tensors.at("attn_sink").dtype, DType::kF32);
      EXPECT_EQ(loaded.tensors.at("wo_b.weight").dtype, encoding == Encoding::kF32 ? DType::kF32 : DType::kBF16);
      EXPECT_EQ(layer_weights(loaded).wo_b.data, loaded.tensors.at("wo_b.weight").data);
      if (ratio > 1) {
        EXPECT_EQ(layer_weights(loaded).compressor.ape.dtype, DType::kF32);
      }
      EXPECT_FALSE(loaded.q_scale || loaded.kv_scale || loaded.compressed_kv_scale);
    }
  }
}

TEST_F(CheckpointFiles, SingleFileFolderAndShardsAreTheSame) {
  const RandomLayer layer(odd_layer(4), Encoding::kFp8Ue8m0, 4, "layers.2.attn.");
  write("alone.safetensors", layer.items);
  expect_meaning(Checkpoint(at("alone.safetensors")).load_layer(2, odd_layer(4)), layer, "single file ");
  write_shards(layer.items, 3);
  Checkpoint shards(folder_);
  const Checkpoint moved(std::move(shards));
  expect_meaning(moved.load_layer(2, odd_layer(4)), layer, "shards ");
  EXPECT_EQ(moved.names().size(), layer.items.size());
  EXPECT_THAT(error_of<InvalidArgument>([&] { moved.load_layer(1, odd_layer(4)); }),
              HasSubstr("layer 1: got no tensor named layers.1.attn.*"));
  EXPECT_THAT(error_of<InvalidArgument>([&] { moved.load_layer(2); }), HasSubstr("config.json"));
}

TEST_F(CheckpointFiles, SlicesArePartsOfTheWhole) {
  const LayerConfig c = odd_layer(1);
  for (const Encoding encoding : kEncodings) {
    const RandomLayer layer(c, encoding, 5);
    write("model.safetensors", layer.items);
    const Checkpoint checkpoint(folder_);
    for (const int size : {2, 4, 8}) {
      for (int rank = 0; rank < size; ++rank) {
        const LayerTensors slice = checkpoint.load_layer(0, c, rank, size);
        EXPECT_EQ(slice.config.num_heads, c.num_heads / size);
        EXPECT_EQ(slice.config.o_groups, c.o_groups / size);
        for (const auto& [name, values] : layer.meaning) {
          const ConstTensorView view = slice.tensors.at(name);
          const bool rows = name == "wq_b.weight" || name == "wo_a.weight" || name == "attn_sink";
          const bool columns = name == "wo_b.weight";
          const std::int64_t whole_columns = (view.rank == 2 ? view.size(1) : 1) * (columns ? size : 1);
          ASSERT_EQ(view.numel() * (rows || columns ? size : 1), static_cast<std::int64_t>(values.size())) << name;
          std::int64_t wrong = 0;
          if (!rows && !columns && rank != size - 1) continue;  // replicated: one rank tells
          for (std::int64_t i = 0; i < view.numel(); ++i) {
            const std::int64_t width = view.rank == 2 ? view.size(1) : 1;
            const std::int64_t row = i / width + (rows ? rank * view.size(0) : 0);
            const std::int64_t column = i % width + (columns ? rank * width : 0);
            wrong += value_of(view, i) == values[static_cast<std::size_t>(row * whole_columns + column)] ? 0 : 1;
          }
          EXPECT_EQ(wrong, 0) << name << " rank " << rank << " of " << size;
        }
      }
    }
  }
}

TEST_F(CheckpointFiles, SlicesThatDoNotDivideNameBothNumbers) {
  LayerConfig c = odd_layer(1);
  EXPECT_THAT(error_of([&] { tensor_parallel_slice(c, 0, 3); }),
              AllOf(HasSubstr("num_heads: got 8"), HasSubstr("tp_size 3")));
  c.o_groups = 2;
  EXPECT_THAT(error_of([&] { tensor_parallel_slice(c, 0, 4); }),
              AllOf(HasSubstr("o_groups: got 2"), HasSubstr("tp_size 4")));
  EXPECT_THAT(error_of([&] { tensor_parallel_slice(c, 2, 2); }), HasSubstr("rank 2 of 2"));
  EXPECT_THAT(error_of([&] { tensor_parallel_slice(c, 0, 0); }), HasSubstr("rank 0 of 0"));
}

TEST_F(CheckpointFiles, AllThatDoesNotFitIsListedTogether) {
  RandomLayer layer(odd_layer(4), Encoding::kFp8Ue8m0, 6);
  layer.items.erase("layers.0.attn.wq_a.weight");
  layer.items.erase("layers.0.attn.indexer.compressor.ape");
  layer.items.erase("layers.0.attn.wkv.scale");
  layer.items["layers.0.attn.wq_c.weight"] = {HostTensor(DType::kBF16, {3, 4}), ""};
  layer.items["layers.0.attn.wo_b.weight_scale_inv"] = {HostTensor(DType::kF32, {3, 3}), ""};
  layer.items["layers.0.attn.q_norm.weight"] = {HostTensor(DType::kBF16, {145}), ""};
  layer.items["layers.0.attn.attn_sink"] = {HostTensor(DType::kI32, {8}), ""};
  const std::string error = load_error<InvalidArgument>(layer.items, 4);
  EXPECT_THAT(error,
              AllOf(HasSubstr("layer 0: 7 tensors do not fit"), HasSubstr("missing: wq_a.weight, expected [144, 272]"),
                    HasSubstr("missing: indexer.compressor.ape"), HasSubstr("missing: wkv.scale"),
                    HasSubstr("unknown: wq_c.weight: got [3, 4] BF16"), HasSubstr("unknown: wo_b.weight_scale_inv"),
                    HasSubstr("misshaped: q_norm.weight: got [145] BF16, expected [144]"),
                    HasSubstr("misshaped: attn_sink: got [8] I32")));
  EXPECT_THAT(error, Not(HasSubstr("wq_a.scale")));
}

TEST_F(CheckpointFiles, OtherPartsOfTheModelAreIgnored) {
  RandomLayer layer(odd_layer(1), Encoding::kBF16, 7);
  layer.items["embed.weight"] = {HostTensor(DType::kU8, {4}), "F8_E5M2"};
  layer.items["layers.0.ffn.experts.3.w1.weight"] = {HostTensor(DType::kU8, {4}), "I8"};
  layer.items["layers.0.attn_norm.weight"] = {HostTensor(DType::kBF16, {4}), ""};
  layer.items["layers.00.attn.wq_a.weight"] = {HostTensor(DType::kBF16, {4}), ""};
  layer.items["mtp.0.attn.wq_a.weight"] = {HostTensor(DType::kBF16, {4}), ""};
  write("model.safetensors", layer.items);
  expect_meaning(Checkpoint(folder_).load_layer(0, odd_layer(1)), layer, "");
}

TEST_F(CheckpointFiles, NumbersThatAreNotFiniteAreNamed) {
  const auto fresh = [](Encoding e) { return RandomLayer(odd_layer(1), e, 8).items; };
  Items items = fresh(Encoding::kFp8Ue8m0);
  items["layers.0.attn.wkv.scale"].tensor.as<std::uint8_t>()[4] = 255;  // [4, 3] scales
  EXPECT_THAT(load_error<IoError>(items, 1), AllOf(HasSubstr("wkv.scale"), HasSubstr("[1, 1]"), HasSubstr("scale")));
  items = fresh(Encoding::kFp8Ue8m0);
  items["layers.0.attn.wkv.weight"].tensor.as<E4M3>()[200 * 272 + 130].bits = 0xFF;
  EXPECT_THAT(load_error<IoError>(items, 1), AllOf(HasSubstr("wkv.weight"), HasSubstr("[200, 130]")));
  for (const float bad : {kNan, kInf, -1.0F, 0.0F, -0.0F}) {
    items = fresh(Encoding::kFp8F32);
    items["layers.0.attn.wo_a.weight_scale_inv"].tensor.as<float>()[7] = bad;
    EXPECT_THAT(
        load_error<IoError>(items, 1),
        AllOf(HasSubstr("wo_a.weight_scale_inv"), HasSubstr("[1, 3]"), HasSubstr("expected a finite scale above 0"),
              HasSubstr(std::isnan(bad) ? "got nan" : "got " + std::to_string(bad))))
        << bad;
  }
  items = fresh(Encoding::kFp8F32);  // finite factors whose product is not
  items["layers.0.attn.wq_a.scale"].tensor.as<float>()[0] = 3e38F;
  EXPECT_THAT(load_error<IoError>(items, 1), AllOf(HasSubstr("wq_a.weight"), HasSubstr("finite")));
  items = fresh(Encoding::kNvfp4);
  items["layers.0.attn.wq_b.weight_scale"].tensor.as<E4M3>()[300 * 9 + 2].bits = 0x7F;
  EXPECT_THAT(load_error<IoError>(items, 1), AllOf(HasSubstr("wq_b.weight_scale"), HasSubstr("[300, 2]")));
  for (const float bad : {kNan, kInf, -1.0F, 0.0F}) {
    items = fresh(Encoding::kNvfp4);
    items["layers.0.attn.wq_b.weight_scale_2"].tensor.as<float>()[0] = bad;
    EXPECT_THAT(load_error<IoError>(items, 1), HasSubstr("wq_b.weight_scale_2")) << bad;
  }
  items = fresh(Encoding::kBF16);
  items["layers.0.attn.wo_b.weight"].tensor.as<BF16>()[384 + 5] = to_bf16(kNan);
  EXPECT_THAT(load_error<IoError>(items, 1), AllOf(HasSubstr("wo_b.weight"), HasSubstr("[1, 5]")));
  items = fresh(Encoding::kF32);
  items["layers.0.attn.attn_sink"].tensor.as<float>()[3] = kNan;
  EXPECT_THAT(load_error<IoError>(items, 1), AllOf(HasSubstr("attn_sink"), HasSubstr("[3]")));
  items["layers.0.attn.attn_sink"].tensor.as<float>()[3] = -kInf;  // no sink
  items["layers.0.attn.attn_sink"].tensor.as<float>()[4] = kInf;
  EXPECT_EQ(load_error(items, 1), "no error");
}

TEST_F(CheckpointFiles, CacheScales) {
  RandomLayer layer(odd_layer(4), Encoding::kBF16, 9);
  const auto set = [&](const std::string& name, float value) {
    layer.items["layers.0.attn." + name] = {scalar(value), ""};
  };
  set("q_scale", 0.5F);
  set("k_scale", 0.25F);
  set("v_scale", 0.25F);
  write("model.safetensors", layer.items);
  const LayerTensors loaded = Checkpoint(folder_).load_layer(0, odd_layer(4));
  EXPECT_EQ(loaded.q_scale, 0.5F);
  EXPECT_EQ(loaded.kv_scale, 0.25F);
  EXPECT_FALSE(loaded.compressed_kv_scale);
  EXPECT_TRUE(Checkpoint(folder_).has_cache_scales(0));
  set("compressor.kv_scale", 2.0F);
  write("model.safetensors", layer.items);
  EXPECT_EQ(Checkpoint(folder_).load_layer(0, odd_layer(4)).compressed_kv_scale, 2.0F);
  set("v_scale", 0.5F);
  EXPECT_THAT(load_error<IoError>(layer.items, 4), AllOf(HasSubstr("v_scale"), HasSubstr("0.5"), HasSubstr("0.25")));
  set("v_scale", kNan);
  EXPECT_THAT(load_error<IoError>(layer.items, 4), HasSubstr("v_scale"));
  layer.items["layers.0.attn.v_scale"] = {HostTensor(DType::kF32, {2}), ""};
  EXPECT_THAT(load_error<InvalidArgument>(layer.items, 4), HasSubstr("misshaped: v_scale: got [2] F32"));
}

TEST_F(CheckpointFiles, HostileIndexes) {
  const RandomLayer layer(odd_layer(1), Encoding::kBF16, 10);
  const auto open_error = [&] { return error_of<IoError>([&] { Checkpoint{folder_}; }); };
  const auto index = [&](const std::string& content) {
    text("model.safetensors.index.json", content);
    return open_error();
  };
  EXPECT_THAT(open_error(), HasSubstr("neither model.safetensors nor"));
  EXPECT_THAT(index(R"({"weight_map":{"a":"gone1.safetensors","b":"gone2.safetensors"}})"),
              AllOf(HasSubstr("gone1"), HasSubstr("gone2")));
  for (const char* file : {"../model.safetensors", "/etc/x.safetensors", "a/b.safetensors", ".safetensors", "..", "",
                           "x.bin", "a\\\\b.safetensors", "a\\u0000.safetensors"}) {
    EXPECT_THAT(index(R"({"weight_map":{"evil":")" + std::string(file) + "\"}}"),
                AllOf(HasSubstr("evil"), HasSubstr("same folder")))
        << file;
  }
  EXPECT_THAT(index(R"({"weight_map":{"evil":3}})"), HasSubstr("evil"));
  EXPECT_THAT(index(R"({"weight_map":{"evil":"a.safetensors","evil":"b.safetensors"}})"),
              AllOf(HasSubstr("evil"), HasSubstr("twice")));
  EXPECT_THAT(index(R"({"weight_map":[]})"), HasSubstr("weight_map"));
  EXPECT_THAT(index("{}"), HasSubstr("weight_map"));
  EXPECT_THAT(index(std::string(5000, '[')), HasSubstr("index.json"));
  EXPECT_THAT(index("{\"weight_map\":{\"a\":\"x.saf"), HasSubstr("index.json"));
  write("s.safetensors", layer.items);
  EXPECT_THAT(index(R"({"weight_map":{"absent.weight":"s.safetensors"}})"), HasSubstr("absent.weight (s.safetensors)"));
  write("t.safetensors", layer.items);
  EXPECT_THAT(
      index(
          R"({"weight_map":{"layers.0.attn.wkv.weight":"s.safetensors","layers.0.attn.wq_a.weight":"t.safetensors"}})"),
      AllOf(HasSubstr("in both"), HasSubstr("s.safetensors"), HasSubstr("t.safetensors")));
  EXPECT_EQ(index(R"({"weight_map":{"layers.0.attn.wkv.weight":"s.safetensors"}})"), "no error");
}

TEST_F(CheckpointFiles, OneTensorUnderTwoNamesIsRefused) {
  RandomLayer layer(odd_layer(1), Encoding::kBF16, 11);
  layer.items["model.layers.0.attn.wkv.weight"] = {HostTensor(DType::kBF16, {512, 272}), ""};
  write("model.safetensors", layer.items);
  EXPECT_THAT(error_of<IoError>([&] { Checkpoint{folder_}; }), HasSubstr("under one name"));
}

TEST_F(CheckpointFiles, HostileHeaders) {
  const auto open_error = [&](const std::string& body, std::size_t data) {
    const std::string header = "{\"layers.0.attn.wkv.weight\":{" + body + "}}";
    std::string prefix;
    for (int i = 0; i < 8; ++i) prefix += static_cast<char>(static_cast<std::uint64_t>(header.size()) >> (8 * i));
    text("model.safetensors", prefix + header + std::string(data, 'x'));
    return error_of<IoError>([&] { Checkpoint{folder_}; });
  };
  for (const char* body :
       {R"("dtype":"BF16","shape":[9223372036854775808,2],"data_offsets":[0,8])",  // 2^63
        R"("dtype":"BF16","shape":[9223372036854775807,2],"data_offsets":[0,8])",  // 2^63 - 1
        R"("dtype":"BF16","shape":[4294967296,4294967296],"data_offsets":[0,8])",  // product overflows
        R"("dtype":"BF16","shape":[2,2],"data_offsets":[0,9223372036854775807])",  // out of the file
        R"("dtype":"BF16","shape":[2,2],"data_offsets":[9223372036854775800,8])",  // backwards
        R"("dtype":"BF16","shape":[2,2],"data_offsets":[18446744073709551608,18446744073709551615])",
        R"("dtype":"BF16","shape":[2,3],"data_offsets":[0,8])"}) {
    EXPECT_THAT(open_error(body, 8), HasSubstr("tensor layers.0.attn.wkv.weight")) << body;
  }
}

TEST_F(CheckpointFiles, AFileThatShrinksAfterOpeningIsAnIoError) {
  const RandomLayer layer(odd_layer(4), Encoding::kNvfp4, 12);
  write_shards(layer.items, 2);
  const Checkpoint checkpoint(folder_);
  for (std::uintmax_t n = fs::file_size(at("s1.safetensors")); n > 64; n /= 3) {
    ASSERT_EQ(::truncate(at("s1.safetensors").c_str(), static_cast<off_t>(n - 1)), 0);
    EXPECT_THAT(error_of<IoError>([&] { checkpoint.load_layer(0, odd_layer(4)); }),
                AllOf(HasSubstr("s1.safetensors"), HasSubstr("shrank")));
    EXPECT_NE(error_of<IoError>([&] { Checkpoint{folder_}; }), "no error");  // and one that is opened now is refused
  }
}

TEST_F(CheckpointFiles, LayerNames) {
  std::int64_t layer = -1;
  std::string rest;
  EXPECT_TRUE(split_layer_name("model.layers.12.attn.compressor.ape", layer, rest));
  EXPECT_EQ(layer, 12);
  EXPECT_EQ(rest, "compressor.ape");
  EXPECT_TRUE(split_layer_name("layers.0.attn.x", layer, rest));
  for (const char* name : {"layers.-1.attn.x", "layers.01.attn.x", "layers.99999999999999999999.attn.x",
                           "layers..attn.x", "layers.1.attn", "layers.1", "layers.", "", "model.",
                           "model.model.layers.1.attn.x", "xlayers.1.attn.x", "layers.1.attn_norm.x"}) {
    EXPECT_FALSE(split_layer_name(name, layer, rest)) << name;
  }
}

TEST_F(CheckpointFiles, MtpLayersFollowTheDecoderLayers) {
  std::int64_t number = -1;
  std::string rest;
  EXPECT_TRUE(split_layer_name("model.mtp.2.attn.wq_a.scale", number, rest, "mtp"));
  EXPECT_EQ(number, 2);
  EXPECT_EQ(rest, "wq_a.scale");
  EXPECT_FALSE(split_layer_name("mtp.2.attn.wq_a.scale", number, rest));
  EXPECT_FALSE(split_layer_name("layers.2.attn.wq_a.scale", number, rest, "mtp"));
  for (const char* name : {"mtp", "mtp.", "mtp.x.attn.y", "mtpx.0.attn.y", "mtp.0.ffn.y", "mtp.0.e_proj.weight"}) {
    EXPECT_FALSE(split_layer_name(name, number, rest, "mtp")) << name;
  }

  const RandomLayer decoder(odd_layer(1), Encoding::kFp8Ue8m0, 3);
  const RandomLayer draft(odd_layer(1), Encoding::kFp8Ue8m0, 4, "mtp.0.attn.");
  Items items;
  for (const RandomLayer* layer : {&decoder, &draft}) {
    for (const auto& [name, item] : layer->items) items[name] = {item.tensor.clone(), item.dtype};
  }
  items["mtp.0.e_proj.weight"] = {HostTensor(DType::kBF16, {2, 2}), ""};
  write("model.safetensors", items);
  {
    const Checkpoint bare(folder_);  // no config.json: the two stacks have numbers of their own
    expect_meaning(bare.load_layer(0, odd_layer(1)), decoder, "decoder ");
    expect_meaning(bare.load_mtp_layer(0, odd_layer(1)), draft, "mtp ");
    EXPECT_THAT(error_of<InvalidArgument>([&] { bare.load_mtp_layer(1, odd_layer(1)); }),
                HasSubstr("got no tensor named mtp.1.attn.*"));
    EXPECT_THAT(error_of<InvalidArgument>([&] { bare.load_layer(1, odd_layer(1)); }),
                HasSubstr("got no tensor named layers.1.attn.*"));
  }
  ModelConfig model = model_preset("tiny");
  model.num_layers = 1;
  model.num_mtp_layers = 1;
  model.compress_ratios = {0, 0};
  text("config.json", model_config_json(model));
  expect_meaning(Checkpoint(folder_).load_layer(1, odd_layer(1)), draft, "layer 1 ");
  // Under both names: which one?
  for (const auto& [name, item] : RandomLayer(odd_layer(1), Encoding::kBF16, 5, "layers.1.attn.").items)
    items[name] = {item.tensor.clone(), item.dtype};
  write("model.safetensors", items);
  EXPECT_THAT(error_of<IoError>([&] { Checkpoint(folder_).load_layer(1, odd_layer(1)); }),
              HasSubstr("layers.1.attn.* and mtp.0.attn.*"));
}

TEST(CheckpointWriter, ConfigJsonReadsBack) {
  for (const std::string& name : model_preset_names()) {
    ModelConfig model = model_preset(name);
    model.name = "a \"name\"";
    const ModelConfig back = parse_model_config(model_config_json(model));
    EXPECT_EQ(back.name, model.name);
    EXPECT_EQ(back.num_layers, model.num_layers);
    EXPECT_EQ(back.num_mtp_layers, model.num_mtp_layers);
    EXPECT_EQ(back.max_position, model.max_position);
    EXPECT_EQ(back.compress_ratios, model.compress_ratios);
    for (std::int64_t i = 0; i < model.num_layers; ++i) {
      const LayerConfig a = model.layer(i);
      const LayerConfig b = back.layer(i);
      EXPECT_EQ(std::tie(a.hidden_size, a.num_heads, a.q_lora_rank, a.o_lora_rank, a.o_groups, a.window,
                         a.compress_ratio, a.index_n_heads, a.index_topk),
                std::tie(b.hidden_size, b.num_heads, b.q_lora_rank, b.o_lora_rank, b.o_groups, b.window,
                         b.compress_ratio, b.index_n_heads, b.index_topk));
      EXPECT_EQ(a.rope, b.rope);
      EXPECT_EQ(a.rms_norm_eps, b.rms_norm_eps);
    }
  }
}

TEST(CheckpointWriter, RefusesShardsWithoutTensors) {
  CheckpointWriter writer;
  writer.plan("a", DType::kF32, {2});
  EXPECT_THROW(writer.begin(::testing::TempDir(), 2), InvalidArgument);
  EXPECT_THROW(writer.begin(::testing::TempDir(), 0), InvalidArgument);
  EXPECT_THROW(writer.begin("/no/such/folder", 1), IoError);
}

TEST(CheckpointWriter, TakesWhatWasPlannedInItsOrder) {
  const std::string folder = ::testing::TempDir() + "smla_writer_" + std::to_string(getpid());
  std::filesystem::create_directories(folder);
  const HostTensor a(DType::kF32, {2});
  const HostTensor w(DType::kBF16, {3, 32});
  CheckpointWriter writer;
  writer.plan("a", DType::kF32, {2});
  writer.plan_linear("w", 3, 32, LinearEncoding::kFp8);
  EXPECT_EQ(writer.tensors(), 3U);
  EXPECT_EQ(writer.bytes(), 8 + 96 + 1);
  EXPECT_THROW(writer.add("a", a.view()), InvalidArgument) << "nothing has begun";
  writer.begin(folder, 1);
  EXPECT_THROW(writer.add("b", a.view()), InvalidArgument);
  EXPECT_THROW(writer.add("a", w.view()), InvalidArgument);
  writer.add("a", a.view());
  EXPECT_THROW(writer.add_linear("w", w.view(), LinearEncoding::kPlain), InvalidArgument);
  EXPECT_THROW(writer.finish(model_preset("tiny")), InvalidArgument) << "the weight is missing";
  EXPECT_FALSE(std::filesystem::exists(folder + "/config.json"));
  writer.add_linear("w", w.view(), LinearEncoding::kFp8);
  EXPECT_THROW(writer.add("c", a.view()), InvalidArgument) << "one too many";
  EXPECT_EQ(writer.written(), writer.bytes());
  writer.finish(model_preset("tiny"));
  EXPECT_EQ(Checkpoint(folder).names(), (std::vector<std::string>{"a", "w.scale", "w.weight"}));
  std::filesystem::remove_all(folder);
}

TEST(LinearEncodings, RoundingIsOnceAndToNearestEven) {
  // Just above a tie: rounding to float first would land on the tie and then fall to even.
  EXPECT_EQ(to_float(bf16_of(1.0 + 0x1p-8 + 0x1p-40)), 1.0F + 0x1p-7F);
  EXPECT_EQ(to_float(bf16_of(1.0 + 0x1p-8)), 1.0F);
  EXPECT_EQ(to_float(bf16_of(-1.0 - 3 * 0x1p-8 + 0x1p-40)), -1.0F - 0x1p-7F);
  std::mt19937_64 random(1);
  for (int i = 0; i < 100000; ++i) {
    const double x =
        std::ldexp(static_cast<double>(static_cast<std::int64_t>(random())), static_cast<int>(random() % 180) - 190);
    ASSERT_EQ(static_cast<double>(to_float(bf16_of(x))), nearest_bf16(x)) << x;
  }
}

TEST(LinearEncodings, EncodingLosesNoMoreThanItsFormat) {
  std::mt19937 random(2);
  HostTensor w(DType::kBF16, {200, 272});
  std::normal_distribution<float> normal(0, 0.03F);
  for (std::int64_t i = 0; i < w.numel(); ++i) w.as<BF16>()[i] = to_bf16(i < 272 ? 0.0F : normal(random));
  for (const LinearEncoding encoding : {LinearEncoding::kPlain, LinearEncoding::kFp8, LinearEncoding::kNvfp4}) {
    const EncodedLinear e = encode_linear(std::as_const(w).view(), encoding);
    double error = 0;
    double size = 0;
    for (std::int64_t i = 0; i < w.numel(); ++i) {
      const double x = static_cast<double>(to_float(w.as<BF16>()[i]));
      double y = x;
      if (encoding == LinearEncoding::kFp8)
        y = e4m3_value(e.weight.as<E4M3>()[i].bits) *
            std::ldexp(1.0, e.scale.as<std::uint8_t>()[i / 272 / 128 * 3 + i % 272 / 128] - 127);
      if (encoding == LinearEncoding::kNvfp4) {
        const unsigned byte = e.weight.as<std::uint8_t>()[i / 2];
        y = e2m1_value(i % 2 == 0 ? byte & 15U : byte >> 4U) * e4m3_value(e.scale.as<E4M3>()[i / 16].bits) *
            static_cast<double>(e.global_scale.as<float>()[0]);
      }
      error += (x - y) * (x - y);
      size += x * x;
    }
    const double bound = encoding == LinearEncoding::kPlain ? 0 : (encoding == LinearEncoding::kFp8 ? 0.03 : 0.12);
    EXPECT_LE(std::sqrt(error / size), bound) << static_cast<int>(encoding);
  }
}

}  // namespace
}  // namespace smla
