// A layer through the C interface on the GPU is the host's through C++.
#include <algorithm>
#include <array>
#include <cmath>

#include "gpu/layer_gpu.h"
#include "unit/c_views.h"

namespace smla {
namespace {

using namespace layer_gpu;

/// A prompt of 150 tokens through the C interface on the GPU, and through C++ on the CPU.
TEST_F(LayerGpu, ThroughCItIsTheHostsLayer) {
  constexpr std::int64_t kTokens = 150;
  for (const LayerConfig& config : small_layers()) {
    SCOPED_TRACE(config.compress_ratio);
    const Weights weights(config);
    const std::vector<float> table = rope_table(config.rope, 300);
    const KvLayout layout = make_kv_layout({&config, 1}, {});
    KvPool host_pool(layout, 200);
    KvPool pool(layout, 200, DeviceKind::kCuda);
    RequestBlocks host_blocks(layout);
    RequestBlocks blocks(layout);
    ASSERT_TRUE(host_blocks.reserve(host_pool, 0, kTokens) && blocks.reserve(pool, 0, kTokens));
    Batch b;
    b.add(kTokens, 0);
    for (std::size_t g = 0; g < layout.groups.size(); ++g) {
      const auto row = blocks.table(static_cast<int>(g));
      HostTensor& t =
          b.tables.emplace_back(DType::kI32, std::vector<std::int64_t>{1, static_cast<std::int64_t>(row.size())});
      std::ranges::copy(row, t.as<std::int32_t>());
    }
    HostTensor hidden(DType::kBF16, {kTokens, config.hidden_size});
    for (std::int64_t t = 0; t < kTokens; ++t) synthetic_hidden(1, 0, 0, t, hidden.view().slice(0, t, t + 1));

    const AttentionLayer reference(config, weights.host.views, {.implementations = {{"*", "ref"}}},
                                   view_of(table.data(), {300, config.rope_head_dim}));
    StepMetadata metadata(layout, {&config, 1});
    metadata.build(b.on(DeviceKind::kCpu));
    const LayerCaches caches = caches_of(host_pool, 0);
    const LayerPlan plan = reference.plan(metadata.shape(), caches);
    HostTensor workspace(DType::kU8, {static_cast<std::int64_t>(plan.workspace_bytes())});
    HostTensor want(DType::kBF16, {kTokens, config.hidden_size});
    reference.forward(plan, metadata.layer(0), caches, std::as_const(hidden).view(), want.view(),
                      {.data = workspace.data(), .bytes = workspace.bytes()});

    smla_layer_config c_config{};
    c_config.struct_size = sizeof c_config;
    c_config.hidden_size = config.hidden_size;
    c_config.num_heads = config.num_heads;
    c_config.q_lora_rank = config.q_lora_rank;
    c_config.o_lora_rank = config.o_lora_rank;
    c_config.o_groups = config.o_groups;
    c_config.compress_ratio = config.compress_ratio;
    c_config.index_n_heads = config.index_n_heads;
    c_config.index_topk = config.index_topk;
    c_config.rope_theta = config.rope.theta;
    if (config.rope.yarn) {
      c_config.yarn_factor = config.rope.yarn->factor;
      c_config.yarn_max_position = config.rope.yarn->original_max_position;
      c_config.yarn_beta_fast = config.rope.yarn->beta_fast;
      c_config.yarn_beta_slow = config.rope.yarn->beta_slow;
    }
    smla_layer_options options{};
    options.struct_size = sizeof options;
    options.max_position = 300;
    options.device = SMLA_CUDA;
    std::vector<smla_tensor> tensors;
    for (const DeviceTensor& t : weights.storage) tensors.push_back(test::describe_for_c(t.view()));
    std::vector<const char*> names;
    std::vector<const smla_tensor*> pointers;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      names.push_back(weights.names[i].c_str());
      pointers.push_back(&tensors[i]);
    }
    smla_layer* layer = nullptr;
    ASSERT_EQ(smla_layer_create(&c_config, &options, names.data(), pointers.data(),
                                static_cast<std::int64_t>(names.size()), &layer),
              SMLA_OK)
        << smla_last_error();
    smla_step* step = nullptr;
    ASSERT_EQ(smla_step_create(layer, &step), SMLA_OK) << smla_last_error();
    const StepBatch batch = b.on(DeviceKind::kCuda);
    test::CBatch c_batch(batch);
    EXPECT_EQ(smla_step_build(step, &c_batch.view), SMLA_INVALID_ARGUMENT) << "without the host's counts";
    c_batch.view.host_query_start_loc = b.start.data();
    c_batch.view.host_seq_lens = b.seq.data();
    ASSERT_EQ(smla_step_build(step, &c_batch.view), SMLA_OK) << smla_last_error();

    std::array<smla_cache, SMLA_NUM_CACHES> memory{};
    smla_layer_caches c_caches{};
    c_caches.struct_size = sizeof c_caches;
    for (std::size_t role = 0; role < SMLA_NUM_CACHES; ++role) {
      if (layout.find(0, static_cast<CacheRole>(role)) == nullptr) continue;
      const PagedCache cache = pool.cache(0, static_cast<CacheRole>(role));
      memory[role].struct_size = sizeof(smla_cache);
      memory[role].format = cache.format->name.data();
      memory[role].base = cache.base;
      memory[role].num_blocks = cache.num_blocks;
      memory[role].block_size = cache.block_size;
      memory[role].block_stride_bytes = cache.block_stride_bytes;
      c_caches.cache[role] = &memory[role];
    }
    std::size_t bytes = 0;
    ASSERT_EQ(smla_layer_workspace(layer, kTokens, 1, kTokens, &bytes), SMLA_OK) << smla_last_error();
    const DeviceMemory lent(DeviceKind::kCuda, bytes);
    const DeviceTensor in = DeviceTensor::copy_of(DeviceKind::kCuda, hidden.view());
    DeviceTensor out(DeviceKind::kCuda, DType::kBF16, {kTokens, config.hidden_size});
    const smla_tensor c_in = test::describe_for_c(in.view());
    const smla_tensor c_out = test::describe_for_c(std::as_const(out).view());
    ASSERT_EQ(smla_layer_forward(layer, nullptr, step, &c_caches, &c_in, &c_out, lent.data(), bytes, nullptr), SMLA_OK)
        << smla_last_error();
    HostTensor got(DType::kBF16, {kTokens, config.hidden_size});
    copy_bytes(DeviceKind::kCuda, got.data(), out.data(), got.bytes());
    double error = 0;
    double norm = 0;
    for (std::int64_t i = 0; i < want.numel(); ++i) {
      const double w = to_float(want.as<BF16>()[i]);
      error += std::pow(w - to_float(got.as<BF16>()[i]), 2);
      norm += w * w;
    }
    EXPECT_GT(norm, 0);
    EXPECT_LE(std::sqrt(error / norm), 0.02);  // codes of rows and the top-k's boundary may differ by a rounding
    smla_step_destroy(step);
    smla_layer_destroy(layer);
  }
}

}  // namespace
}  // namespace smla
