// A request that is saved, loaded into another pool and continued gives the bits of one that was never interrupted.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "property/layer_harness.h"
#include "sparsemla/error.h"
#include "sparsemla/snapshot.h"

namespace smla::test {
namespace {

/// A window-only, a C4A and a C128A layer.
struct Stack {
  std::vector<LayerConfig> configs;
  std::vector<OwnedLayerWeights> weights;
  std::vector<HostTensor> ropes;
  std::vector<AttentionLayer> layers;

  explicit Stack(const LayerOptions& options, const std::vector<int>& ratios = {0, 4, 128}) {
    for (const int ratio : ratios) configs.push_back(small_layer(ratio));
    for (const LayerConfig& config : configs) {
      weights.push_back(random_weights(config, 21 + weights.size()));
      ropes.emplace_back(DType::kF32, std::vector<std::int64_t>{kLongest, config.rope_head_dim});
      std::ranges::copy(rope_table(config.rope, kLongest), ropes.back().as<float>());
    }
    for (std::size_t i = 0; i < configs.size(); ++i)
      layers.emplace_back(configs[i], weights[i].views, options, std::as_const(ropes[i]).view());
  }
  KvLayout layout() const { return make_kv_layout(configs, layers[0].options().caches); }

  static constexpr std::int64_t kLongest = 2048;
};

/// The same caches in other groups: each sliding cache has one of its own, all lie in the opposite order and further
/// apart.
KvLayout split_groups(const KvLayout& layout) {
  KvLayout out = layout;
  out.groups.clear();
  for (const CacheGroup& group : layout.groups) {
    CacheGroup other = group;
    other.caches.clear();
    other.page_bytes = 64;
    for (auto cache = group.caches.rbegin(); cache != group.caches.rend(); ++cache) {
      other.caches.push_back(*cache);
      other.caches.back().offset_bytes = other.page_bytes;
      other.page_bytes += cache->page_bytes;
      if (!group.sliding()) continue;
      out.groups.push_back(other);
      other.caches.clear();
      other.page_bytes = 64;
    }
    if (!group.sliding()) out.groups.push_back(other);
  }
  out.block_stride_bytes = layout.block_stride_bytes + 128;
  return out;
}

/// Takes and returns blocks in a random order, so that the next ones come from all over the pool.
void shuffle_blocks(KvPool& pool, unsigned seed) {
  std::vector<std::int32_t> blocks;
  while (const std::optional<std::int32_t> block = pool.allocate(0)) blocks.push_back(*block);
  std::mt19937 random(seed);
  std::ranges::shuffle(blocks, random);
  for (const std::int32_t block : blocks) pool.release(0, block);
}

/// Feeds positions [begin, end) of one request in pieces of at most `chunk`; appends each layer's output bytes. The
/// last `rejected` rows of a piece that ends at `end` stand for drafts: other inputs, not counted.
void feed(const Stack& stack, KvPool& pool, RequestBlocks& blocks, std::int64_t begin, std::int64_t end,
          std::int64_t chunk, std::vector<std::uint8_t>& out, std::int64_t drafts = 0) {
  StepMetadata metadata(pool.layout(), stack.configs);
  for (std::int64_t at = begin; at < end; at += chunk) {
    const std::int64_t accepted = std::min(chunk, end - at);
    const std::int64_t tokens = accepted + (at + chunk >= end ? drafts : 0);
    ASSERT_TRUE(blocks.reserve(pool, at, at + tokens));
    const std::vector<std::int32_t> loc{0, static_cast<std::int32_t>(tokens)};
    const std::vector<std::int32_t> seq{static_cast<std::int32_t>(at + tokens)};
    std::vector<std::int64_t> positions(static_cast<std::size_t>(tokens));
    std::iota(positions.begin(), positions.end(), at);
    StepBatch batch{.query_start_loc = view_of(loc.data(), {2}),
                    .seq_lens = view_of(seq.data(), {1}),
                    .positions = view_of(std::as_const(positions).data(), {tokens}),
                    .block_tables = {},
                    .max_seq_len = at + tokens};
    for (int g = 0; g < blocks.num_groups(); ++g) {
      const auto table = blocks.table(g);
      batch.block_tables.push_back(view_of(table.data(), {1, static_cast<std::int64_t>(table.size())}));
    }
    metadata.build(batch);
    for (std::size_t i = 0; i < stack.layers.size(); ++i) {
      const AttentionLayer& layer = stack.layers[i];
      const auto index = static_cast<std::int64_t>(i);
      const LayerCaches caches = caches_of(pool, index);
      const DType act = layer.options().precision == Precision::kF32 ? DType::kF32 : DType::kBF16;
      HostTensor x(act, {tokens, layer.config().hidden_size});
      HostTensor y(act, {tokens, layer.config().hidden_size});
      for (std::int64_t t = 0; t < tokens; ++t)
        synthetic_hidden(3, t < accepted ? 0 : 1, index, at + t, x.view().slice(0, t, t + 1));
      const LayerPlan plan = layer.plan(metadata.shape(), caches);
      HostTensor workspace(DType::kU8, {static_cast<std::int64_t>(plan.workspace_bytes())});
      layer.forward(plan, metadata.layer(index), caches, std::as_const(x).view(), y.view(),
                    {.data = workspace.data(), .bytes = workspace.bytes()});
      const auto* bytes = static_cast<const std::uint8_t*>(y.data());
      out.insert(out.end(), bytes,
                 bytes + y.bytes() / static_cast<std::size_t>(tokens) * static_cast<std::size_t>(accepted));
    }
    blocks.slide(pool, at + accepted);
  }
}

LayerOptions options_of(const RowFormat& rows, const RowFormat& index = index_fp8_rows()) {
  LayerOptions options;
  options.caches = {.rows = &rows, .index = &index, .kv_scale = rows.scale == ScaleKind::kPerTensor ? 0.25F : 1.0F};
  options.threads = 1;
  return options;
}

/// Saves after `cut` positions, goes on for `more` here and on another pool; both must agree. Returns the snapshot.
std::vector<std::uint8_t> check_cut(const Stack& stack, std::int64_t cut, std::int64_t more, std::int64_t chunk,
                                    unsigned seed, std::int64_t drafts = 0) {
  KvPool here(stack.layout(), 150);
  RequestBlocks blocks(here.layout());
  std::vector<std::uint8_t> before;
  feed(stack, here, blocks, 0, cut, 97, before, drafts);
  const std::vector<std::uint8_t> note{1, 2, 3};
  std::vector<std::uint8_t> snapshot = save_snapshot(here, blocks, cut, note);
  std::vector<std::uint8_t> want;
  feed(stack, here, blocks, cut, cut + more, chunk, want);

  KvPool there(seed % 2 == 0 ? stack.layout() : split_groups(stack.layout()), 220);
  shuffle_blocks(there, seed);
  RequestBlocks moved(there.layout());
  const SnapshotInfo info = load_snapshot(snapshot, there, moved);
  EXPECT_EQ(info.tokens, cut);
  EXPECT_EQ(info.note, note);
  EXPECT_EQ(save_snapshot(there, moved, cut, note), snapshot) << "the same state, other blocks";
  std::vector<std::uint8_t> got;
  feed(stack, there, moved, cut, cut + more, chunk, got);
  EXPECT_TRUE(got == want) << "cut " << cut << " seed " << seed;
  moved.clear(there);
  EXPECT_EQ(there.free_blocks(), there.num_blocks());
  return snapshot;
}

TEST(SnapshotProperty, EveryResidueOfACompressGroupGoesOnBitForBit) {
  const Stack stack(options_of(fp8_ds_mla_rows()));
  for (std::int64_t cut = 256; cut < 256 + 8; ++cut) check_cut(stack, cut, 9, 1, static_cast<unsigned>(cut));
  for (const std::int64_t residue : {1, 2, 31, 63, 64, 65, 100, 126, 127}) {
    check_cut(stack, 128 + residue, 130 - residue, 3, static_cast<unsigned>(residue));  // past the group's last token
    ASSERT_FALSE(HasFailure());
  }
}

TEST(SnapshotProperty, EveryFormatGoesOnBitForBit) {
  for (const RowFormat* rows : {&bf16_rows(), &fp8_per_tensor_rows(), &fp8_ds_mla_rows()}) {
    for (const RowFormat* index : {&index_fp8_rows(), &index_mxfp4_rows()}) {
      const Stack stack(options_of(*rows, *index));
      check_cut(stack, 390, 7, 2, 4);
      check_cut(stack, 191, 7, 7, 5);
      ASSERT_FALSE(HasFailure()) << rows->name << " " << index->name;
    }
  }
  LayerOptions floats;
  floats.precision = Precision::kF32;
  floats.caches = {.rows = &f32_rows(), .index = &index_f32_rows()};
  floats.threads = 1;
  check_cut(Stack(floats), 303, 5, 5, 7);
}

TEST(SnapshotProperty, ShortAndEmptyRequests) {
  const Stack stack(options_of(fp8_ds_mla_rows()));
  for (const std::int64_t cut : {0, 1, 3, 4, 63, 64, 65}) check_cut(stack, cut, 70, 70, static_cast<unsigned>(cut));
  check_cut(Stack(options_of(fp8_ds_mla_rows()), {0}), 1000, 3, 3, 1);
  check_cut(Stack(options_of(fp8_ds_mla_rows()), {4, 4, 0, 4}), 259, 8, 3, 1);
}

// What rejected drafts left behind the last position is no part of the state.
TEST(SnapshotProperty, RejectedDraftsLeaveNoTrace) {
  const Stack stack(options_of(fp8_ds_mla_rows()));
  for (const std::int64_t cut : {61, 126, 254}) {
    const std::vector<std::uint8_t> plain = check_cut(stack, cut, 6, 1, 3);
    EXPECT_TRUE(check_cut(stack, cut, 6, 1, 3, 5) == plain) << cut;
  }
}

TEST(SnapshotProperty, AnyCutAndChunk) {
  const Stack stack(options_of(fp8_ds_mla_rows()));
  EXPECT_TRUE(rc::check([&] {
    const auto cut = *rc::gen::inRange<std::int64_t>(0, 600);
    const auto more = *rc::gen::inRange<std::int64_t>(1, 20);
    const auto chunk = *rc::gen::inRange<std::int64_t>(1, 20);
    check_cut(stack, cut, more, chunk, *rc::gen::arbitrary<unsigned>());
    RC_ASSERT(!HasFailure());
  }));
}

TEST(SnapshotProperty, TwoRequestsMoveTogether) {
  const Stack stack(options_of(fp8_ds_mla_rows()));
  KvPool pool(stack.layout(), 250);
  RequestBlocks first(pool.layout());
  RequestBlocks second(pool.layout());
  std::vector<std::uint8_t> ignored;
  feed(stack, pool, first, 0, 150, 150, ignored);
  const std::vector<std::uint8_t> snapshot = save_snapshot(pool, first, 150);
  feed(stack, pool, second, 0, 77, 77, ignored);
  const std::vector<std::uint8_t> other = save_snapshot(pool, second, 77);
  // Into the pool that it came from, beside its original.
  RequestBlocks copy(pool.layout());
  load_snapshot(snapshot, pool, copy);
  std::vector<std::uint8_t> a;
  std::vector<std::uint8_t> b;
  feed(stack, pool, first, 150, 160, 5, a);
  feed(stack, pool, copy, 150, 160, 5, b);
  EXPECT_TRUE(a == b);
  EXPECT_TRUE(save_snapshot(pool, second, 77) == other) << "a neighbour was touched";
}

}  // namespace
}  // namespace smla::test
