// What a snapshot refuses; that a loaded request goes on bit for bit is tests/property/snapshot_property_test.cpp.
#include "sparsemla/snapshot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>

#include "cache/row_codec.h"
#include "cache/snapshot_records.h"
#include "sparsemla/error.h"

namespace smla {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::int64_t kTokens = 517;

std::vector<LayerConfig> layers_of(std::initializer_list<std::int64_t> ratios) {
  const ModelConfig flash = model_preset("v4-flash");
  std::vector<LayerConfig> out;
  for (const std::int64_t ratio : ratios) {
    LayerConfig config = flash.layer(0);
    config.compress_ratio = static_cast<int>(ratio);
    out.push_back(config);
  }
  return out;
}

KvLayout layout_of(std::initializer_list<std::int64_t> ratios, const CacheOptions& options = {}) {
  return make_kv_layout(layers_of(ratios), options);
}

/// A request of kTokens tokens whose live rows are random bytes.
struct Saved {
  KvPool pool;
  RequestBlocks blocks;
  std::vector<std::uint8_t> bytes;

  explicit Saved(const KvLayout& layout, std::int64_t tokens = kTokens) : pool(layout, 300), blocks(pool.layout()) {
    EXPECT_TRUE(blocks.reserve(pool, 0, tokens));
    blocks.slide(pool, tokens);
    std::mt19937 random(7);
    for (const CacheGroup& group : pool.layout().groups) {
      for (const LayerCache& c : group.caches) {
        const PagedCache cache = pool.cache(c.layer, c.role);
        for (const std::int32_t block : blocks.table(pool.layout().group_of(c.layer, c.role))) {
          if (block < 0) continue;
          for (std::int64_t i = 0; i < block_bytes(*c.format, c.block_size); ++i)
            cache.block(block)[i] = static_cast<std::uint8_t>(random());
        }
      }
    }
    bytes = save_snapshot(pool, blocks, tokens);
  }
};

/// The bytes with another number at `at` and the checksum made right again.
template <class T>
std::vector<std::uint8_t> forged(std::vector<std::uint8_t> bytes, std::size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
  const std::uint64_t sum = snapshot_records::checksum(std::span(bytes).first(bytes.size() - 8));
  std::memcpy(bytes.data() + bytes.size() - 8, &sum, sizeof sum);
  return bytes;
}

/// Loading fails with this text, and neither the pool nor the request holds anything afterwards.
void refuses(const std::vector<std::uint8_t>& bytes, const KvLayout& layout, const std::string& text,
             std::int64_t blocks = 300) {
  KvPool pool(layout, blocks);
  RequestBlocks request(pool.layout());
  EXPECT_THAT([&] { load_snapshot(bytes, pool, request); }, ThrowsMessage<Error>(HasSubstr(text)));
  EXPECT_EQ(pool.free_blocks(), blocks);
  EXPECT_TRUE(request.empty());
}

TEST(Snapshot, SaysWhatItHolds) {
  const Saved saved(layout_of({0, 4, 128}));
  const SnapshotInfo info = inspect_snapshot(saved.bytes);
  EXPECT_EQ(info.tokens, kTokens);
  EXPECT_EQ(info.num_layers, 3);
  ASSERT_EQ(info.caches.size(), 3U + 4 + 2);
  EXPECT_EQ(info.caches[0].format->name, "fp8_ds_mla");
  // Positions 390 to 516 of the window, whole blocks of 64: 6 to 8. Of 256 tokens a block all three.
  EXPECT_EQ(info.caches[0].first_block, 6);
  EXPECT_EQ(info.caches[0].blocks, 3);
  EXPECT_EQ(info.caches[2].role, CacheRole::kCompressed);
  EXPECT_EQ(info.caches[2].first_block, 0);
  EXPECT_EQ(info.caches[2].blocks, 3);
  EXPECT_EQ(info.caches[2].window, 0);
  EXPECT_EQ(info.caches[5].role, CacheRole::kIndexState);
  EXPECT_EQ(info.caches[5].first_block, 127);  // positions 510 to 516, blocks of 4
  EXPECT_EQ(info.caches[5].blocks, 3);
}

TEST(Snapshot, HoldsTheRowsThatAreReadAndZerosAroundThem) {
  const Saved saved(layout_of({0, 4, 128}));
  KvPool pool(saved.pool.layout(), 40);
  RequestBlocks moved(pool.layout());
  load_snapshot(saved.bytes, pool, moved);
  for (const SnapshotCache& c : inspect_snapshot(saved.bytes).caches) {
    const PagedCache from = saved.pool.cache(c.layer, c.role);
    const PagedCache to = pool.cache(c.layer, c.role);
    const int group = pool.layout().group_of(c.layer, c.role);
    const std::int64_t row_tokens = c.block_tokens / c.block_size;
    const std::int64_t first = pool.layout().groups[static_cast<std::size_t>(group)].first_read(kTokens) / row_tokens;
    const std::int64_t end = kTokens / row_tokens;
    for (std::int64_t b = c.first_block; b < c.first_block + c.blocks; ++b) {
      const std::uint8_t* want = from.block(saved.blocks.table(group)[static_cast<std::size_t>(b)]);
      const std::uint8_t* got = to.block(moved.table(group)[static_cast<std::size_t>(b)]);
      for (std::int64_t i = 0; i < block_bytes(*c.format, c.block_size); ++i) {
        const std::int64_t values = c.block_size * c.format->data_bytes;
        const std::int64_t row =
            b * c.block_size + (i < values ? i / c.format->data_bytes : (i - values) / c.format->scale_bytes);
        ASSERT_EQ(got[i], row >= first && row < end ? want[i] : 0)
            << name_of(c.role) << " block " << b << " byte " << i;
      }
    }
  }
}

const RowFormat& ue8m0_rows() { return row_format("index_fp8_ue8m0"); }

CacheOptions index_rows(const RowFormat& format) {
  CacheOptions options;
  options.index = &format;
  return options;
}

/// A request of kTokens tokens of one C4A layer whose index rows are encoded, with scales of every size.
struct IndexRows {
  KvPool pool;
  RequestBlocks blocks;
  static constexpr std::int64_t kRows = kTokens / 4;

  explicit IndexRows(const RowFormat& format) : pool(layout_of({4}, index_rows(format)), 300), blocks(pool.layout()) {
    EXPECT_TRUE(blocks.reserve(pool, 0, kTokens));
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    for (std::int64_t row = 0; row < kRows; ++row) {
      std::vector<float> numbers(128);
      for (float& x : numbers) x = normal(random) * std::exp2(static_cast<float>(row % 60 - 30));
      encode_row(cache(), slot(row), numbers.data());
    }
  }
  PagedCache cache() const { return pool.cache(0, CacheRole::kIndex); }
  std::int64_t slot(std::int64_t row) const {
    const auto table = blocks.table(pool.layout().group_of(0, CacheRole::kIndex));
    return std::int64_t{table[static_cast<std::size_t>(row / 64)]} * 64 + row % 64;
  }
  std::uint8_t* scale(std::int64_t row) const { return row_scales(cache(), slot(row) / 64, slot(row) % 64); }
  std::vector<std::uint8_t> save() const { return save_snapshot(pool, blocks, kTokens); }
};

TEST(Snapshot, IndexScalesOfSm90AndSm100BecomeEachOther) {
  const std::pair<const RowFormat*, const RowFormat*> ways[] = {{&index_fp8_rows(), &ue8m0_rows()},
                                                                {&ue8m0_rows(), &index_fp8_rows()}};
  for (const auto& [from, to] : ways) {
    const IndexRows saved(*from);
    const std::vector<std::uint8_t> bytes = saved.save();
    KvPool pool(layout_of({4}, index_rows(*to)), 60);
    RequestBlocks moved(pool.layout());
    EXPECT_EQ(load_snapshot(bytes, pool, moved).tokens, kTokens);
    const PagedCache cache = pool.cache(0, CacheRole::kIndex);
    const auto table = moved.table(pool.layout().group_of(0, CacheRole::kIndex));
    for (std::int64_t row = 0; row < IndexRows::kRows; ++row) {
      const std::int64_t slot = std::int64_t{table[static_cast<std::size_t>(row / 64)]} * 64 + row % 64;
      std::vector<float> want(128);
      std::vector<float> got(128);
      decode_row(saved.cache(), saved.slot(row), want.data());
      decode_row(cache, slot, got.data());
      ASSERT_EQ(got, want) << to->name << " row " << row;
      // The bytes are those that the other format's own encoder writes.
      const IndexRows same(*to);
      ASSERT_EQ(std::memcmp(row_scales(cache, slot / 64, slot % 64), same.scale(row), 4), 0) << row;
      if (row % 40 != 0) continue;
      ASSERT_EQ(std::memcmp(row_data(cache, slot / 64, slot % 64),
                            row_data(same.cache(), same.slot(row) / 64, same.slot(row) % 64), 128),
                0);
    }
    // There and back: the same bytes.
    const std::vector<std::uint8_t> there = save_snapshot(pool, moved, kTokens);
    KvPool home(layout_of({4}, index_rows(*from)), 60);
    RequestBlocks back(home.layout());
    load_snapshot(there, home, back);
    EXPECT_EQ(save_snapshot(home, back, kTokens), bytes) << from->name;
  }
}

TEST(Snapshot, IndexScalesAtTheEndsOfTheirRangeConvert) {
  const std::pair<float, std::uint8_t> ends[] = {{0x1p-127F, 0}, {0x1p-126F, 1}, {1.0F, 127}, {0x1p127F, 254}};
  for (const auto& [scale, byte] : ends) {
    IndexRows saved(index_fp8_rows());
    std::memcpy(saved.scale(5), &scale, 4);
    KvPool pool(layout_of({4}, index_rows(ue8m0_rows())), 60);
    RequestBlocks moved(pool.layout());
    load_snapshot(saved.save(), pool, moved);
    const auto table = moved.table(pool.layout().group_of(0, CacheRole::kIndex));
    const std::uint8_t* got = row_scales(pool.cache(0, CacheRole::kIndex), table[0], 5);
    EXPECT_EQ(std::vector<std::uint8_t>(got, got + 4), std::vector<std::uint8_t>(4, byte)) << scale;
    KvPool home(layout_of({4}, index_rows(index_fp8_rows())), 60);
    RequestBlocks back(home.layout());
    load_snapshot(save_snapshot(pool, moved, kTokens), home, back);
    EXPECT_EQ(save_snapshot(home, back, kTokens), saved.save()) << scale;
  }
}

TEST(Snapshot, IndexScalesThatTheOtherFormCannotHoldAreRefused) {
  const KvLayout ue8m0 = layout_of({4}, index_rows(ue8m0_rows()));
  for (const float scale : {3.0F, -1.0F, 0.0F, 0x1p-128F, std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
    IndexRows saved(index_fp8_rows());
    std::memcpy(saved.scale(70), &scale, 4);
    refuses(saved.save(), ue8m0, "snapshot: index cache of layer 0: block 1, row 6: got scale ");
  }
  const KvLayout fp32 = layout_of({4}, index_rows(index_fp8_rows()));
  for (const std::vector<std::uint8_t>& bytes :
       {std::vector<std::uint8_t>{9, 9, 9, 8}, std::vector<std::uint8_t>(4, 255)}) {
    IndexRows saved(ue8m0_rows());
    std::ranges::copy(bytes, saved.scale(70));
    refuses(saved.save(), fp32, "block 1, row 6: got scale bytes ");
  }
  // Rows that nobody wrote stay zeros.
  IndexRows saved(index_fp8_rows());
  std::memset(saved.scale(70), 0, 4);
  std::memset(row_data(saved.cache(), saved.slot(70) / 64, 6), 0, 128);
  KvPool pool(ue8m0, 60);
  RequestBlocks moved(pool.layout());
  load_snapshot(saved.save(), pool, moved);
  const auto table = moved.table(pool.layout().group_of(0, CacheRole::kIndex));
  const std::uint8_t* got = row_scales(pool.cache(0, CacheRole::kIndex), table[1], 6);
  EXPECT_EQ(std::vector<std::uint8_t>(got, got + 4), std::vector<std::uint8_t>(4, 0));
  // Any other pair of index formats is another cache.
  refuses(IndexRows(index_fp8_rows()).save(), layout_of({4}, index_rows(index_mxfp4_rows())), "index_fp8 rows");
}

TEST(Snapshot, AnyChangedByteIsSeen) {
  const Saved saved(layout_of({0}), 70);
  std::mt19937 random(11);
  const KvLayout layout = layout_of({0});
  KvPool pool(layout, 10);
  RequestBlocks request(pool.layout());
  // Every byte before the blocks and of the checksum, and a sample of the rest; each with one bit and with all of them
  // changed.
  for (std::size_t i = 0; i < saved.bytes.size();
       i += i < 400 || i + 40 > saved.bytes.size() ? 1 : 1 + random() % 500) {
    for (const std::uint8_t change : {std::uint8_t{1}, std::uint8_t{0x80}, std::uint8_t{0xFF}}) {
      std::vector<std::uint8_t> bad = saved.bytes;
      bad[i] ^= change;
      ASSERT_THROW(load_snapshot(bad, pool, request), Error) << "byte " << i;
      ASSERT_EQ(pool.free_blocks(), 10);
    }
  }
  EXPECT_NO_THROW(load_snapshot(saved.bytes, pool, request));
}

TEST(Snapshot, TruncatedOrLongerBuffersAreRefused) {
  const Saved saved(layout_of({0}), 70);
  const KvLayout layout = layout_of({0});
  for (std::size_t size = 0; size < saved.bytes.size(); size += size < 300 ? 1 : 997) {
    refuses({saved.bytes.begin(), saved.bytes.begin() + static_cast<std::ptrdiff_t>(size)}, layout,
            "snapshot: size: got " + std::to_string(size));
  }
  std::vector<std::uint8_t> longer = saved.bytes;
  longer.push_back(0);
  refuses(longer, layout,
          "snapshot: size: got " + std::to_string(longer.size()) + " bytes, expected " +
              std::to_string(saved.bytes.size()));
}

TEST(Snapshot, AnotherLayoutIsRefusedByName) {
  const Saved saved(layout_of({0, 4, 128}));
  refuses(saved.bytes, layout_of({0, 4, 128, 0}), "snapshot: layers: got 3, expected 4");
  refuses(saved.bytes, layout_of({0, 4, 128}, {.rows = &bf16_rows()}),
          "window cache of layer 0: got 64 fp8_ds_mla rows of 64 tokens a block, window 128, expected 64 bf16 rows of "
          "64 tokens a block, window 128");
  refuses(
      saved.bytes, layout_of({0, 4, 128}, {.index = &index_mxfp4_rows()}),
      "index cache of layer 1: got 64 index_fp8 rows of 256 tokens a block, all kept, expected 64 index_mxfp4 rows");
  refuses(saved.bytes, layout_of({0, 128, 4}),
          "compressed cache of layer 1: got 64 fp8_ds_mla rows of 256 tokens a block, all kept, expected 2 fp8_ds_mla");
  refuses(saved.bytes, layout_of({0, 4, 0}),
          "compressed cache of layer 2: got 2 fp8_ds_mla rows of 256 tokens a block, all kept, expected none");
  refuses(saved.bytes, layout_of({4, 4, 128}), "compressed cache of layer 0: got none, expected 64 fp8_ds_mla rows");
  KvLayout other = layout_of({0, 4, 128});
  other.groups[0].block_tokens = 512;
  refuses(saved.bytes, other,
          "compressed cache of layer 1: got 64 fp8_ds_mla rows of 256 tokens a block, all kept, expected 64 fp8_ds_mla "
          "rows of 512");
  other = layout_of({0, 4, 128});
  other.groups[1].caches[0].block_size = 32;
  refuses(saved.bytes, other,
          "window cache of layer 0: got 64 fp8_ds_mla rows of 64 tokens a block, window 128, expected 32 fp8_ds_mla "
          "rows of 64");
  other = layout_of({0, 4, 128});
  other.groups[1].window = 64;
  refuses(saved.bytes, other, "window 128, expected 64 fp8_ds_mla rows of 64 tokens a block, window 64");
}

TEST(Snapshot, ScalesOfPerTensorRowsMustAgree) {
  const CacheOptions half{.rows = &fp8_per_tensor_rows(), .kv_scale = 0.5F};
  const Saved saved(layout_of({0, 4}, half));
  refuses(saved.bytes, layout_of({0, 4}, {.rows = &fp8_per_tensor_rows(), .kv_scale = 0.25F}),
          "scale 0.500000, expected 64 fp8_per_tensor rows");
  KvPool pool(layout_of({0, 4}, half), 300);
  RequestBlocks request(pool.layout());
  pool.set_scale(1, CacheRole::kCompressed, 2.0F);
  EXPECT_THAT([&] { load_snapshot(saved.bytes, pool, request); },
              ThrowsMessage<InvalidArgument>(HasSubstr("compressed cache of layer 1")));
  pool.set_scale(1, CacheRole::kCompressed, 0.5F);
  EXPECT_NO_THROW(load_snapshot(saved.bytes, pool, request));
  EXPECT_THROW(pool.set_scale(0, CacheRole::kIndex, 1.0F), InvalidArgument);
  // A scale that the rows do not use does not matter.
  const Saved unscaled(layout_of({0}, {.kv_scale = 3.0F}));
  KvPool plain(layout_of({0}), 40);
  RequestBlocks blocks(plain.layout());
  EXPECT_NO_THROW(load_snapshot(unscaled.bytes, plain, blocks));
}

TEST(Snapshot, TooSmallAPoolAndAHeldRequestAreRefused) {
  const Saved saved(layout_of({0, 4, 128}));
  // 3 full, 3 in each of two window groups, 3 of C4 states, 17 of C128 states.
  refuses(saved.bytes, layout_of({0, 4, 128}), "snapshot: pool: got 28 free blocks, expected at least 29", 28);
  KvPool pool(layout_of({0, 4, 128}), 60);
  RequestBlocks request(pool.layout());
  load_snapshot(saved.bytes, pool, request);
  EXPECT_EQ(pool.free_blocks(), 31);
  EXPECT_THAT([&] { load_snapshot(saved.bytes, pool, request); },
              ThrowsMessage<InvalidArgument>(HasSubstr("a request that holds some")));
  EXPECT_EQ(pool.free_blocks(), 31);
}

TEST(Snapshot, SavingNeedsTheBlocks) {
  Saved saved(layout_of({0, 4, 128}));
  EXPECT_THAT([&] { save_snapshot(saved.pool, saved.blocks, 900); },
              ThrowsMessage<InvalidArgument>(
                  HasSubstr("blocks of group full: got none in column 3, expected one, for 900 tokens")));
  saved.blocks.slide(saved.pool, kTokens + 200);
  EXPECT_THAT([&] { save_snapshot(saved.pool, saved.blocks, kTokens); },
              ThrowsMessage<InvalidArgument>(HasSubstr("blocks of group window")));
  EXPECT_THROW(save_snapshot(saved.pool, saved.blocks, -1), InvalidArgument);
  const KvPool other(layout_of({0}), 4);
  EXPECT_THAT([&] { save_snapshot(other, saved.blocks, 1); },
              ThrowsMessage<InvalidArgument>(HasSubstr("blocks: got 5 groups, expected 1")));
}

// Numbers that lie, under a right checksum. Offsets are those of docs/snapshot.md.
TEST(Snapshot, HostileNumbersAreRefusedBeforeAnythingIsAllocated) {
  const KvLayout layout = layout_of({0});
  const std::vector<std::uint8_t> good = Saved(layout, 70).bytes;
  constexpr std::size_t kRecord = 48;
  refuses(forged(good, 0, 'X'), layout, "first bytes");
  refuses(forged<std::uint32_t>(good, 8, 2), layout, "version: got 2, expected 1");
  refuses(forged<std::uint32_t>(good, 12, 0xFFFF'FFFFU), layout, "caches: got 4294967295");
  refuses(forged<std::uint32_t>(good, 12, 0), layout, "bytes more");
  refuses(forged<std::uint64_t>(good, 16, ~0ULL), layout, "size");
  for (const std::int64_t tokens : {std::int64_t{-1}, std::int64_t{1} << 62, (std::int64_t{1} << 24) + 1}) {
    refuses(forged(good, 24, tokens), layout, "tokens: got " + std::to_string(tokens));
  }
  refuses(forged<std::int64_t>(good, 24, 1 << 24), layout,
          "2 blocks from 0, expected 2 from 262142 for 16777216 tokens");
  refuses(forged<std::int64_t>(good, 24, 0), layout, "2 blocks from 0, expected 0 from 0 for 0 tokens");
  refuses(forged<std::int64_t>(good, 32, -5), layout, "layers: got -5, expected 0 to ");
  refuses(forged<std::int64_t>(good, 32, -4294966993), layout, "layers: got -4294966993, expected 0 to ");
  refuses(forged<std::int64_t>(good, 32, 0), layout, "layer of a cache: got 0, expected none");
  refuses(forged(good, kRecord + 16 + 31, 'x'), layout, "format: got other bytes behind its name, expected zeros");
  refuses(forged<std::uint64_t>(good, 40, ~0ULL), layout, "note: got 18446744073709551615 bytes");
  refuses(forged<std::uint64_t>(good, 40, 8), layout, "bytes left");
  refuses(forged<std::int64_t>(good, kRecord, -1), layout, "layer of a cache: got -1");
  refuses(forged<std::int64_t>(good, kRecord, 1), layout, "layer of a cache: got 1, expected 0 to 0");
  refuses(forged<std::uint32_t>(good, kRecord + 8, 5), layout, "role of a cache of layer 0: got 5");
  refuses(forged<std::uint32_t>(good, kRecord + 8, 3), layout, "window cache of layer 0: got none");
  refuses(forged(good, kRecord + 16, 'x'), layout, "row format: got \"xp8_ds_mla\"");
  refuses(forged<std::int32_t>(good, kRecord + 48, 576), layout, "numbers of fp8_ds_mla rows: got 576, expected 512");
  for (const std::int64_t size : {std::int64_t{0}, std::int64_t{-64}, std::int64_t{65}, std::int64_t{1} << 62}) {
    refuses(forged(good, kRecord + 64, size), layout, "a whole number of tokens a row");
  }
  refuses(forged<std::int64_t>(good, kRecord + 72, std::int64_t{1} << 62), layout, "a whole number of tokens a row");
  refuses(forged<std::int64_t>(good, kRecord + 80, -1), layout, "window: got -1");
  refuses(forged<std::int64_t>(good, kRecord + 88, 1), layout, "2 blocks from 1, expected 2 from 0 for 70 tokens");
  refuses(forged<std::int64_t>(good, kRecord + 96, std::int64_t{1} << 62), layout, "blocks from 0, expected 2 from 0");
  // One cache twice.
  std::vector<std::uint8_t> twice = Saved(layout_of({0, 0}), 70).bytes;
  twice = forged<std::int64_t>(twice, kRecord + 104, 0);
  refuses(twice, layout_of({0, 0}),
          "order of caches: got window cache of layer 0, expected one behind window cache of layer 0");
}

TEST(Snapshot, Files) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("smla_snapshot_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const std::string path = (folder / "request.snapshot").string();
  const Saved saved(layout_of({0}), 70);
  write_snapshot_file(path, saved.bytes);
  EXPECT_EQ(read_snapshot_file(path), saved.bytes);
  write_snapshot_file(path, {});
  EXPECT_TRUE(read_snapshot_file(path).empty());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1) << "no half-written file stays";
  EXPECT_THAT([&] { read_snapshot_file(folder.string()); }, ThrowsMessage<IoError>(HasSubstr("no regular file")));
  EXPECT_THROW(read_snapshot_file((folder / "none").string()), IoError);
  EXPECT_THROW(write_snapshot_file((folder / "none" / "file").string(), saved.bytes), IoError);
  EXPECT_THROW(write_snapshot_file(folder.string(), saved.bytes), IoError);
  // What is no regular file is neither waited for nor replaced.
  const std::string pipe = (folder / "pipe").string();
  const std::string link = (folder / "link").string();
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::filesystem::create_symlink(path, link);
  for (const std::string& odd : {pipe, link}) {
    EXPECT_THAT([&] { write_snapshot_file(odd, saved.bytes); }, ThrowsMessage<IoError>(HasSubstr("no regular file")));
  }
  EXPECT_TRUE(std::filesystem::is_fifo(pipe) && std::filesystem::is_symlink(link));
  EXPECT_THAT([&] { read_snapshot_file(pipe); }, ThrowsMessage<IoError>(HasSubstr("no regular file")));
  // Somebody else's file of the old temporary name stays.
  std::ofstream(path + ".part") << "mine";
  write_snapshot_file(path, saved.bytes);
  EXPECT_EQ(std::filesystem::file_size(path + ".part"), 4U);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace smla
