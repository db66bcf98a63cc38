#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "cache/row_codec.h"
#include "checkpoint/index.h"
#include "engine/synthetic.h"
#include "few_cases.h"
#include "model/weight_table.h"
#include "sparsemla/checkpoint.h"
#include "sparsemla/weights.h"
#include "written_checkpoint.h"

namespace smla {
namespace {

namespace fs = std::filesystem;

/// A model of one layer of each kind whose heads and groups eight ranks can share.
ModelConfig model_of_eight() {
  ModelConfig m = model_preset("tiny");
  m.num_layers = 3;
  m.o_groups = 8;
  m.o_lora_rank = 32;
  m.compress_ratios = {0, 4, 128};
  return m;
}

class CheckpointFolder {
 public:
  explicit CheckpointFolder(const std::string& name) : path_(::testing::TempDir() + "smla_property_" + name) {
    fs::create_directories(path_);
  }
  ~CheckpointFolder() { fs::remove_all(path_); }
  CheckpointFolder(const CheckpointFolder&) = delete;
  CheckpointFolder& operator=(const CheckpointFolder&) = delete;
  const std::string& path() const { return path_; }

  void write(const ModelConfig& model, LinearEncoding encoding, int shards) const {
    test::write_checkpoint(
        path_, model, test::first_layers(model.num_layers), shards, [](std::int64_t i) { return layer_seed(9, i); },
        [=](std::string_view) { return encoding; });
  }

 private:
  std::string path_;
};

/// One request of `tokens` tokens through one layer in one step, float32 throughout. `implementations`: of projections,
/// named ones.
HostTensor prefill(const LayerTensors& tensors, std::int64_t tokens,
                   const decltype(LayerOptions::implementations)& implementations = {}) {
  const LayerConfig& c = tensors.config;
  LayerOptions options;
  options.precision = Precision::kF32;
  options.implementations = implementations;
  options.deterministic = implementations.contains("joint_projection");  // joint whatever the number of tokens
  HostTensor cos_sin(DType::kF32, {tokens, c.rope_head_dim});
  std::ranges::copy(rope_table(c.rope, tokens), cos_sin.as<float>());
  const AttentionLayer layer(c, layer_weights(tensors), options, std::as_const(cos_sin).view());
  const KvLayout layout = make_kv_layout({&c, 1}, layer.options().caches);
  std::int64_t blocks = 0;
  for (const CacheGroup& group : layout.groups) blocks += max_blocks(group, tokens, tokens);
  KvPool pool(layout, blocks);
  RequestBlocks held(layout);
  EXPECT_TRUE(held.reserve(pool, 0, tokens));

  const std::vector<std::int32_t> loc{0, static_cast<std::int32_t>(tokens)};
  const std::vector<std::int32_t> seq{static_cast<std::int32_t>(tokens)};
  std::vector<std::int64_t> positions(static_cast<std::size_t>(tokens));
  std::iota(positions.begin(), positions.end(), 0);
  StepBatch batch{.query_start_loc = view_of(loc.data(), {2}),
                  .seq_lens = view_of(seq.data(), {1}),
                  .positions = view_of(std::as_const(positions).data(), {tokens}),
                  .block_tables = {},
                  .max_seq_len = tokens};
  for (std::size_t g = 0; g < layout.groups.size(); ++g) {
    const auto table = held.table(static_cast<int>(g));
    batch.block_tables.push_back(view_of(table.data(), {1, static_cast<std::int64_t>(table.size())}));
  }
  StepMetadata metadata(layout, {&c, 1});
  metadata.build(batch);
  const LayerCaches caches = caches_of(pool, 0);
  const LayerPlan plan = layer.plan(tokens, 1, tokens, caches);
  HostTensor workspace(DType::kU8, {static_cast<std::int64_t>(plan.workspace_bytes())});
  HostTensor hidden(DType::kF32, {tokens, c.hidden_size});
  HostTensor output(DType::kF32, {tokens, c.hidden_size});
  for (std::int64_t t = 0; t < tokens; ++t) synthetic_hidden(5, 0, 1, t, hidden.view().slice(0, t, t + 1));
  layer.forward(plan, metadata.layer(0), caches, std::as_const(hidden).view(), output.view(),
                {.data = workspace.data(), .bytes = workspace.bytes()});
  return output;
}

TEST(CheckpointProperty, TheSumOfTensorParallelSlicesIsTheWhole) {
  const CheckpointFolder folder("slices");
  constexpr std::int64_t kTokens = 270;  // two C128A entries and some more than index_topk C4A entries
  const std::pair<LinearEncoding, LoadOptions> cases[] = {{LinearEncoding::kPlain, {}},
                                                          {LinearEncoding::kFp8, {}},
                                                          {LinearEncoding::kNvfp4, {}},
                                                          {LinearEncoding::kNvfp4, {.keep_nvfp4 = true}}};
  for (const auto& [encoding, options] : cases) {
    folder.write(model_of_eight(), encoding, 1);
    const Checkpoint checkpoint(folder.path());
    for (std::int64_t index = 0; index < 3; ++index) {
      const HostTensor whole = prefill(checkpoint.load_layer(index, 0, 1, options), kTokens);
      for (const int size : {2, 4, 8}) {
        std::vector<double> sum(static_cast<std::size_t>(whole.numel()));
        for (int rank = 0; rank < size; ++rank) {
          const LayerTensors part = checkpoint.load_layer(index, rank, size, options);
          EXPECT_EQ(part.tensors.at("wo_b.weight").dtype == DType::kU8, options.keep_nvfp4);
          const HostTensor slice = prefill(part, kTokens);
          for (std::int64_t i = 0; i < whole.numel(); ++i)
            sum[static_cast<std::size_t>(i)] += static_cast<double>(slice.as<float>()[i]);
        }
        double difference = 0;
        double length = 0;
        for (std::int64_t i = 0; i < whole.numel(); ++i) {
          const double w = static_cast<double>(whole.as<float>()[i]);
          difference += (sum[static_cast<std::size_t>(i)] - w) * (sum[static_cast<std::size_t>(i)] - w);
          length += w * w;
        }
        EXPECT_GT(length, 0);
        EXPECT_LE(std::sqrt(difference / length), 1e-6) << "layer " << index << ", " << size << " ranks";
      }
    }
  }
}

/// A layer whose NVFP4 weights are all kept, each with another power of two as its scale of all, and the same numbers
/// in float32, which holds them exactly.
struct KeptAndWide {
  explicit KeptAndWide(LayerTensors loaded) : kept(std::move(loaded)), wide(kept) {
    int exponent = -7;
    for (const auto& [name, view] : kept.tensors) {
      if (view.dtype != DType::kU8) continue;
      const std::string stem = name.substr(0, name.rfind('.'));
      const ConstTensorView& scale = kept.tensors.at(stem + ".weight_scale");
      HostTensor& global = memory.emplace_back(DType::kF32, std::vector<std::int64_t>{1});
      global.as<float>()[0] = std::ldexp(1.0F, exponent--);
      HostTensor numbers(DType::kF32, {view.size(0), 2 * view.size(1)});
      for (std::int64_t i = 0; i < numbers.numel(); ++i) {
        const unsigned byte = view.as<std::uint8_t>()[i / 2];
        numbers.as<float>()[i] = from_e2m1(static_cast<std::uint8_t>(i % 2 == 0 ? byte & 15U : byte >> 4U)) *
                                 to_float(scale.as<E4M3>()[i / 16]) * global.as<float>()[0];
      }
      kept.tensors.at(stem + ".weight_scale_2") = std::as_const(global).view();
      wide.tensors.erase(stem + ".weight_scale");
      wide.tensors.erase(stem + ".weight_scale_2");
      wide.tensors.at(name) = std::as_const(memory.emplace_back(std::move(numbers))).view();
    }
  }
  LayerTensors kept, wide;
  std::deque<HostTensor> memory;
};

double relative_l2(const HostTensor& got, const HostTensor& want) {
  double difference = 0;
  double length = 0;
  for (std::int64_t i = 0; i < want.numel(); ++i) {
    const double w = static_cast<double>(want.as<float>()[i]);
    const double d = static_cast<double>(got.as<float>()[i]) - w;
    difference += d * d;
    length += w * w;
  }
  return std::sqrt(difference / length);
}

/// `ref` sums in double and rounds once: the same bits whichever way the numbers are stored. No other implementation is
/// far from it.
TEST(CheckpointProperty, KeptNvfp4WeightsComputeWhatTheirNumbersDo) {
  const CheckpointFolder folder("kept_nvfp4");
  folder.write(model_of_eight(), LinearEncoding::kNvfp4, 1);
  const Checkpoint checkpoint(folder.path());
  constexpr std::int64_t kTokens = 140;
  for (std::int64_t index = 0; index < 3; ++index) {
    const KeptAndWide layer(checkpoint.load_layer(index, 0, 1, {.keep_nvfp4 = true}));
    const HostTensor want = prefill(layer.wide, kTokens, {{"projection", "ref"}});
    for (const char* op : {"projection", "joint_projection"}) {
      SCOPED_TRACE(testing::Message() << "layer " << index << ", " << op);
      const HostTensor ref = prefill(layer.kept, kTokens, {{op, "ref"}});
      EXPECT_EQ(std::memcmp(ref.data(), want.data(), want.bytes()), 0);
      EXPECT_LE(relative_l2(prefill(layer.kept, kTokens, {{op, "cpu"}}), want), 1e-6);
    }
    EXPECT_LE(relative_l2(prefill(layer.kept, kTokens), want), 1e-6) << "layer " << index;
  }
}

// However the tensors are spread over files, the same bytes come back.
TEST(CheckpointProperty, ShardsDoNotMatter) {
  const CheckpointFolder one("one");
  const CheckpointFolder many("many");
  ModelConfig model = model_of_eight();
  model.num_layers = 2;
  model.compress_ratios = {0, 4};
  one.write(model, LinearEncoding::kFp8, 1);
  const LayerTensors expected = Checkpoint(one.path()).load_layer(1);
  test::check_few("shards do not matter", 8, [&] {
    const int shards = *rc::gen::inRange(2, 40);
    fs::remove_all(many.path());
    fs::create_directories(many.path());
    many.write(model, LinearEncoding::kFp8, shards);
    const Checkpoint checkpoint(many.path());
    RC_ASSERT(checkpoint.model().has_value());
    RC_ASSERT(checkpoint.model()->compress_ratios == model.compress_ratios);
    const LayerTensors got = checkpoint.load_layer(1);
    RC_ASSERT(got.tensors.size() == expected.tensors.size());
    for (const auto& [name, view] : expected.tensors) {
      RC_ASSERT(std::memcmp(view.data, got.tensors.at(name).data,
                            static_cast<std::size_t>(view.numel() * size_of(view.dtype))) == 0);
    }
  });
}

// Any bytes changed, cut off or added in any of the files: an error of the library or a checkpoint that loads, and
// nothing else.
TEST(CheckpointProperty, DamageIsAnErrorOrHarmless) {
  const CheckpointFolder good("good");
  const CheckpointFolder bad("bad");
  ModelConfig model = model_of_eight();
  model.num_layers = 1;
  model.compress_ratios = {0};
  model.hidden_size = 32;
  model.q_lora_rank = 16;
  good.write(model, LinearEncoding::kNvfp4, 2);
  std::vector<std::string> names;
  for (const auto& file : fs::directory_iterator(good.path())) names.push_back(file.path().filename());
  std::sort(names.begin(), names.end());
  const auto read = [](const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return std::string((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  };
  test::check_few("damage is an error or harmless", 300, [&] {
    const std::string victim = *rc::gen::elementOf(names);
    for (const std::string& name : names)
      fs::copy_file(good.path() + "/" + name, bad.path() + "/" + name, fs::copy_options::overwrite_existing);
    std::string bytes = read(good.path() + "/" + victim);
    const std::size_t head = std::min<std::size_t>(bytes.size(), 4000);
    const int edits = *rc::gen::inRange(1, 4);
    for (int i = 0; i < edits; ++i) {
      const auto at = *rc::gen::inRange<std::size_t>(0, head);
      switch (*rc::gen::inRange(0, 4)) {
        case 0: bytes[at] = *rc::gen::arbitrary<char>(); break;
        case 1: bytes.resize(at); break;
        case 2:
          bytes.insert(at, *rc::gen::elementOf(std::vector<std::string>{"9", "-", "\"", "0]", "..", "/", "{", "1e99"}));
          break;
        default: bytes.erase(at, 3); break;
      }
      if (bytes.size() < head) bytes.resize(head, ' ');
    }
    std::ofstream(bad.path() + "/" + victim, std::ios::binary) << bytes;
    const bool keep = *rc::gen::arbitrary<bool>();
    try {
      const Checkpoint checkpoint(bad.path());
      checkpoint.load_layer(0, model.layer(0), 1, 2, {.keep_nvfp4 = keep});
    } catch (const Error&) {
    }
  });
}

}  // namespace
}  // namespace smla
