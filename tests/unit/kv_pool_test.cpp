#include "sparsemla/kv_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "sparsemla/error.h"
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
  EXPECT_THROW(pool.release(1, 99), InvalidArgument);
  pool.release(0, *blocks.begin());
  EXPECT_THROW(pool.release(0, *blocks.begin()), InvalidArgument) << "twice";
  EXPECT_EQ(pool.free_blocks(), 1);
  EXPECT_EQ(pool.peak(0), 3);
  EXPECT_EQ(pool.held(0), 2);
  EXPECT_THROW(KvPool(pool.layout(), -1), InvalidArgument);
  EXPECT_THROW((void)pool.cache(0, CacheRole::kIndex), InvalidArgument);
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
