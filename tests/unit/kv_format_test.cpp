#include "sparsemla/kv_format.h"

#include <gtest/gtest.h>

#include <string>

#include "cache/row_codec.h"
#include "sparsemla/error.h"

namespace smla {
namespace {

TEST(KvFormat, PageSizesOfTheCacheTable) {
  struct Row {
    const char* format;
    std::int64_t block_size;
    std::int64_t raw;
    std::int64_t page;
  };
  // Spec 5.4, 4.4 and 3: entries stored in a block, bytes, bytes of the page.
  for (const Row& row :
       {Row{"fp8_ds_mla", 64, 37376, 37440}, Row{"fp8_ds_mla", 2, 1168, 1728}, Row{"bf16", 64, 65536, 65536},
        Row{"bf16", 2, 2048, 2048}, Row{"fp8_per_tensor", 64, 32768, 32768}, Row{"fp8_per_tensor", 2, 1024, 1024},
        Row{"index_fp8", 64, 8448, 8640}, Row{"index_fp8_ue8m0", 64, 8448, 8640}, Row{"index_mxfp4", 64, 4352, 4608},
        Row{"state_c4", 4, 32768, 32832}, Row{"state_c128", 8, 32768, 32832}, Row{"state_index", 4, 8192, 8640},
        Row{"fp8_v32", 64, 64 * 656, 64 * 656}}) {
    const RowFormat& format = row_format(row.format);
    EXPECT_EQ(block_bytes(format, row.block_size), row.raw) << row.format;
    EXPECT_EQ(page_bytes(format, row.block_size), row.page) << row.format;
  }
}

TEST(KvFormat, NumbersOfEachFormatAgree) {
  for (const RowFormat* f : all_row_formats()) {
    EXPECT_EQ(&row_format(f->name), f);
    const auto bits = [](Element e) {
      return e == Element::kF32 ? 32 : e == Element::kBF16 ? 16 : e == Element::kE4M3 ? 8 : 4;
    };
    EXPECT_EQ((f->data_bytes - f->inline_scale_bytes) * 8, f->nope_dim * bits(f->nope) + f->rope_dim() * bits(f->rope))
        << f->name;
    EXPECT_TRUE(f->scale_bytes == 0 || f->inline_scale_bytes == 0) << f->name;
    const int scale_bytes = f->scale == ScaleKind::kUe8m0 ? f->groups()
                            : f->scale == ScaleKind::kF32 ? 4 * f->groups()
                                                          : 0;
    const int place = f->scale_bytes + f->inline_scale_bytes;
    EXPECT_GE(place, scale_bytes) << f->name;
    EXPECT_LT(place - scale_bytes, 8) << f->name;
    if (f->group > 0) {
      EXPECT_EQ(f->nope_dim % f->group, 0) << f->name;
    }
    EXPECT_GT(f->page_alignment, 0) << f->name;
  }
}

TEST(KvFormat, StateRowsByShape) {
  EXPECT_EQ(state_rows(512, 2).name, "state_c4");
  EXPECT_EQ(state_rows(512, 1).name, "state_c128");
  EXPECT_EQ(state_rows(128, 2).name, "state_index");
  EXPECT_THROW(state_rows(128, 1), InvalidArgument);
  EXPECT_THROW(state_rows(64, 2), InvalidArgument);
  EXPECT_THROW(state_rows(256, 2), InvalidArgument);
}

TEST(KvFormat, UnknownNameListsTheKnownOnes) {
  try {
    row_format("fp8_e5m2");
    FAIL() << "no exception";
  } catch (const InvalidArgument& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("fp8_e5m2"), std::string::npos) << text;
    for (const RowFormat* f : all_row_formats()) EXPECT_NE(text.find(f->name), std::string::npos) << text;
  }
}

TEST(KvFormat, AddressesSegregateNumbersAndScales) {
  // Only addresses are formed; the memory is never touched.
  auto* base = reinterpret_cast<std::uint8_t*>(std::uintptr_t{1} << 20);
  const PagedCache cache{
      .format = &fp8_ds_mla_rows(), .base = base, .num_blocks = 8, .block_size = 64, .block_stride_bytes = 40000};
  EXPECT_EQ(cache.num_slots(), 512);
  EXPECT_EQ(row_data(cache, 3, 5) - base, 3 * 40000 + 5 * 576);
  EXPECT_EQ(row_scales(cache, 3, 5) - base, 3 * 40000 + 64 * 576 + 5 * 8);
}

TEST(KvFormat, OffsetsPastTwoGigabytesDoNotWrap) {
  auto* base = reinterpret_cast<std::uint8_t*>(std::uintptr_t{1} << 20);
  const std::int64_t page = page_bytes(fp8_ds_mla_rows(), 64);
  const PagedCache cache{
      .format = &fp8_ds_mla_rows(), .base = base, .num_blocks = 400'000, .block_size = 64, .block_stride_bytes = page};
  EXPECT_EQ(cache.num_slots(), 25'600'000);
  EXPECT_EQ(cache.block(399'999) - base, 399'999 * page);
  EXPECT_GT(cache.block(399'999) - base, std::int64_t{1} << 33);
  EXPECT_EQ(row_scales(cache, 399'999, 63) - base, 399'999 * page + 64 * 576 + 63 * 8);
}

TEST(KvFormat, FormatsAreComparedByWhatTheySay) {
  for (const RowFormat* a : all_row_formats()) {
    const RowFormat copy = *a;  // at another address
    for (const RowFormat* b : all_row_formats()) EXPECT_EQ(copy == *b, a == b) << a->name << ", " << b->name;
    RowFormat other = copy;
    other.data_bytes += 1;  // of the same name
    EXPECT_NE(other, *a) << a->name;
  }
}

TEST(KvFormat, CheckCacheNamesTheTensorAndTheNumbers) {
  std::uint8_t memory[16] = {};
  const PagedCache good{
      .format = &bf16_rows(), .base = memory, .num_blocks = 2, .block_size = 3, .block_stride_bytes = 3072};
  EXPECT_NO_THROW(check_cache("kv", good));
  const auto fails_with = [](const PagedCache& cache, const std::string& phrase) {
    try {
      check_cache("window cache", cache);
      ADD_FAILURE() << "no exception: " << phrase;
    } catch (const InvalidArgument& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("window cache"), std::string::npos) << text;
      EXPECT_NE(text.find(phrase), std::string::npos) << text;
    }
  };
  PagedCache bad = good;
  bad.format = nullptr;
  fails_with(bad, "no row format");
  bad = good;
  bad.num_blocks = -1;
  fails_with(bad, "-1 blocks");
  bad = good;
  bad.block_size = 0;
  fails_with(bad, "block size 0");
  bad = good;
  bad.base = nullptr;
  fails_with(bad, "no memory");
  bad = good;
  bad.block_stride_bytes = 3071;
  fails_with(bad, "3072");
  // One block needs no stride, none needs no memory.
  bad.num_blocks = 1;
  EXPECT_NO_THROW(check_cache("kv", bad));
  bad.num_blocks = 0;
  bad.base = nullptr;
  EXPECT_NO_THROW(check_cache("kv", bad));
}

}  // namespace
}  // namespace smla
