// What can be wrong with a checkpoint, and is told.
#include "sparsemla/checkpoint.h"
#include "unit/checkpoint_files.h"

namespace smla {
namespace {

using namespace testing_checkpoints;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

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

}  // namespace
}  // namespace smla
