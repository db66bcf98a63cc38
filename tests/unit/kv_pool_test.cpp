#include "sparsemla/kv_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "sparsemla/error.h"
#include "sparsemla/op.h"
#include "sparsemla/ops/index.h"
#include "sparsemla/plan.h"

namespace smla {
namespace {

std::vector<LayerConfig> flash_layers(std::initializer_list<std::int64_t> indices) {
  const ModelConfig flash = model_preset("v4-flash");
  std::vector<LayerConfig> out;
  for (const std::int64_t i : indices) out.push_back(flash.layer(i));
  return out;
}

// Page sizes of spec 5.4 and 3, through the layout that uses them.
TEST(KvLayout, PagesOfTheSpec) {
  const auto page = [](const RowFormat& rows, const RowFormat& index, std::int64_t layer, CacheRole role) {
    const auto layers = flash_layers({0, 2, 3});
    return make_kv_layout(layers, {.rows = &rows, .index = &index}).find(layer, role)->page_bytes;
  };
  EXPECT_EQ(page(fp8_ds_mla_rows(), index_fp8_rows(), 0, CacheRole::kWindow), 37440);
  EXPECT_EQ(page(fp8_ds_mla_rows(), index_fp8_rows(), 1, CacheRole::kCompressed), 37440);
  EXPECT_EQ(page(fp8_ds_mla_rows(), index_fp8_rows(), 2, CacheRole::kCompressed), 1728);
  EXPECT_EQ(page(fp8_ds_mla_rows(), index_fp8_rows(), 1, CacheRole::kIndex), 8640);
  EXPECT_EQ(page(fp8_ds_mla_rows(), index_mxfp4_rows(), 1, CacheRole::kIndex), 4608);
  EXPECT_EQ(page(fp8_ds_mla_rows(), index_fp8_rows(), 1, CacheRole::kState), 32832);
  EXPECT_EQ(page(fp8_ds_mla_rows(), index_fp8_rows(), 2, CacheRole::kState), 32832);
  EXPECT_EQ(page(fp8_ds_mla_rows(), index_fp8_rows(), 1, CacheRole::kIndexState), 8640);
  EXPECT_EQ(page(bf16_rows(), index_fp8_rows(), 0, CacheRole::kWindow), 65536);
  EXPECT_EQ(page(bf16_rows(), index_fp8_rows(), 2, CacheRole::kCompressed), 2048);
  EXPECT_EQ(page(bf16_rows(), index_fp8_rows(), 1, CacheRole::kIndex), 8704);
  EXPECT_EQ(page(bf16_rows(), index_fp8_rows(), 1, CacheRole::kState), 32768);
  EXPECT_EQ(page(bf16_rows(), index_fp8_rows(), 1, CacheRole::kIndexState), 8192);
  EXPECT_EQ(page(fp8_per_tensor_rows(), index_fp8_rows(), 0, CacheRole::kWindow), 32768);
  EXPECT_EQ(page(fp8_per_tensor_rows(), index_fp8_rows(), 2, CacheRole::kCompressed), 1024);
}

TEST(KvLayout, WholeFlashStackSharesOneSlab) {
  const ModelConfig flash = model_preset("v4-flash");
  std::vector<LayerConfig> layers;
  for (std::int64_t i = 0; i < flash.num_layers; ++i) layers.push_back(flash.layer(i));
  const KvLayout layout = make_kv_layout(layers, {});
  EXPECT_EQ(layout.groups[0].page_bytes, 21 * (37440 + 8640) + 20 * 1728);
  std::set<std::pair<std::int64_t, CacheRole>> seen;
  for (const CacheGroup& group : layout.groups) {
    EXPECT_LE(group.page_bytes, layout.block_stride_bytes);
    std::int64_t end = 0;
    for (const LayerCache& c : group.caches) {
      EXPECT_EQ(c.offset_bytes, end) << "caches of a group neither overlap nor leave holes";
      end += c.page_bytes;
      EXPECT_TRUE(seen.emplace(c.layer, c.role).second);
    }
  }
  EXPECT_EQ(seen.size(), 43U + 21U * 4 + 20U * 2);
  // Sliding groups were cut to about the full group's size, so that the slab wastes little.
  EXPECT_LT(layout.block_stride_bytes, 2 * layout.groups[0].page_bytes);
}

TEST(KvPool, ZeroesNewBlocksButNotTheirNeighbours) {
  const auto layers = flash_layers({0, 2, 3});
  KvPool pool(make_kv_layout(layers, {}), 3);
  const int window = pool.layout().group_of(0, CacheRole::kWindow);
  const PagedCache cache = pool.cache(0, CacheRole::kWindow);
  for (std::int64_t b = 0; b < 3; ++b)
    std::fill_n(cache.block(b), block_bytes(*cache.format, cache.block_size), std::uint8_t{0xAB});
  const std::int32_t block = *pool.allocate(window);
  for (std::int64_t b = 0; b < 3; ++b) {
    const std::uint8_t expected = b == block ? 0 : 0xAB;
    for (std::int64_t i = 0; i < block_bytes(*cache.format, cache.block_size); ++i)
      ASSERT_EQ(cache.block(b)[i], expected) << b << " " << i;
  }
}

TEST(KvPool, GivesEachBlockOnceAndTakesItBack) {
  const auto layers = flash_layers({0, 2, 3});
  KvPool pool(make_kv_layout(layers, {}), 5);
  std::set<std::int32_t> blocks;
  for (int i = 0; i < 5; ++i) blocks.insert(*pool.allocate(i % 2));
  EXPECT_EQ(blocks.size(), 5U);
  EXPECT_FALSE(pool.allocate(0).has_value());
  const auto error_of = [](const auto& f) -> std::string {
    try {
      f();
    } catch (const InvalidArgument& e) {
      return e.what();
    }
    return "no error";
  };
  const std::string full = "expected one held by group full";
  EXPECT_EQ(error_of([&] { pool.release(0, 99); }), "kv pool: release: got block 99, which is none of 1 to 5, " + full);
  EXPECT_EQ(error_of([&] { pool.release(0, kNullBlock); }), "kv pool: release: got block 0, the null block, " + full);
  EXPECT_EQ(error_of([&] { pool.release(0, 2); }), "kv pool: release: got block 2, held by group window/0, " + full);
  pool.release(0, 1);
  EXPECT_EQ(error_of([&] { pool.release(0, 1); }), "kv pool: release: got block 1, which is free, " + full) << "twice";
  EXPECT_EQ(error_of([&] { pool.share(0, 1); }), "kv pool: share: got block 1, which is free, " + full);
  EXPECT_EQ(pool.free_blocks(), 1);
  EXPECT_EQ(pool.peak(0), 3);
  EXPECT_EQ(pool.held(0), 2);
  EXPECT_THROW(KvPool(pool.layout(), -1), InvalidArgument);
  EXPECT_THROW((void)pool.cache(0, CacheRole::kIndex), InvalidArgument);
}

// A negative table entry is block 0 to those who look up compressed slots (spec 5.5): what they then write must be
// nobody's.
TEST(KvPool, NoRequestHoldsTheNullBlock) {
  const auto layers = flash_layers({0, 2, 3});
  KvPool pool(make_kv_layout(layers, {}), 7);
  const PagedCache entries = pool.cache(1, CacheRole::kCompressed);
  const std::vector<std::int32_t> loc{0, 4}, lens{4}, table{-1};
  std::vector<std::int64_t> slots(4);
  Plan<CompressedSlotMapping>({.requests = 1, .tokens = 4, .ratio = 4, .storage_block = entries.block_size})
      .run({.query_start_loc = view_of(loc.data(), {2}),
            .seq_lens = view_of(lens.data(), {1}),
            .block_table = view_of(table.data(), {1, 1}),
            .slots = view_of(slots.data(), {4})},
           {});
  EXPECT_THAT(slots, testing::ElementsAre(-1, -1, -1, 0));
  while (const auto block = pool.allocate(0)) EXPECT_NE(*block, slots[3] / entries.block_size);
  EXPECT_EQ(entries.num_blocks, 8) << "the null block is memory, too";
}

TEST(KvPool, ABlockOfSeveralOwnersIsFreeAfterTheLast) {
  KvPool pool(make_kv_layout(flash_layers({0}), {}), 2);
  const std::int32_t block = *pool.allocate(0);
  pool.share(0, block);
  EXPECT_EQ(pool.blocks().owners(block), 2);
  EXPECT_EQ(pool.held(0), 1) << "blocks are counted once";
  pool.release(0, block);
  EXPECT_EQ(pool.free_blocks(), 1);
  pool.release(0, block);
  EXPECT_EQ(pool.free_blocks(), 2);
  EXPECT_EQ(pool.blocks().owners(block), 0);
}

TEST(RequestBlocks, NewBlocksOfSeveralRequestsAreZeroedTogether) {
  KvPool pool(make_kv_layout(flash_layers({0}), {}), 6);
  const PagedCache cache = pool.cache(0, CacheRole::kWindow);
  const auto bytes = block_bytes(*cache.format, cache.block_size);
  for (std::int64_t b = 0; b < cache.num_blocks; ++b) std::fill_n(cache.block(b), bytes, std::uint8_t{0xAB});
  std::vector<RequestBlocks> requests(3, RequestBlocks(pool.layout()));
  std::vector<GroupBlock> fresh;
  EXPECT_TRUE(requests[0].reserve(pool, 0, 65, &fresh));
  EXPECT_TRUE(requests[1].reserve(pool, 0, 64, &fresh));
  EXPECT_FALSE(requests[2].reserve(pool, 0, 256, &fresh)) << "three blocks are left";
  ASSERT_EQ(fresh.size(), 3U) << "what was given back is not in the list";
  for (const GroupBlock& b : fresh) EXPECT_EQ(cache.block(b.block)[0], 0xAB);
  pool.zero(fresh);
  for (std::int32_t b = 1; b < cache.num_blocks; ++b) {
    const bool taken = std::ranges::any_of(fresh, [b](const GroupBlock& f) { return f.block == b; });
    EXPECT_EQ(std::count(cache.block(b), cache.block(b) + bytes, taken ? 0 : 0xAB), bytes) << b;
  }
}

TEST(RequestBlocks, ReservesAllOrNothingAndSlidesTheWindow) {
  const auto layers = flash_layers({0, 2, 3});
  KvPool pool(make_kv_layout(layers, {}), 2000);
  RequestBlocks blocks(pool.layout());
  EXPECT_TRUE(blocks.reserve(pool, 0, 1000));
  const int window = pool.layout().group_of(0, CacheRole::kWindow);
  EXPECT_EQ(blocks.table(window).size(), 16U);
  blocks.slide(pool, 1000);  // positions 873.. stay: blocks 13, 14, 15
  for (std::size_t c = 0; c < 16; ++c) EXPECT_EQ(blocks.table(window)[c] >= 0, c >= 13) << c;
  const std::int64_t before = pool.free_blocks();
  EXPECT_FALSE(blocks.reserve(pool, 1000, 100000));
  EXPECT_EQ(pool.free_blocks(), before);
  blocks.clear(pool);
  EXPECT_EQ(pool.free_blocks(), 2000);
}

TEST(Plan, SplitsDecodesFromPrefills) {
  const std::vector<std::int32_t> loc{0, 1, 2, 2, 4, 9};
  EXPECT_EQ(split_batch(loc, 1), (BatchSplit{.decodes = 3, .prefills = 2, .decode_tokens = 2, .prefill_tokens = 7}));
  EXPECT_EQ(split_batch(loc, 2), (BatchSplit{.decodes = 4, .prefills = 1, .decode_tokens = 4, .prefill_tokens = 5}));
  EXPECT_EQ(split_batch(loc, 2, true),
            (BatchSplit{.decodes = 3, .prefills = 2, .decode_tokens = 2, .prefill_tokens = 7}));
  EXPECT_EQ(split_batch(loc, 9), (BatchSplit{.decodes = 5, .prefills = 0, .decode_tokens = 9, .prefill_tokens = 0}));
  EXPECT_EQ(split_batch(std::vector<std::int32_t>{0}, 1), BatchSplit{});
  EXPECT_THROW(split_batch(std::vector<std::int32_t>{0, 3, 2}, 1), InvalidArgument);
  EXPECT_EQ(dense_width(1048576), 8192);
  EXPECT_EQ(dense_width(1), 128);
  EXPECT_EQ(block_table_width(1000, 64), 16);
  EXPECT_EQ(block_table_width(1000, 4), 256);
  EXPECT_EQ(visible_entries(2, 4), 0);
  EXPECT_EQ(visible_entries(3, 4), 1);
  EXPECT_EQ(visible_entries(127, 128), 1);
}

}  // namespace
}  // namespace smla
