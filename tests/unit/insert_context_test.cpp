// Rows of a draft layer's context, written without queries.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "engine/synthetic.h"
#include "property/small_model.h"
#include "sparsemla/kv_pool.h"
#include "sparsemla/layer.h"
#include "sparsemla/validate.h"

namespace smla {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kTokens = 70;
constexpr std::int64_t kBlocks = 3;

/// One request of 70 tokens from position 60 on, in blocks 2, 3 and 1, and two padding tokens.
struct Context {
  explicit Context(const LayerConfig& config, const LayerOptions& given = {})
      : options(effective_options(given)),
        weights(random_weights(config, 3)),
        rope(rope_table(config.rope, 300)),
        layer(config, weights.views, options, view_of(std::as_const(rope).data(), {300, 64})),
        layout(make_kv_layout({&config, 1}, options.caches)),
        metadata(layout, {&config, 1}),
        hidden(options.precision == Precision::kF32 ? DType::kF32 : DType::kBF16, {kTokens + 2, config.hidden_size}) {
    for (std::int64_t t = 0; t < kTokens; ++t) {
      positions[static_cast<std::size_t>(t)] = 60 + t;
      synthetic_hidden(1, 0, 0, t, hidden.view().slice(0, t, t + 1));
    }
    metadata.build({.query_start_loc = view_of(start.data(), {2}),
                    .seq_lens = view_of(seq.data(), {1}),
                    .positions = view_of(std::as_const(positions).data(), {kTokens + 2}),
                    .block_tables = {view_of(blocks.data(), {1, 3})},
                    .max_seq_len = 130});
  }

  /// The slab after `write` into an empty one.
  std::vector<std::uint8_t> rows_of(const std::function<void(const LayerCaches&)>& write) {
    KvPool pool(layout, kBlocks);
    const PagedCache cache = pool.cache(0, CacheRole::kWindow);
    const std::int64_t bytes = cache.num_blocks * cache.block_stride_bytes;
    std::memset(cache.base, 0, static_cast<std::size_t>(bytes));
    write(caches_of(pool, 0));
    return {cache.base, cache.base + bytes};
  }
  std::vector<std::uint8_t> forward_rows() {
    return rows_of([&](const LayerCaches& caches) {
      const LayerPlan plan = layer.plan(metadata.shape(), caches);
      std::vector<std::uint8_t> memory(plan.workspace_bytes() + 64);
      HostTensor out(hidden.dtype(), {kTokens + 2, hidden.size(1)});
      layer.forward(plan, metadata.layer(0), caches, hidden.view(), out.view(), aligned(memory));
    });
  }
  std::vector<std::uint8_t> context_rows() {
    return rows_of([&](const LayerCaches& caches) {
      std::vector<std::uint8_t> memory(layer.context_bytes(kTokens + 2) + 64);
      const LayerStep step = metadata.layer(0);
      layer.insert_context(hidden.view(), step.positions, step.window_slots, caches[CacheRole::kWindow],
                           aligned(memory));
    });
  }
  static Workspace aligned(std::vector<std::uint8_t>& memory) {
    const auto at = reinterpret_cast<std::uintptr_t>(memory.data());
    const std::size_t skip = (64 - at % 64) % 64;
    return {.data = memory.data() + skip, .bytes = memory.size() - 64};
  }

  LayerOptions options;
  OwnedLayerWeights weights;
  std::vector<float> rope;
  AttentionLayer layer;
  KvLayout layout;
  StepMetadata metadata;
  HostTensor hidden;
  std::vector<std::int64_t> positions = std::vector<std::int64_t>(kTokens + 2, 0);
  const std::vector<std::int32_t> start{0, kTokens}, seq{60 + kTokens}, blocks{2, 3, 1};
};

TEST(InsertContext, RowsAreThoseOfAForward) {
  const LayerConfig config = test::small_model().layer(0);
  for (const RowFormat* rows : {&fp8_ds_mla_rows(), &bf16_rows(), &fp8_per_tensor_rows()}) {
    SCOPED_TRACE(rows->name);
    Context context(config, {.caches = {.rows = rows, .kv_scale = rows == &fp8_per_tensor_rows() ? 0.02F : 1.0F},
                             .deterministic = true});
    const auto want = context.forward_rows();
    EXPECT_EQ(context.context_rows(), want);
    EXPECT_NE(want, context.rows_of([](const LayerCaches&) {})) << "rows were written";
  }
  Context exact(config, {.precision = Precision::kF32, .deterministic = true});
  EXPECT_EQ(exact.context_rows(), exact.forward_rows());
}

TEST(InsertContext, NamesWhatDoesNotFit) {
  const ModelConfig model = test::small_model();
  Context context(model.layer(0));
  std::vector<std::uint8_t> memory(context.layer.context_bytes(kTokens + 2) + 64);
  const LayerStep step = context.metadata.layer(0);
  const auto error_of = [&](const AttentionLayer& layer, const ConstTensorView& hidden, const ConstTensorView& slots,
                            std::size_t bytes) -> std::string {
    Workspace lent = Context::aligned(memory);
    lent.bytes = bytes;
    try {
      layer.insert_context(hidden, step.positions, slots, {.format = &fp8_ds_mla_rows(), .block_size = 64}, lent);
    } catch (const InvalidArgument& e) {
      return e.what();
    }
    return "no error";
  };
  const ConstTensorView hidden = std::as_const(context.hidden).view();
  EXPECT_THAT(error_of(context.layer, hidden, step.window_slots, 0),
              HasSubstr("insert_context: workspace: got 0 bytes, expected at least "));
  EXPECT_THAT(error_of(context.layer, hidden, step.window_slots.slice(0, 0, 5), memory.size()), HasSubstr("slots"));
  EXPECT_THAT(error_of(context.layer, hidden.slice(1, 0, 16), step.window_slots, memory.size()), HasSubstr("hidden"));
  const LayerConfig c4a = model.layer(1);
  const OwnedLayerWeights weights = random_weights(c4a, 3);
  const std::vector<float> rope = rope_table(c4a.rope, 300);
  const AttentionLayer other(c4a, weights.views, {}, view_of(rope.data(), {300, 64}));
  EXPECT_THAT(error_of(other, hidden, step.window_slots, memory.size()),
              HasSubstr("layer: got one of compress_ratio 4, expected a window-only layer"));
}

/// A block that begins at any position finds `window` tokens before it, in the tables of a request that slides.
TEST(DraftBlocks, EveryBlockFindsItsWindow) {
  const LayerConfig config = test::small_model().layer(0);
  for (const bool kept : {true, false}) {
    const KvLayout layout = make_kv_layout({&config, 1}, {.draft_blocks = kept});
    KvPool pool(layout, 100);
    RequestBlocks request(layout);
    int missing = 0;
    for (std::int64_t begin = 0; begin < 400; ++begin) {
      ASSERT_TRUE(request.reserve(pool, begin, begin + 5));
      const std::vector<std::int32_t> start{0, 5}, seq{static_cast<std::int32_t>(begin + 5)};
      std::vector<std::int64_t> positions;
      for (std::int64_t t = 0; t < 5; ++t) positions.push_back(begin + t);
      const std::span<const std::int32_t> table = request.table(0);
      StepBatch batch{.query_start_loc = view_of(start.data(), {2}),
                      .seq_lens = view_of(seq.data(), {1}),
                      .positions = view_of(std::as_const(positions).data(), {5}),
                      .block_tables = {view_of(table.data(), {1, std::ssize(table)})},
                      .max_seq_len = begin + 5,
                      .decode_threshold = 5,
                      .causal = false,
                      .dspark_tokens = 5};
      try {
        validate(batch, layout, 101, 500);
      } catch (const InvalidArgument&) {
        ++missing;
        EXPECT_EQ(begin % 64, 63) << "there the first row is the last of a block that no causal query needs";
      }
      batch.causal = true;
      EXPECT_NO_THROW(validate(batch, layout, 101, 500));
      request.slide(pool, begin + 1);
    }
    EXPECT_EQ(missing, kept ? 0 : 4) << "at 191, 255, 319 and 383";
    EXPECT_LE(pool.peak(0), max_blocks(layout.groups[0], 405, 5));
  }
}

}  // namespace
}  // namespace smla
