// Checkpoints written: configurations, plans, encodings.
#include <unistd.h>

#include "checkpoint/linear.h"
#include "checkpoint/writer.h"
#include "sparsemla/checkpoint.h"
#include "unit/checkpoint_files.h"

namespace smla {
namespace {

using namespace testing_checkpoints;

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

TEST(CheckpointWriter, ConfigJsonSaysWhichLayersReuseTheTopk) {
  ModelConfig model = model_preset("tiny");
  model.index_topk_freq = 2;
  EXPECT_EQ(parse_model_config(model_config_json(model)).index_topk_freq, 2);
  model.index_topk_pattern = "FS";
  EXPECT_EQ(parse_model_config(model_config_json(model)).index_topk_pattern, "FS");
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
