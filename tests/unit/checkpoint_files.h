#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <string>

#include "checkpoint/linear.h"
#include "checkpoint/safetensors.h"
#include "sparsemla/checkpoint.h"
#include "sparsemla/weights.h"

/// Checkpoints that tests write by hand, in every encoding, and what their numbers mean.
namespace smla::testing_checkpoints {

namespace fs = std::filesystem;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

enum class Encoding { kBF16, kF32, kFp8Ue8m0, kFp8F32, kNvfp4 };
constexpr Encoding kEncodings[] = {Encoding::kBF16, Encoding::kF32, Encoding::kFp8Ue8m0, Encoding::kFp8F32,
                                   Encoding::kNvfp4};

// The dequantiser of this test knows the formats from their definition, not from the library.
inline double e4m3_value(unsigned code) {
  const int exponent = static_cast<int>(code >> 3) & 15;
  const int fraction = static_cast<int>(code & 7);
  const double magnitude = exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}
inline double e2m1_value(unsigned code) {
  const int exponent = static_cast<int>(code >> 1) & 3;
  const int fraction = static_cast<int>(code & 1);
  const double magnitude = exponent == 0 ? fraction * 0.5 : std::ldexp(2 + fraction, exponent - 2);
  return (code & 8) != 0 ? -magnitude : magnitude;
}
inline double nearest_bf16(double x) {
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
inline LayerConfig odd_layer(int ratio) {
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

inline HostTensor scalar(float value) {
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

inline double value_of(const ConstTensorView& v, std::int64_t i) {
  return v.dtype == DType::kF32 ? static_cast<double>(v.as<float>()[i])
                                : static_cast<double>(to_float(v.as<BF16>()[i]));
}

inline void expect_meaning(const LayerTensors& tensors, const RandomLayer& layer, const std::string& what) {
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

}  // namespace smla::testing_checkpoints
