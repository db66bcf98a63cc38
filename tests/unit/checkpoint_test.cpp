// What a checkpoint means: encodings, files, slices, names.
#include "sparsemla/checkpoint.h"

#include "checkpoint/index.h"
#include "checkpoint/writer.h"
#include "unit/checkpoint_files.h"

namespace smla {
namespace {

using namespace testing_checkpoints;
using ::testing::AllOf;
using ::testing::HasSubstr;

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

/// The indexer of a layer that reuses a choice may be there, and is not read.
TEST_F(CheckpointFiles, ALayerThatReusesAChoiceNeedsNoIndexer) {
  RandomLayer layer(odd_layer(4), Encoding::kFp8F32, 11);
  LayerConfig reusing = odd_layer(4);
  reusing.reuses_topk = true;
  write("model.safetensors", layer.items);
  EXPECT_TRUE(Checkpoint(folder_).load_layer(0, odd_layer(4)).tensors.contains("indexer.wq_b.weight"));
  const LayerTensors beside = Checkpoint(folder_).load_layer(0, reusing);
  const auto of_indexer = [](const auto& item) { return item.first.find("indexer.") != std::string::npos; };
  EXPECT_TRUE(std::ranges::none_of(beside.tensors, of_indexer));
  EXPECT_TRUE(layer_weights(beside).index_wq_b.absent());
  std::erase_if(layer.items, of_indexer);
  write("model.safetensors", layer.items);
  const LayerTensors without = Checkpoint(folder_).load_layer(0, reusing);
  EXPECT_EQ(without.tensors.size(), beside.tensors.size());
  EXPECT_THAT(error_of<InvalidArgument>([&] { Checkpoint(folder_).load_layer(0, odd_layer(4)); }),
              HasSubstr("missing: indexer.wq_b.weight"));
  layer.items["layers.0.attn.indexer.weights_proj.weight"] = {HostTensor(DType::kBF16, {3, 5}), ""};
  write("model.safetensors", layer.items);
  EXPECT_THAT(error_of<InvalidArgument>([&] { Checkpoint(folder_).load_layer(0, reusing); }),
              HasSubstr("misshaped: indexer.weights_proj.weight: got [3, 5] BF16"));
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

}  // namespace
}  // namespace smla
