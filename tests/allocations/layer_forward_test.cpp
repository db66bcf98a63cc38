// A forward through the C interface with a plan allocates nothing on the host. The program counts every operator new.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <numeric>

#include "allocations/counter.h"
#include "core/host_tensor.h"
#include "property/written_checkpoint.h"
#include "sparsemla/c_api.h"
#include "unit/c_views.h"

namespace smla {
namespace {

using test::describe_for_c;

constexpr std::int64_t kPositions = 64;
constexpr std::int64_t kBlocks = 32;

/// A layer of the tiny preset from a checkpoint that this makes.
smla_layer* make_layer(std::int64_t index) {
  const std::string folder = testing::TempDir() + "smla_allocations_" + std::to_string(index);
  std::filesystem::create_directories(folder);
  test::write_checkpoint(
      folder, model_preset("tiny"), {index}, 1, [](std::int64_t) { return 12U; },
      [](std::string_view) { return LinearEncoding::kPlain; });
  smla_layer_options options{};
  options.struct_size = sizeof options;
  options.max_position = kPositions;
  options.threads = 1;
  options.implementation = "cpu";  // oneDNN allocates in its own calls
  options.implementation = "cpu";  // oneDNN's projections allocate inside of it
  smla_layer* layer = nullptr;
  EXPECT_EQ(smla_layer_create_from_checkpoint(folder.c_str(), index, &options, 0, 1, &layer), SMLA_OK)
      << smla_last_error();
  std::filesystem::remove_all(folder);
  return layer;
}

class Allocations : public testing::TestWithParam<std::int64_t> {};

TEST_P(Allocations, AForwardWithAPlanMakesNone) {
  const LayerConfig config = model_preset("tiny").layer(GetParam());
  smla_layer* layer = make_layer(GetParam());
  ASSERT_NE(layer, nullptr);

  std::array<smla_cache, SMLA_NUM_CACHES> memory{};
  std::vector<HostTensor> pages;
  smla_layer_caches caches{};
  caches.struct_size = sizeof caches;
  std::vector<std::int32_t> blocks(kBlocks);
  std::iota(blocks.begin(), blocks.end(), 0);
  for (int role = 0; role < SMLA_NUM_CACHES; ++role) {
    smla_cache_need need{};
    need.struct_size = sizeof need;
    ASSERT_EQ(smla_layer_cache_need(layer, role, &need), SMLA_OK) << smla_last_error();
    if (need.present == 0) continue;
    pages.emplace_back(DType::kU8, std::vector<std::int64_t>{kBlocks * need.page_bytes});
    memory[static_cast<std::size_t>(role)] = {.struct_size = sizeof(smla_cache),
                                              .format = need.format,
                                              .base = pages.back().data(),
                                              .num_blocks = kBlocks,
                                              .block_size = need.block_size,
                                              .block_stride_bytes = need.page_bytes,
                                              .kv_scale = 0,
                                              .reserved = 0};
    caches.cache[role] = &memory[static_cast<std::size_t>(role)];
  }
  constexpr std::int64_t kTokens = 40;
  const std::vector<std::int32_t> starts{0, kTokens};
  const std::vector<std::int32_t> lens{kTokens};
  std::vector<std::int64_t> positions(kTokens);
  std::iota(positions.begin(), positions.end(), 0);
  StepBatch batch{.query_start_loc = view_of(starts.data(), {2}),
                  .seq_lens = view_of(lens.data(), {1}),
                  .positions = view_of(std::as_const(positions).data(), {kTokens}),
                  .block_tables = {}};
  for (int g = 0; g < smla_layer_num_groups(layer); ++g)
    batch.block_tables.push_back(view_of(std::as_const(blocks).data(), {1, kBlocks}));
  const test::CBatch c_batch(batch);
  smla_step* step = nullptr;
  smla_layer_plan* plan = nullptr;
  ASSERT_EQ(smla_step_create(layer, &step), SMLA_OK) << smla_last_error();
  ASSERT_EQ(smla_step_build(step, &c_batch.view), SMLA_OK) << smla_last_error();
  ASSERT_EQ(smla_layer_plan_create(layer, step, &plan), SMLA_OK) << smla_last_error();
  std::size_t bytes = 0;
  ASSERT_EQ(smla_layer_plan_workspace(plan, &bytes), SMLA_OK) << smla_last_error();
  HostTensor workspace(DType::kU8, {static_cast<std::int64_t>(bytes)});
  HostTensor hidden(DType::kBF16, {kTokens, config.hidden_size});
  std::memset(hidden.data(), 0x3C, hidden.bytes());
  HostTensor output(DType::kBF16, {kTokens, config.hidden_size});
  const smla_tensor in = describe_for_c(std::as_const(hidden).view());
  const smla_tensor out = describe_for_c(std::as_const(output).view());
  const auto forward = [&](const smla_layer_plan* with) {
    const std::int64_t before = test::allocations();
    EXPECT_EQ(smla_layer_forward(layer, with, step, &caches, &in, &out, workspace.data(), bytes, nullptr), SMLA_OK)
        << smla_last_error();
    return test::allocations() - before;
  };
  forward(plan);  // what is made once a thread or a process
  EXPECT_EQ(forward(plan), 0);
  EXPECT_GT(forward(nullptr), 0);  // the counter counts: without a plan one is made
  smla_layer_plan_destroy(plan);
  smla_step_destroy(step);
  smla_layer_destroy(layer);
}

INSTANTIATE_TEST_SUITE_P(Kinds, Allocations, testing::Values(0, 1, 2));

}  // namespace
}  // namespace smla
