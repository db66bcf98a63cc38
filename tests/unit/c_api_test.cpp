// A layer through the C interface gives the bits that the same layer gives through C++, for every kind, with weights by
// name and from a checkpoint.
#include "sparsemla/c_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <filesystem>

#include "core/host_tensor.h"
#include "engine/synthetic.h"
#include "model/weight_table.h"
#include "property/fp8_checkpoint.h"
#include "property/written_checkpoint.h"
#include "sparsemla/layer.h"
#include "sparsemla/weights.h"
#include "unit/c_views.h"

namespace smla {
namespace {

using test::describe_for_c;

constexpr std::int64_t kPositions = 320;

/// One step's batch of one request, over a pool of its own.
struct Sequence {
  explicit Sequence(const KvLayout& layout) : pool(layout, 128), blocks(layout) {}

  StepBatch next(std::int64_t n) {
    EXPECT_TRUE(blocks.reserve(pool, length, length + n));
    loc = {0, static_cast<std::int32_t>(n)};
    length += n;
    seq = {static_cast<std::int32_t>(length)};
    positions.clear();
    for (std::int64_t p = length - n; p < length; ++p) positions.push_back(p);
    StepBatch batch{.query_start_loc = view_of(std::as_const(loc).data(), {2}),
                    .seq_lens = view_of(std::as_const(seq).data(), {1}),
                    .positions = view_of(std::as_const(positions).data(), {n}),
                    .block_tables = {},
                    .max_seq_len = length};
    for (std::size_t g = 0; g < pool.layout().groups.size(); ++g) {
      const auto table = blocks.table(static_cast<int>(g));
      batch.block_tables.push_back(view_of(table.data(), {1, static_cast<std::int64_t>(table.size())}));
    }
    return batch;
  }

  KvPool pool;
  RequestBlocks blocks;
  std::int64_t length = 0;
  std::vector<std::int32_t> loc, seq;
  std::vector<std::int64_t> positions;
};

HostTensor hidden_states(const LayerConfig& config, std::int64_t begin, std::int64_t n) {
  HostTensor hidden(DType::kBF16, {n, config.hidden_size});
  for (std::int64_t i = 0; i < n; ++i) synthetic_hidden(3, 0, 0, begin + i, hidden.view().slice(0, i, i + 1));
  return hidden;
}

std::string through_cpp(const AttentionLayer& layer, Sequence& sequence, std::int64_t n) {
  const HostTensor hidden = hidden_states(layer.config(), sequence.length, n);
  HostTensor output(DType::kBF16, {n, layer.config().hidden_size});
  StepMetadata metadata(sequence.pool.layout(), {&layer.config(), 1});
  metadata.build(sequence.next(n));
  const LayerCaches caches = caches_of(sequence.pool, 0);
  const LayerPlan plan = layer.plan(metadata.shape(), caches);
  HostTensor workspace(DType::kU8, {static_cast<std::int64_t>(plan.workspace_bytes())});
  layer.forward(plan, metadata.layer(0), caches, hidden.view(), output.view(),
                {.data = workspace.data(), .bytes = workspace.bytes()});
  return {static_cast<const char*>(output.data()), output.bytes()};
}

std::string through_c(const smla_layer* layer, const LayerConfig& config, Sequence& sequence, std::int64_t n) {
  const HostTensor hidden = hidden_states(config, sequence.length, n);
  HostTensor output(DType::kBF16, {n, config.hidden_size});
  const StepBatch batch = sequence.next(n);
  const test::CBatch c_batch(batch);
  smla_step* step = nullptr;
  EXPECT_EQ(smla_step_create(layer, &step), SMLA_OK) << smla_last_error();
  EXPECT_EQ(smla_step_build(step, &c_batch.view), SMLA_OK) << smla_last_error();

  std::array<smla_cache, SMLA_NUM_CACHES> memory{};
  smla_layer_caches caches{};
  caches.struct_size = sizeof caches;
  for (int role = 0; role < SMLA_NUM_CACHES; ++role) {
    smla_cache_need need{};
    need.struct_size = sizeof need;
    EXPECT_EQ(smla_layer_cache_need(layer, role, &need), SMLA_OK) << smla_last_error();
    if (need.present == 0) continue;
    const PagedCache cache = sequence.pool.cache(0, static_cast<CacheRole>(role));
    memory[role] = {.struct_size = sizeof(smla_cache),
                    .format = need.format,
                    .base = cache.base,
                    .num_blocks = cache.num_blocks,
                    .block_size = need.block_size,
                    .block_stride_bytes = cache.block_stride_bytes,
                    .kv_scale = 0,
                    .reserved = 0};
    caches.cache[role] = &memory[role];
  }
  std::size_t bytes = 0;
  EXPECT_EQ(smla_layer_workspace(layer, n, 1, sequence.length, &bytes), SMLA_OK) << smla_last_error();
  HostTensor workspace(DType::kU8, {static_cast<std::int64_t>(bytes)});
  const smla_tensor in = describe_for_c(hidden.view());
  const smla_tensor out = describe_for_c(output.view());
  EXPECT_EQ(smla_layer_forward(layer, nullptr, step, &caches, &in, &out, workspace.data(), bytes, nullptr), SMLA_OK)
      << smla_last_error();
  std::string planned_inside(static_cast<const char*>(output.data()), output.bytes());

  smla_layer_plan* plan = nullptr;
  EXPECT_EQ(smla_layer_plan_create(layer, step, &plan), SMLA_OK) << smla_last_error();
  std::size_t planned = 0;
  EXPECT_EQ(smla_layer_plan_workspace(plan, &planned), SMLA_OK) << smla_last_error();
  EXPECT_LE(planned, bytes);
  std::memset(output.data(), 0xFF, output.bytes());
  EXPECT_EQ(smla_layer_forward(layer, plan, step, &caches, &in, &out, workspace.data(), planned, nullptr), SMLA_OK)
      << smla_last_error();
  smla_layer_plan_destroy(plan);
  smla_step_destroy(step);
  EXPECT_EQ(std::string_view(static_cast<const char*>(output.data()), output.bytes()), planned_inside);
  return planned_inside;
}

/// A prompt, then two single tokens; the second of them closes a group of either ratio.
void expect_same(const AttentionLayer& layer, const smla_layer* c_layer) {
  const KvLayout layout = make_kv_layout({&layer.config(), 1}, layer.options().caches);
  Sequence ours(layout);
  Sequence theirs(layout);
  for (const std::int64_t n : {254, 1, 1, 60}) {
    const std::string expected = through_cpp(layer, ours, n);
    EXPECT_EQ(through_c(c_layer, layer.config(), theirs, n), expected) << "ending at position " << ours.length;
    EXPECT_NE(expected, std::string(expected.size(), '\0'));
  }
}

HostTensor rope_of(const LayerConfig& config) {
  HostTensor rope(DType::kF32, {kPositions, config.rope_head_dim});
  std::ranges::copy(rope_table(config.rope, kPositions), rope.as<float>());
  return rope;
}

smla_layer_options options_for_c() {
  smla_layer_options options{};
  options.struct_size = sizeof options;
  options.max_position = kPositions;
  return options;
}

/// Layers of the tiny preset: one of each kind.
class CApi : public testing::TestWithParam<std::int64_t> {};

TEST_P(CApi, ALayerWithWeightsByName) {
  const LayerConfig config = model_preset("tiny").layer(GetParam());
  OwnedLayerWeights weights = random_weights(config, 11);
  std::vector<std::string> names;
  std::vector<smla_tensor> tensors;
  visit_weights(config, weights.views, [&](std::string_view name, ConstTensorView& view) {
    names.emplace_back(name);
    tensors.push_back(describe_for_c(view));
  });
  std::vector<const char*> name_pointers;
  std::vector<const smla_tensor*> pointers;
  for (std::size_t i = 0; i < names.size(); ++i) {
    name_pointers.push_back(names[i].c_str());
    pointers.push_back(&tensors[i]);
  }
  smla_layer_config c_config{};
  c_config.struct_size = sizeof c_config;
  ASSERT_EQ(smla_model_layer_config("tiny", GetParam(), &c_config), SMLA_OK) << smla_last_error();
  const smla_layer_options options = options_for_c();
  smla_layer* c_layer = nullptr;
  ASSERT_EQ(smla_layer_create(&c_config, &options, name_pointers.data(), pointers.data(),
                              static_cast<std::int64_t>(names.size()), &c_layer),
            SMLA_OK)
      << smla_last_error();
  EXPECT_EQ(smla_layer_num_groups(c_layer), config.has_compressor() ? 3 : 1);
  const HostTensor rope = rope_of(config);
  expect_same(AttentionLayer(config, weights.views, {}, rope.view()), c_layer);
  smla_layer_destroy(c_layer);
}

TEST_P(CApi, ALayerOfACheckpoint) {
  const std::string folder = testing::TempDir() + "smla_c_api_checkpoint_" + std::to_string(GetParam());
  std::filesystem::create_directories(folder);
  const ModelConfig model = model_preset("tiny");
  const LayerConfig config = model.layer(GetParam());
  OwnedLayerWeights weights = random_weights(config, 12);
  test::write_checkpoint(
      folder, model, {GetParam()}, 1, [](std::int64_t) { return 12U; },
      [](std::string_view) { return LinearEncoding::kPlain; });
  const smla_layer_options options = options_for_c();
  smla_layer* c_layer = nullptr;
  ASSERT_EQ(smla_layer_create_from_checkpoint(folder.c_str(), GetParam(), &options, 0, 1, &c_layer), SMLA_OK)
      << smla_last_error();
  const HostTensor rope = rope_of(config);
  expect_same(AttentionLayer(config, weights.views, {}, rope.view()), c_layer);
  smla_layer_destroy(c_layer);
  std::filesystem::remove_all(folder);
}

/// Layer `index` of a checkpoint whose weights are kept as they are stored, by the option `kept_by` ("fp8_weights"):
/// loaded through C, and made of its tensors by name. Each tensor of `needed` is named where it is not there.
void expect_kept(const std::string& folder, std::int64_t index, const LoadOptions& load,
                 std::int32_t smla_layer_options::*flag, const std::string& kept_by,
                 const std::vector<std::string>& needed) {
  const LayerTensors kept = Checkpoint(folder).load_layer(index, 0, 1, load);
  const HostTensor rope = rope_of(kept.config);
  const AttentionLayer ours(kept.config, layer_weights(kept), {}, rope.view());

  smla_layer_options options = options_for_c();
  options.*flag = 1;
  smla_layer* loaded = nullptr;
  ASSERT_EQ(smla_layer_create_from_checkpoint(folder.c_str(), index, &options, 0, 1, &loaded), SMLA_OK)
      << smla_last_error();
  expect_same(ours, loaded);
  smla_layer_config c_config{};
  c_config.struct_size = sizeof c_config;
  ASSERT_EQ(smla_layer_get_config(loaded, &c_config), SMLA_OK) << smla_last_error();
  smla_layer_destroy(loaded);

  smla_layer* named = nullptr;
  const auto create = [&](std::string_view without) {
    std::vector<const char*> names;
    std::vector<smla_tensor> tensors;
    for (const auto& [name, view] : kept.tensors) {
      if (name == without) continue;
      names.push_back(name.c_str());
      tensors.push_back(describe_for_c(view));
    }
    std::vector<const smla_tensor*> pointers;
    for (const smla_tensor& tensor : tensors) pointers.push_back(&tensor);
    return smla_layer_create(&c_config, &options, names.data(), pointers.data(),
                             static_cast<std::int64_t>(names.size()), &named);
  };
  ASSERT_EQ(create(""), SMLA_OK) << smla_last_error();
  expect_same(ours, named);
  smla_layer_destroy(named);
  for (const std::string& name : needed) {
    EXPECT_NE(create(name), SMLA_OK) << name;
    EXPECT_NE(std::string(smla_last_error()).find(name + ": got no such tensor"), std::string::npos)
        << smla_last_error();
  }
  options.*flag = 2;
  EXPECT_NE(smla_layer_create_from_checkpoint(folder.c_str(), index, &options, 0, 1, &named), SMLA_OK);
  EXPECT_NE(std::string(smla_last_error()).find(kept_by), std::string::npos) << smla_last_error();
}

TEST(CApiLayer, OfAnFp8CheckpointKeepsItsWeightsWhenAsked) {
  const test::Fp8Checkpoint folder("smla_c_api_fp8", test::fp8_model());
  expect_kept(folder.path(), 0, {.keep_fp8 = true}, &smla_layer_options::fp8_weights, "fp8_weights", {"wkv.scale"});
}

TEST(CApiLayer, OfAnNvfp4CheckpointKeepsItsWeightsWhenAsked) {
  const test::Nvfp4Checkpoint folder("smla_c_api_nvfp4", test::fp8_model());
  expect_kept(folder.path(), 1, {.keep_nvfp4 = true}, &smla_layer_options::nvfp4_weights, "nvfp4_weights",
              {"wkv.weight_scale", "indexer.compressor.wgate.weight_scale_2"});
}

/// A built step of one request: `n` tokens behind `before`.
smla_step* step_of(const smla_layer* layer, std::int64_t before, std::int64_t n, std::int64_t max_seq_len) {
  const std::vector<std::int32_t> table{0, 1, 2, 3, 4};
  const std::vector<std::int32_t> loc{0, static_cast<std::int32_t>(n)};
  const std::vector<std::int32_t> seq{static_cast<std::int32_t>(before + n)};
  std::vector<std::int64_t> positions;
  for (std::int64_t p = before; p < before + n; ++p) positions.push_back(p);
  test::CBatch batch({.query_start_loc = view_of(loc.data(), {2}),
                      .seq_lens = view_of(seq.data(), {1}),
                      .positions = view_of(std::as_const(positions).data(), {n}),
                      .block_tables = {view_of(table.data(), {1, 5})}});
  batch.view.max_seq_len = max_seq_len;
  smla_step* step = nullptr;
  EXPECT_EQ(smla_step_create(layer, &step), SMLA_OK) << smla_last_error();
  EXPECT_EQ(smla_step_build(step, &batch.view), SMLA_OK) << smla_last_error();
  return step;
}

TEST(CApiLayer, APlanServesLaterStepsOfItsShapeAndNoOther) {
  const std::string folder = testing::TempDir() + "smla_c_api_plans";
  std::filesystem::create_directories(folder);
  const ModelConfig model = model_preset("tiny");
  const LayerConfig config = model.layer(0);
  ASSERT_FALSE(config.has_compressor());
  test::write_checkpoint(
      folder, model, {0}, 1, [](std::int64_t) { return 13U; }, [](std::string_view) { return LinearEncoding::kPlain; });
  const smla_layer_options options = options_for_c();
  std::array<smla_layer*, 2> layers{};
  for (smla_layer*& layer : layers) {
    ASSERT_EQ(smla_layer_create_from_checkpoint(folder.c_str(), 0, &options, 0, 1, &layer), SMLA_OK)
        << smla_last_error();
  }
  std::filesystem::remove_all(folder);

  smla_cache_need need{};
  need.struct_size = sizeof need;
  ASSERT_EQ(smla_layer_cache_need(layers[0], SMLA_CACHE_WINDOW, &need), SMLA_OK);
  HostTensor pages(DType::kU8, {5 * need.page_bytes});
  const smla_cache cache{.struct_size = sizeof cache,
                         .format = need.format,
                         .base = pages.data(),
                         .num_blocks = 5,
                         .block_size = need.block_size,
                         .block_stride_bytes = need.page_bytes,
                         .kv_scale = 0,
                         .reserved = 0};
  smla_layer_caches caches{};
  caches.struct_size = sizeof caches;
  caches.cache[SMLA_CACHE_WINDOW] = &cache;
  std::size_t bytes = 0;
  ASSERT_EQ(smla_layer_workspace(layers[0], 4, 1, kPositions, &bytes), SMLA_OK);
  HostTensor workspace(DType::kU8, {static_cast<std::int64_t>(bytes)});
  const auto forward = [&](const smla_layer* layer, const smla_layer_plan* plan, const smla_step* step,
                           std::int64_t n) {
    const HostTensor hidden = hidden_states(config, 0, n);
    HostTensor output(DType::kBF16, {n, config.hidden_size});
    const smla_tensor in = describe_for_c(hidden.view());
    const smla_tensor out = describe_for_c(std::as_const(output).view());
    const smla_status status =
        smla_layer_forward(layer, plan, step, &caches, &in, &out, workspace.data(), bytes, nullptr);
    return status == SMLA_OK ? std::string(static_cast<const char*>(output.data()), output.bytes())
                             : std::string("error: ") + smla_last_error();
  };

  smla_step* first = step_of(layers[0], 4, 1, kPositions);
  smla_layer_plan* plan = nullptr;
  ASSERT_EQ(smla_layer_plan_create(layers[0], first, &plan), SMLA_OK) << smla_last_error();
  smla_step_destroy(first);
  for (const std::int64_t before : {5, 6, 200}) {
    smla_step* later = step_of(layers[0], before, 1, kPositions);
    const std::string want = forward(layers[0], nullptr, later, 1);
    EXPECT_THAT(want, testing::Not(testing::StartsWith("error")));
    EXPECT_EQ(forward(layers[0], plan, later, 1), want);
    EXPECT_THAT(forward(layers[1], plan, later, 1), testing::HasSubstr("plan: got one of another layer"));
    smla_step_destroy(later);
  }
  smla_step* prefill = step_of(layers[0], 0, 4, kPositions);
  EXPECT_THAT(forward(layers[0], plan, prefill, 4), testing::HasSubstr("prefills of other lengths"));
  smla_layer_plan* prefill_plan = nullptr;
  ASSERT_EQ(smla_layer_plan_create(layers[0], prefill, &prefill_plan), SMLA_OK) << smla_last_error();
  EXPECT_EQ(forward(layers[0], prefill_plan, prefill, 4), forward(layers[0], nullptr, prefill, 4));
  smla_step* longer = step_of(layers[0], 8, 4, kPositions);  // as many tokens behind another prefix
  EXPECT_THAT(forward(layers[0], prefill_plan, longer, 4), testing::HasSubstr("prefills of other lengths"));
  smla_step* short_step = step_of(layers[0], 4, 1, 5);
  smla_layer_plan* short_plan = nullptr;
  ASSERT_EQ(smla_layer_plan_create(layers[0], short_step, &short_plan), SMLA_OK) << smla_last_error();
  smla_step* past = step_of(layers[0], 5, 1, 6);
  EXPECT_THAT(forward(layers[0], short_plan, past, 1), testing::HasSubstr("max_seq_len of the step: got 6"));
  for (smla_step* step : {prefill, longer, short_step, past}) smla_step_destroy(step);
  for (smla_layer* layer : layers) smla_layer_destroy(layer);
  for (smla_layer_plan* p : {plan, prefill_plan, short_plan}) smla_layer_plan_destroy(p);  // after their layer
}

INSTANTIATE_TEST_SUITE_P(Kinds, CApi, testing::Values(0, 1, 2));

}  // namespace
}  // namespace smla
