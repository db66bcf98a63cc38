#include "sparsemla/front_end.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "aligned_workspace.h"
#include "core/host_tensor.h"
#include "engine/synthetic.h"
#include "sparsemla/layer.h"

namespace smla {
namespace {

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(FrontEnd, NamesAndAliases) {
  for (const char* name : {"flashmla", "FLASHMLA_SPARSE", "FLASHMLA_SPARSE_DSV4", "V4_FLASHMLA_SPARSE", "auto", ""}) {
    EXPECT_EQ(front_end(name), FrontEnd::kFlashMla) << name;
  }
  for (const char* name :
       {"flashinfer", "FLASHINFER_MLA_SPARSE_DSV4", "V4_FLASHINFER_MLA_SPARSE", "FLASHINFER_MLA_SPARSE_V4"}) {
    EXPECT_EQ(front_end(name), FrontEnd::kFlashInfer) << name;
  }
  for (const char* name : {"sm120", "DSV4_SPARSE_MLA_SM120"}) EXPECT_EQ(front_end(name), FrontEnd::kSm120) << name;
  // One upstream name means two classes: by the device. So does no name at all.
  EXPECT_EQ(front_end("FLASHINFER_MLA_SPARSE_DSV4", 10), FrontEnd::kFlashInfer);
  EXPECT_EQ(front_end("FLASHINFER_MLA_SPARSE_DSV4", 12), FrontEnd::kSm120);
  EXPECT_EQ(front_end("auto", 12), FrontEnd::kSm120);
  EXPECT_EQ(front_end("auto", 9), FrontEnd::kFlashMla);
  for (const FrontEnd f : {FrontEnd::kFlashMla, FrontEnd::kFlashInfer, FrontEnd::kSm120}) {
    EXPECT_EQ(front_end_names(f).front(), name_of(f));
    for (const std::string_view name : front_end_names(f))
      EXPECT_EQ(front_end(name, f == FrontEnd::kSm120 ? 12 : 10), f) << name;
  }
}

TEST(FrontEnd, RefusedAndUnknownNames) {
  for (const std::string name : {"FLASHINFER_MLA_SPARSE", "FLASHINFER_MLA_SPARSE_SM120"}) {
    EXPECT_EQ(error_of([&] { front_end(name); }),
              name +
                  " is not a DeepSeek V4 attention backend. Use FLASHINFER_MLA_SPARSE_DSV4 for DeepSeek V4 FlashInfer "
                  "sparse MLA.");
  }
  const std::string text = error_of([] { front_end("flashmlo"); });
  EXPECT_EQ(
      text,
      "front-end: got \"flashmlo\", expected one of auto, flashmla, FLASHMLA_SPARSE, FLASHMLA_SPARSE_DSV4, "
      "V4_FLASHMLA_SPARSE, flashinfer, "
      "FLASHINFER_MLA_SPARSE_DSV4, V4_FLASHINFER_MLA_SPARSE, FLASHINFER_MLA_SPARSE_V4, sm120, DSV4_SPARSE_MLA_SM120");
}

TEST(FrontEnd, CacheDtypeTable) {
  const RowFormat* ds = &fp8_ds_mla_rows();
  const RowFormat* bf16 = &bf16_rows();
  const RowFormat* plain = &fp8_per_tensor_rows();
  struct Row {
    const char* name;
    const RowFormat* two_scopes;  // flashmla, sm120
    const RowFormat* flashinfer;
  };
  for (const Row& row : {Row{"fp8_ds_mla", ds, ds}, Row{"bf16", bf16, bf16}, Row{"bfloat16", bf16, bf16},
                         Row{"fp8_per_tensor", plain, plain}, Row{"fp8", ds, plain}, Row{"fp8_e4m3", ds, plain},
                         Row{"fp8_inc", ds, plain}, Row{"auto", ds, bf16}}) {
    EXPECT_EQ(&cache_rows(FrontEnd::kFlashMla, row.name), row.two_scopes) << row.name;
    EXPECT_EQ(&cache_rows(FrontEnd::kSm120, row.name), row.two_scopes) << row.name;
    EXPECT_EQ(&cache_rows(FrontEnd::kFlashInfer, row.name), row.flashinfer) << row.name;
  }
  for (const char* name : {"fp8_e5m2", "e5m2", "int8", "", "FP8"}) {
    for (const bool strict : {false, true}) {
      EXPECT_NE(error_of([&] {
                  cache_rows(FrontEnd::kFlashMla, name, strict);
                }).find("expected one of auto, fp8_ds_mla, bf16"),
                std::string::npos)
          << name;
    }
  }
}

TEST(FrontEnd, StrictCacheDtypes) {
  const auto strict = [](FrontEnd f, const char* name) { return error_of([&] { cache_rows(f, name, true); }); };
  EXPECT_EQ(strict(FrontEnd::kFlashMla, "auto"), "DeepseekV4 fp8_ds_mla layout only supports fp8 kv-cache, got auto");
  EXPECT_EQ(strict(FrontEnd::kSm120, "bfloat16"),
            "DeepseekV4 fp8_ds_mla layout only supports fp8 kv-cache, got bfloat16");
  EXPECT_EQ(strict(FrontEnd::kFlashInfer, "fp8_ds_mla"),
            "FLASHINFER_MLA_SPARSE_DSV4 SM10x uses the plain per-tensor FP8 KV layout, not fp8_ds_mla");
  EXPECT_EQ(strict(FrontEnd::kFlashInfer, "fp8_inc"), "kv_cache_dtype not supported");
  EXPECT_EQ(strict(FrontEnd::kSm120, "fp8_inc"), "kv_cache_dtype not supported");
  EXPECT_EQ(strict(FrontEnd::kFlashMla, "fp8_per_tensor"), "kv_cache_dtype not supported");
  for (const char* name : {"fp8", "fp8_e4m3", "fp8_inc", "fp8_ds_mla"})
    EXPECT_EQ(strict(FrontEnd::kFlashMla, name), "no error") << name;
  for (const char* name : {"auto", "bfloat16", "fp8", "fp8_e4m3"})
    EXPECT_EQ(strict(FrontEnd::kFlashInfer, name), "no error") << name;
}

TEST(FrontEnd, IndexerDtypes) {
  EXPECT_EQ(&index_rows("fp8"), &index_fp8_rows());
  EXPECT_EQ(&index_rows("auto"), &index_fp8_rows());
  EXPECT_EQ(&index_rows("mxfp4"), &index_mxfp4_rows());
  EXPECT_EQ(&index_rows("mxfp4", true, 10), &index_mxfp4_rows());
  EXPECT_EQ(
      error_of([] { index_rows("nvfp4"); }),
      "indexer_kv_dtype='nvfp4' is not supported by the DeepSeek sparse indexer (expected one of ('fp8', 'mxfp4')).");
  EXPECT_NE(error_of([] { index_rows("mxfp4", true, 9); }).find("requires Blackwell datacenter GPUs (sm_10x"),
            std::string::npos);
}

TEST(FrontEnd, PaddedHeads) {
  for (const auto& [heads, mla, flashinfer] : std::vector<std::array<std::int64_t, 3>>{
           {1, 64, 8}, {8, 64, 8}, {9, 64, 16}, {33, 64, 64}, {64, 64, 64}, {65, 128, 128}, {128, 128, 128}}) {
    EXPECT_EQ(upstream_padded_heads(FrontEnd::kFlashMla, heads), mla);
    EXPECT_EQ(upstream_padded_heads(FrontEnd::kFlashInfer, heads), flashinfer);
    EXPECT_EQ(upstream_padded_heads(FrontEnd::kSm120, heads), flashinfer);
  }
  EXPECT_EQ(error_of([] { upstream_padded_heads(FrontEnd::kFlashMla, 129); }),
            "DeepseekV4 FlashMLA does not support 129 heads (FP8 decode kernel requires h_q in {64, 128}).");
  EXPECT_EQ(error_of([] { upstream_padded_heads(FrontEnd::kFlashInfer, 256); }),
            "DeepseekV4 FlashInfer MLA Sparse does not support 256 heads (sparse MLA kernel requires h_q in {8, 16, "
            "32, 64, 128}).");
}

TEST(FrontEnd, StrictCalls) {
  const auto refused = [](FrontEnd f, const UpstreamCall& call) {
    return error_of([&] { check_upstream_call(f, call); });
  };
  EXPECT_EQ(
      refused(FrontEnd::kFlashMla, {.tokens = 1, .padded_heads = 64, .window_width = 192, .compressed_width = 512}),
      "no error");
  EXPECT_NE(refused(FrontEnd::kFlashMla, {.tokens = 1, .padded_heads = 128, .window_width = 192})
                .find("got 192, expected a multiple of 128"),
            std::string::npos);
  EXPECT_NE(
      refused(FrontEnd::kFlashInfer, {.tokens = 1, .padded_heads = 64, .window_width = 128, .compressed_width = 6})
          .find("got 134 columns"),
      std::string::npos);
  EXPECT_EQ(refused(FrontEnd::kSm120, {.tokens = 64, .padded_heads = 8, .window_width = 128, .compressed_width = 512}),
            "no error");
  EXPECT_EQ(refused(FrontEnd::kSm120, {.tokens = 8, .padded_heads = 8, .window_width = 320}),
            "FLASHINFER_MLA_SPARSE_DSV4 on SM120 requires a FlashInfer DSV4 sparse MLA decode specialization for "
            "(num_q_heads=8, top_k=320). Install a "
            "FlashInfer build containing flashinfer-ai/flashinfer#4380.");
  // The dispatch at 64 tokens: the prefill kernel takes what the decode kernel has no shape for.
  const UpstreamCall odd{.tokens = 64, .padded_heads = 8, .window_width = 128, .compressed_width = 100};
  EXPECT_NE(refused(FrontEnd::kSm120, odd).find("SM120 sparse-MLA has no decode kernel for this shape: "),
            std::string::npos);
  EXPECT_EQ(refused(FrontEnd::kSm120, {.tokens = 65, .padded_heads = 8, .window_width = 128, .compressed_width = 100}),
            "no error");
}

TEST(FrontEnd, StrictBlocksAndLayouts) {
  check_upstream_blocks(64, 64, 4);
  check_upstream_blocks(128, 2, 128);
  EXPECT_NE(
      error_of([] { check_upstream_blocks(32, 64, 4); }).find("window cache: got 32 tokens, expected a multiple of 64"),
      std::string::npos);
  EXPECT_NE(error_of([] {
              check_upstream_blocks(64, 32, 4);
            }).find("compressed cache: got 32 entries of 4 tokens, expected 256 tokens"),
            std::string::npos);

  const std::vector<LayerConfig> layers{model_preset("tiny").layer(1), model_preset("tiny").layer(2)};
  KvLayout layout = make_kv_layout(layers, {});
  const std::vector<std::string> names{"layers.1.attn", "layers.2.attn"};
  EXPECT_EQ(error_of([&] { check_upstream_layout(layout, names); }), "no error");
  const std::vector<std::string> twice{"layers.1.attn", "layers.1.attn"};
  EXPECT_EQ(error_of([&] { check_upstream_layout(layout, twice); }), "Duplicate layer name: layers.1.attn");
  KvLayout small = layout;
  small.block_stride_bytes = 100;
  EXPECT_EQ(error_of([&] { check_upstream_layout(small, names); }), "max(sm_page_sizes) must be <= block stride");
  layout.groups[1].caches.back().block_size += 1;
  EXPECT_EQ(error_of([&] { check_upstream_layout(layout, names); }),
            "No common block size for " + std::to_string(layout.groups[1].caches.size()) + " layers");
}

TEST(FrontEnd, StrictInsertTexts) {
  constexpr std::int64_t kTokens = 3;
  const QNormRopeInsert::Problem problem{.tokens = kTokens, .heads = 8, .out_heads = 8, .format = &fp8_ds_mla_rows()};
  const auto tensor = [](DType dtype, std::initializer_list<std::int64_t> shape) { return HostTensor(dtype, shape); };
  const HostTensor q = tensor(DType::kBF16, {kTokens, 8, 512});
  const HostTensor kv = tensor(DType::kBF16, {kTokens, 512});
  const HostTensor positions = tensor(DType::kI64, {kTokens});
  const HostTensor cos_sin = tensor(DType::kF32, {16, 64});
  const HostTensor slots = tensor(DType::kI64, {kTokens});
  const QNormRopeInsert::Args good{.q = q.view(),
                                   .kv = kv.view(),
                                   .positions = positions.view(),
                                   .cos_sin = cos_sin.view(),
                                   .slot_mapping = slots.view(),
                                   .q_out = {},
                                   .cache = {.format = &fp8_ds_mla_rows(), .block_size = 64}};
  const auto text = [&](const QNormRopeInsert::Problem& p, const std::function<void(QNormRopeInsert::Args&)>& spoil) {
    QNormRopeInsert::Args args = good;
    spoil(args);
    return error_of([&] { check_upstream_insert(p, args); });
  };
  const auto bad = [&](const std::function<void(QNormRopeInsert::Args&)>& spoil) { return text(problem, spoil); };
  EXPECT_EQ(bad([](auto&) {}), "no error");
  EXPECT_EQ(bad([](auto& a) { a.q.stride[0] += 8; }), "q_in must be contiguous CUDA");
  EXPECT_EQ(bad([](auto& a) { a.kv.stride[0] += 8; }), "kv must be contiguous CUDA");
  EXPECT_EQ(bad([](auto& a) { a.slot_mapping.dtype = DType::kI32; }), "slot_mapping must be int64 CUDA");
  EXPECT_EQ(bad([](auto& a) { a.positions.dtype = DType::kI32; }), "position_ids must be int64 CUDA");
  EXPECT_EQ(bad([&](auto& a) { a.q = kv.view(); }), "q_in shape [N, num_heads_q, 512]");
  EXPECT_EQ(bad([&](auto& a) { a.kv = q.view(); }), "kv shape [N, 512]");
  EXPECT_EQ(bad([](auto& a) { a.kv.dtype = DType::kF32; }), "q_in and kv dtype must match");
  EXPECT_EQ(bad([](auto& a) { a.cache.format = &bf16_rows(); }), "k_cache must be uint8");
  EXPECT_EQ(bad([&](auto& a) { a.cos_sin = kv.view(); }), "cos_sin_cache shape [max_pos, 64]");
  EXPECT_EQ(bad([](auto& a) { a.cos_sin.dtype = DType::kBF16; }), "cos_sin_cache must be float32");
  EXPECT_EQ(bad([](auto& a) { a.positions.shape[0] = 2; }), "q/kv/position_ids row counts must match");
  EXPECT_EQ(bad([](auto& a) { a.slot_mapping.shape[0] = 4; }), "slot_mapping must not exceed q row count");
  QNormRopeInsert::Problem other = problem;
  other.out_heads = 4;
  EXPECT_EQ(text(other, [](auto&) {}), "q_head_padded must be >= q_in.size(1) (num_heads_q)");
  other.out_heads = 24;
  EXPECT_EQ(text(other, [](auto&) {}),
            "unsupported num_heads_q_padded=24 (compiled instantiations: 8, 16, 32, 64, 128).");
  other = problem;
  other.format = &bf16_rows();
  EXPECT_EQ(text(other, [](auto&) {}), "k_cache must be bfloat16");
  other.format = &fp8_per_tensor_rows();
  EXPECT_EQ(text(other, [](auto& a) { a.cache.format = &bf16_rows(); }), "k_cache must be float8_e4m3fn");
}

/// A small layer of one kind, its rope table and one request's caches.
class SmallLayer {
 public:
  explicit SmallLayer(int ratio) {
    config = {.hidden_size = 64,
              .num_heads = 3,
              .q_lora_rank = 32,
              .o_lora_rank = 16,
              .o_groups = 3,
              .compress_ratio = ratio,
              .index_n_heads = 2,
              .index_topk = 128};
    weights = random_weights(config, 3);
    cos_sin = HostTensor(DType::kF32, {512, 64});
    std::ranges::copy(rope_table(config.rope, 512), cos_sin.as<float>());
    pool.emplace_back(std::make_unique<KvPool>(make_kv_layout({&config, 1}, {}), 40));
  }
  AttentionLayer layer(const LayerOptions& options) const { return {config, weights.views, options, cos_sin.view()}; }
  LayerCaches caches() const { return caches_of(*pool[0], 0); }

  LayerConfig config;
  OwnedLayerWeights weights;
  HostTensor cos_sin;
  std::vector<std::unique_ptr<KvPool>> pool;
};

TEST(StrictLayer, PadsHeadsAsUpstreamDoes) {
  const SmallLayer small(1);
  EXPECT_EQ(small.layer({}).options().padded_heads, 3);
  EXPECT_EQ(small.layer({.front_end = FrontEnd::kFlashMla, .strict = true}).options().padded_heads, 64);
  EXPECT_EQ(small.layer({.front_end = FrontEnd::kFlashInfer, .strict = true}).options().padded_heads, 8);
  EXPECT_EQ(small.layer({.padded_heads = 5}).options().padded_heads, 5);
  EXPECT_EQ(error_of([&] { small.layer({.padded_heads = 2}); }),
            "attention layer: padded_heads: got 2, expected 3, the layer's heads, to 128");
  EXPECT_EQ(error_of([&] { small.layer({.score_bytes = -1}); }),
            "attention layer: score_bytes: got -1, expected 0 or more");
}

TEST(StrictLayer, NamesTheMissingMetadata) {
  for (const int ratio : {4, 128}) {
    const SmallLayer small(ratio);
    const HostTensor hidden(DType::kBF16, {1, 64});
    HostTensor output(DType::kBF16, {1, 64});
    const auto text = [&](FrontEnd f, bool strict) {
      const AttentionLayer layer = small.layer({.front_end = f, .strict = strict});
      const LayerPlan plan = layer.plan(1, 1, 200, small.caches());
      const test::AlignedWorkspace memory(plan.workspace_bytes());
      const LayerStep step{.tokens = 1,
                           .requests = 1,
                           .max_seq_len = 200,
                           .split = {.decodes = 1, .decode_tokens = 1},
                           .window_indices = view_of<const std::int32_t>(nullptr, {1, 128})};
      return error_of([&] { layer.forward(plan, step, small.caches(), hidden.view(), output.view(), memory.get()); });
    };
    EXPECT_EQ(text(FrontEnd::kFlashMla, true),
              ratio == 4 ? "missing schedule entry for layer kind c4a" : "missing schedule entry for layer kind c128a");
    EXPECT_EQ(text(FrontEnd::kSm120, true), "Sparse MLA metadata is required for compressed layers.");
    EXPECT_NE(text(FrontEnd::kFlashMla, false).find("entry_lens and entry_slots of the step: got none"),
              std::string::npos);
  }
}

TEST(Layer, DummyRunWritesNothingAndGivesZeros) {
  for (const int ratio : {1, 4, 128}) {
    for (const FrontEnd f : {FrontEnd::kFlashMla, FrontEnd::kFlashInfer, FrontEnd::kSm120}) {
      const SmallLayer small(ratio);
      const AttentionLayer layer = small.layer({.front_end = f, .padded_heads = 8});
      constexpr std::int64_t kTokens = 7;
      const LayerPlan plan = layer.plan(kTokens, 2, 300, small.caches());
      const test::AlignedWorkspace memory(plan.workspace_bytes());
      HostTensor hidden(DType::kBF16, {kTokens, 64});
      for (std::int64_t t = 0; t < kTokens; ++t) synthetic_hidden(1, 0, 0, t, hidden.view().slice(0, t, t + 1));
      HostTensor output(DType::kBF16, {kTokens, 64});
      std::fill_n(output.as<BF16>(), output.numel(), to_bf16(3.0F));
      const PagedCache window = small.caches()[CacheRole::kWindow];
      const std::vector<std::uint8_t> before(window.base, window.base + window.num_blocks * window.block_stride_bytes);
      layer.dummy_run(plan, hidden.view(), output.view(), memory.get());
      for (std::int64_t i = 0; i < output.numel(); ++i) ASSERT_EQ(to_float(output.as<BF16>()[i]), 0.0F);
      EXPECT_TRUE(std::equal(before.begin(), before.end(), window.base));
    }
  }
}

}  // namespace
}  // namespace smla
