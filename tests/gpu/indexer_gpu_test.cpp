// Index scores on the GPU against `_ref`, which sums in double: over the family's own cases, every number of heads, NaN
// codes, hostile lists, odd strides.
#include "gpu/indexer_gpu.h"

#include <bit>
#include <random>

#include "parity/gathered_cases.h"
#include "parity/indexer_cases.h"

namespace smla {
namespace {

using cases::IndexerLogitsCase;
using cases::IndexerLogitsInputs;
using gathered_cases::RaggedCase;
using gathered_cases::RaggedInputs;
using test::Bits;
using test::check;
using test::compare;
using test::kPadding;
using test::kPoison;
using test::score;

const RowFormat* const kFormats[] = {&index_fp8_rows(), &index_mxfp4_rows(), &index_f32_rows()};

class IndexerLogitsGpu : public test::IndexerGpuTest {};

TEST_F(IndexerLogitsGpu, PagedCasesAreRef) {
  for (const IndexerLogitsCase& c : cases::indexer_logits_cases()) {
    SCOPED_TRACE(testing::Message() << c);
    const IndexerLogitsInputs inputs(c);
    check<IndexerLogits>(c.problem(), inputs.args(c));
    if (HasFailure()) return;
  }
}

TEST_F(IndexerLogitsGpu, RaggedCasesAreRef) {
  for (const RaggedCase& c : gathered_cases::ragged_cases()) {
    SCOPED_TRACE(testing::Message() << c);
    const RaggedInputs inputs(c);
    check<RaggedIndexerLogits>(c.problem(), inputs.args(c));
    if (HasFailure()) return;
  }
}

TEST_F(IndexerLogitsGpu, EveryNumberOfHeads) {
  for (const RowFormat* format : kFormats) {
    for (std::int64_t heads = 1; heads <= 128; ++heads) {
      const IndexerLogitsCase c{.rows = 3,
                                .requests = 2,
                                .heads = heads,
                                .width = 40,
                                .block_size = 16,
                                .format = format,
                                .lens = {40, 33, 7},
                                .seed = static_cast<std::uint32_t>(heads)};
      SCOPED_TRACE(testing::Message() << c);
      const IndexerLogitsInputs inputs(c);
      check<IndexerLogits>(c.problem(), inputs.args(c));
      if (HasFailure()) return;
    }
  }
}

TEST_F(IndexerLogitsGpu, RowsOfOneRequestInEveryNumber) {
  // One row up to more than a block takes, of one request and of several.
  for (const RowFormat* format : kFormats) {
    for (const std::int64_t heads : {8, 64}) {
      for (std::int64_t rows = 1; rows <= 19; ++rows) {
        const IndexerLogitsCase c{.rows = rows,
                                  .requests = (rows + 4) / 5,
                                  .heads = heads,
                                  .width = 300,
                                  .block_size = 64,
                                  .format = format,
                                  .lens = {300, 299, 298, 297, 5, 0, 160},
                                  .seed = static_cast<std::uint32_t>(rows)};
        SCOPED_TRACE(testing::Message() << c);
        const IndexerLogitsInputs inputs(c);
        check<IndexerLogits>(c.problem(), inputs.args(c));
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(IndexerLogitsGpu, LongContexts) {
  for (const RowFormat* format : kFormats) {
    const IndexerLogitsCase c{
        .rows = 3, .requests = 2, .heads = 3, .width = 70'001, .format = format, .lens = {70'001, 40'000, 65'537}};
    SCOPED_TRACE(testing::Message() << c);
    const IndexerLogitsInputs inputs(c);
    check<IndexerLogits>(c.problem(), inputs.args(c));
  }
  // A context of 1,048,576 tokens.
  const IndexerLogitsCase million{
      .rows = 1, .requests = 1, .heads = 2, .width = 262'144, .format = kFormats[0], .lens = {262'144}};
  const IndexerLogitsInputs inputs(million);
  check<IndexerLogits>(million.problem(), inputs.args(million));
}

TEST_F(IndexerLogitsGpu, HostileLists) {
  std::mt19937 random(5);
  constexpr std::int32_t kWild[] = {INT32_MIN, INT32_MIN + 1, -1, 0, 1, 63, 64, 114514, INT32_MAX - 1, INT32_MAX};
  const auto wild = [&] {
    return random() % 2 == 0 ? kWild[random() % std::size(kWild)] : static_cast<std::int32_t>(random());
  };
  for (const RowFormat* format : kFormats) {
    for (std::uint32_t seed = 1; seed <= 20; ++seed) {
      const std::int64_t blocks[] = {1, 2, 3, 53, 64, 256};
      const IndexerLogitsCase c{.rows = 17,
                                .requests = 5,
                                .heads = 5,
                                .width = 200,
                                .block_size = blocks[seed % 6],
                                .format = format,
                                .seed = seed};
      SCOPED_TRACE(testing::Message() << c);
      IndexerLogitsInputs inputs(c);
      for (auto* list : {&inputs.table, &inputs.row_to_req, &inputs.lens}) {
        for (std::int32_t& v : *list) v = random() % 3 == 0 ? wild() : v;
      }
      check<IndexerLogits>(c.problem(), inputs.args(c));

      RaggedCase r{.format = format, .heads = 5, .keys = 150, .starts = {}, .ends = {}, .seed = seed};
      for (int row = 0; row < 13; ++row) {
        r.starts.push_back(random() % 2 == 0 ? wild() : static_cast<std::int32_t>(random() % 150));
        r.ends.push_back(random() % 2 == 0 ? wild() : static_cast<std::int32_t>(random() % 160));
      }
      const RaggedInputs keys(r);
      check<RaggedIndexerLogits>(r.problem(), keys.args(r));
      if (HasFailure()) return;
    }
  }
}

TEST_F(IndexerLogitsGpu, TablesWithoutAnEntry) {
  for (const RowFormat* format : kFormats) {
    const IndexerLogitsCase c{.rows = 3, .requests = 1, .heads = 4, .width = 70, .format = format};
    const IndexerLogitsInputs inputs(c);
    for (const bool no_columns : {true, false}) {
      IndexerLogits::Args args = inputs.args(c);
      args.block_table = ConstTensorView(nullptr, DType::kI32, {no_columns ? 1 : 0, no_columns ? 0 : 2});
      check<IndexerLogits>(c.problem(), args);
    }
    IndexerLogits::Args args = inputs.args(c);
    args.cache.num_blocks = 0;
    args.cache.base = nullptr;
    check<IndexerLogits>(c.problem(), args);
  }
}

TEST_F(IndexerLogitsGpu, AnyCodes) {
  // Every byte may be anything, NaN codes and the whole range of scales: a dot product that is NaN counts as 0, a NaN
  // key scale makes a NaN score.
  std::mt19937 random(7);
  for (const RowFormat* format : {&index_fp8_rows(), &index_mxfp4_rows()}) {
    for (std::uint32_t seed = 1; seed <= 6; ++seed) {
      const IndexerLogitsCase c{
          .rows = 5, .requests = 2, .heads = 20, .width = 90, .block_size = 53, .format = format, .seed = seed};
      SCOPED_TRACE(testing::Message() << c);
      IndexerLogitsInputs inputs(c);
      for (std::uint8_t& byte : inputs.q) byte = random() % 64 == 0 ? 0xFF : byte;
      for (std::uint8_t& byte : inputs.q_scale)
        byte = random() % 16 == 0 ? 0xFF : static_cast<std::uint8_t>(120 + random() % 12);
      for (std::int64_t block = 0; block < inputs.cache.num_blocks; ++block) {
        for (std::int64_t i = 0; i < inputs.cache.block_size; ++i) {
          std::uint8_t* data = row_data(inputs.cache, block, i);
          for (int d = 0; d < format->data_bytes; ++d) {
            const auto byte = static_cast<std::uint8_t>(random());
            data[d] = format->nope == Element::kE4M3 && (byte & 0x7F) == 0x7F && random() % 4 != 0 ? 0 : byte;
          }
          std::uint8_t* scales = row_scales(inputs.cache, block, i);
          if (format->scale == ScaleKind::kUe8m0) {
            for (int g = 0; g < format->groups(); ++g)
              scales[g] = random() % 16 == 0 ? 0xFF : static_cast<std::uint8_t>(120 + random() % 12);
          } else if (random() % 16 == 0) {
            std::memset(scales, 0xFF, 4);
          }
        }
      }
      check<IndexerLogits>(c.problem(), inputs.args(c));
      if (HasFailure()) return;
    }
  }
}

TEST_F(IndexerLogitsGpu, EveryE4M3CodeIsExact) {
  // One head, one dim: code times code, no sum.
  std::vector<std::uint8_t> q(256 * 128, 0);
  std::vector<std::uint8_t> keys(256 * 128, 0);
  std::vector<float> scales(256, 1.0F);
  const std::vector<float> weights(256, 1.0F);
  const std::vector<std::int32_t> starts(256, 0);
  const std::vector<std::int32_t> ends(256, 256);
  for (std::size_t i = 0; i < 256; ++i) q[i * 128 + i % 128] = static_cast<std::uint8_t>(i);
  for (std::size_t j = 0; j < 256; ++j) {
    for (std::size_t d = 0; d < 128; ++d) keys[j * 128 + d] = static_cast<std::uint8_t>(j);
  }
  RaggedIndexerLogits::Args args;
  args.q = ConstTensorView(q.data(), DType::kE4M3, {256, 1, 128});
  args.weights = view_of(weights.data(), {256, 1});
  args.values = ConstTensorView(keys.data(), DType::kU8, {256, 128});
  args.scales = ConstTensorView(scales.data(), DType::kU8, {256, 4});
  args.starts = view_of(starts.data(), {256});
  args.ends = view_of(ends.data(), {256});
  const RaggedIndexerLogits::Problem problem{
      .rows = 256, .keys = 256, .heads = 1, .dim = 128, .format = &index_fp8_rows()};
  const Bits want = score<RaggedIndexerLogits>(problem, args, "ref");
  for (const std::string& name : test::gpu_implementations<RaggedIndexerLogits>(problem)) {
    SCOPED_TRACE(name);
    const Bits got = score<RaggedIndexerLogits>(problem, args, name);
    for (std::size_t i = 0; i < want.size(); ++i) {
      ASSERT_EQ(std::bit_cast<float>(want[i]) == std::bit_cast<float>(got[i]), want[i] != kPoison)
          << "q code " << i / 261 << " key code " << i % 261 << ": want " << std::bit_cast<float>(want[i]) << " got "
          << std::bit_cast<float>(got[i]);
      if (want[i] == kPoison) {
        ASSERT_EQ(got[i], kPoison);
      }
    }
  }
}

TEST_F(IndexerLogitsGpu, EveryE2M1CodeIsExact) {
  // One head, one nonzero dim in each query: code i % 16 at dim i / 16 of row i, against keys of 16 codes with 16
  // scales.
  constexpr std::int64_t kRows = 16 * 128;
  std::vector<std::uint8_t> q(kRows * 64, 0);
  std::vector<std::uint8_t> q_scale(kRows * 4);
  std::vector<std::uint8_t> keys(16 * 64);
  std::vector<std::uint8_t> scales(16 * 4);
  for (std::size_t i = 0; i < kRows; ++i) {
    const std::size_t dim = i / 16;
    q[i * 64 + dim / 2] = static_cast<std::uint8_t>((i % 16) << (dim % 2 * 4));
    for (std::size_t g = 0; g < 4; ++g) q_scale[i * 4 + g] = static_cast<std::uint8_t>(100 + (i + 11 * g) % 50);
  }
  for (std::size_t j = 0; j < 16; ++j) {
    for (std::size_t b = 0; b < 64; ++b) keys[j * 64 + b] = static_cast<std::uint8_t>(j | (j ^ 8) << 4);
    for (std::size_t g = 0; g < 4; ++g) scales[j * 4 + g] = static_cast<std::uint8_t>(110 + 3 * j + 7 * g);
  }
  const std::vector<float> weights(kRows, 1.0F);
  const std::vector<std::int32_t> starts(kRows, 0);
  const std::vector<std::int32_t> ends(kRows, 16);
  RaggedIndexerLogits::Args args;
  args.q = ConstTensorView(q.data(), DType::kU8, {kRows, 1, 64});
  args.q_scale = ConstTensorView(q_scale.data(), DType::kU8, {kRows, 1, 4});
  args.weights = view_of(weights.data(), {kRows, 1});
  args.values = ConstTensorView(keys.data(), DType::kU8, {16, 64});
  args.scales = ConstTensorView(scales.data(), DType::kU8, {16, 4});
  args.starts = view_of(starts.data(), {kRows});
  args.ends = view_of(ends.data(), {kRows});
  const RaggedIndexerLogits::Problem problem{
      .rows = kRows, .keys = 16, .heads = 1, .dim = 128, .format = &index_mxfp4_rows()};
  const Bits want = score<RaggedIndexerLogits>(problem, args, "ref");
  for (const std::string& name : test::gpu_implementations<RaggedIndexerLogits>(problem)) {
    SCOPED_TRACE(name);
    const Bits got = score<RaggedIndexerLogits>(problem, args, name);
    for (std::size_t i = 0; i < want.size(); ++i) {
      if (want[i] == kPoison || got[i] == kPoison) {
        ASSERT_EQ(got[i], want[i]) << "row " << i / 21 << " column " << i % 21;
      } else {
        ASSERT_EQ(std::bit_cast<float>(got[i]), std::bit_cast<float>(want[i]))
            << "row " << i / 21 << " column " << i % 21;
      }
    }
  }
}

TEST_F(IndexerLogitsGpu, OddStrides) {
  // Blocks and queries at odd bytes: nothing may be loaded by words.
  for (const RowFormat* format : kFormats) {
    for (const std::int64_t gap : {0, 1, 2, 4, 8, 20}) {
      const IndexerLogitsCase c{
          .rows = 5, .requests = 2, .heads = 7, .width = 45, .block_size = 3, .format = format, .lens = {45, 44, 17}};
      SCOPED_TRACE(testing::Message() << c << " gap " << gap);
      const IndexerLogitsInputs inputs(c);
      IndexerLogits::Args args = inputs.args(c);
      const std::int64_t stride = block_bytes(*format, c.block_size) + gap;
      std::vector<std::uint8_t> memory(static_cast<std::size_t>(inputs.cache.num_blocks * stride), 0xFF);
      for (std::int64_t block = 0; block < inputs.cache.num_blocks; ++block) {
        std::memcpy(memory.data() + block * stride, inputs.cache.block(block),
                    static_cast<std::size_t>(block_bytes(*format, c.block_size)));
      }
      args.cache.base = memory.data();
      args.cache.block_stride_bytes = stride;
      check<IndexerLogits>(c.problem(), args);
      if (format->nope == Element::kF32) continue;
      const std::int64_t row = args.q.size(2);
      std::vector<std::uint8_t> q(static_cast<std::size_t>(c.rows * c.heads * (row + gap)), 0x7F);
      for (std::int64_t i = 0; i < c.rows * c.heads; ++i)
        std::memcpy(q.data() + i * (row + gap), inputs.q.data() + i * row, static_cast<std::size_t>(row));
      args.q.data = q.data();
      args.q.stride[1] = row + gap;
      args.q.stride[0] = c.heads * (row + gap);
      args.cache = inputs.cache;
      check<IndexerLogits>(c.problem(), args);
      if (HasFailure()) return;
    }
  }
}

TEST_F(IndexerLogitsGpu, RowsOfOtherLengths) {
  std::mt19937 random(13);
  std::normal_distribution<float> normal;
  for (const int dim : {32, 96, 256}) {
    for (const RowFormat* base : kFormats) {
      RowFormat format = *base;
      format.name = "index_other";
      format.dim = format.nope_dim = dim;
      if (format.nope == Element::kE4M3) format.group = format.data_bytes = dim;
      if (format.nope == Element::kE2M1) format.data_bytes = dim / 2, format.scale_bytes = dim / 32;
      if (format.nope == Element::kF32) format.data_bytes = 4 * dim;
      RaggedCase c{.format = &format, .heads = 37, .keys = 90, .starts = {0, 10, 89}, .ends = {90, 80, 90}, .seed = 3};
      SCOPED_TRACE(testing::Message() << format.data_bytes << " bytes: " << c << " " << base->name);
      const RaggedInputs inputs(c);
      RaggedIndexerLogits::Args args = inputs.args(c);
      const std::int64_t columns = format.nope == Element::kE2M1 ? dim / 2 : dim;
      args.q = ConstTensorView(inputs.q.data(), args.q.dtype, {3, 37, columns});
      RaggedIndexerLogits::Problem problem = c.problem();
      problem.dim = dim;
      check<RaggedIndexerLogits>(problem, args);
      if (HasFailure()) return;
    }
  }
}

TEST_F(IndexerLogitsGpu, ARowDoesNotDependOnItsNeighbours) {
  for (const RowFormat* format : kFormats) {
    const IndexerLogitsCase c{.rows = 23,
                              .requests = 3,
                              .heads = 11,
                              .width = 150,
                              .block_size = 53,
                              .format = format,
                              .lens = {150, 3, 149, 64}};
    const IndexerLogitsInputs inputs(c);
    const IndexerLogits::Args args = inputs.args(c);
    for (const std::string& name : test::gpu_implementations<IndexerLogits>(c.problem())) {
      const Bits all = score<IndexerLogits>(c.problem(), args, name);
      IndexerLogitsCase one = c;
      one.rows = 1;
      for (std::int64_t row = 0; row < c.rows; ++row) {
        IndexerLogits::Args alone = args;
        alone.q = args.q.slice(0, row, row + 1);
        if (!args.q_scale.absent()) alone.q_scale = args.q_scale.slice(0, row, row + 1);
        alone.weights = args.weights.slice(0, row, row + 1);
        alone.row_to_req = args.row_to_req.slice(0, row, row + 1);
        alone.lens = args.lens.slice(0, row, row + 1);
        const auto begin = all.begin() + row * (c.width + kPadding);
        ASSERT_EQ(score<IndexerLogits>(one.problem(), alone, name), Bits(begin, begin + c.width + kPadding))
            << name << " " << format->name << " row " << row;
      }
    }
  }
}

TEST_F(IndexerLogitsGpu, GatheredKeysScoreLikeTheirPages) {
  for (const RowFormat* format : kFormats) {
    const gathered_cases::PagedRequests pages(*format, 16, {290}, false, 11);
    const RaggedCase c{
        .format = format, .heads = 12, .keys = 290, .starts = {0, 50, 0, 39}, .ends = {290, 270, 1, 288}, .seed = 4};
    const RaggedInputs inputs(c);
    std::vector<std::uint8_t> values(static_cast<std::size_t>(290 * format->data_bytes));
    std::vector<std::uint8_t> scales(static_cast<std::size_t>(290 * format->scale_bytes));
    const std::int32_t cu[] = {0, 290};
    GatherIndexRows::Args gather{.cache = pages.cache,
                                 .cu_seq_lens = view_of(cu, {2}),
                                 .block_table = pages.table_view(),
                                 .values = view_of(values.data(), {290, format->data_bytes}),
                                 .scales = {}};
    RaggedIndexerLogits::Args ragged = inputs.args(c);
    ragged.values = gather.values;
    if (format->scale_bytes > 0) ragged.scales = gather.scales = view_of(scales.data(), {290, format->scale_bytes});
    Plan<GatherIndexRows>({.requests = 1, .rows = 290, .format = format}).run(gather);

    const std::vector<std::int32_t> requests(4, 0);
    const std::vector<std::int32_t> lens(4, 290);
    IndexerLogits::Args paged;
    paged.q = ragged.q;
    paged.q_scale = ragged.q_scale;
    paged.weights = ragged.weights;
    paged.row_to_req = view_of(requests.data(), {4});
    paged.lens = view_of(lens.data(), {4});
    paged.block_table = pages.table_view();
    paged.cache = pages.cache;
    const IndexerLogits::Problem in_pages{.rows = 4, .heads = 12, .dim = 128, .width = 290, .format = format};
    for (const std::string& name : test::gpu_implementations<IndexerLogits>(in_pages)) {
      const Bits from_pages = score<IndexerLogits>(in_pages, paged, name);
      const Bits from_rows = score<RaggedIndexerLogits>(c.problem(), ragged, name);
      for (std::size_t row = 0; row < 4; ++row) {
        for (auto j = static_cast<std::size_t>(c.starts[row]); j < static_cast<std::size_t>(c.ends[row]); ++j) {
          ASSERT_EQ(from_rows[row * 295 + j], from_pages[row * 295 + j])
              << name << " " << format->name << " row " << row << " column " << j;
        }
      }
    }
  }
}

TEST_F(IndexerLogitsGpu, MoreThan65535Rows) {
  for (const RowFormat* format : kFormats) {
    const IndexerLogitsCase c{
        .rows = 70'000, .requests = 70, .heads = 1, .width = 3, .block_size = 2, .format = format, .lens = {3, 2, 1}};
    SCOPED_TRACE(testing::Message() << c);
    const IndexerLogitsInputs inputs(c);
    check<IndexerLogits>(c.problem(), inputs.args(c));
  }
}

TEST_F(IndexerLogitsGpu, TwentyRepeatsAreTheSameBits) {
  for (const RowFormat* format : kFormats) {
    const IndexerLogitsCase c{
        .rows = 9, .requests = 3, .heads = 64, .width = 700, .format = format, .lens = {700, 512, 33}};
    const IndexerLogitsInputs inputs(c);
    for (const std::string& name : test::gpu_implementations<IndexerLogits>(c.problem())) {
      const Bits first = score<IndexerLogits>(c.problem(), inputs.args(c), name);
      for (int i = 0; i < 20; ++i)
        ASSERT_EQ(first, score<IndexerLogits>(c.problem(), inputs.args(c), name))
            << name << " " << format->name << " repeat " << i;
    }
  }
}

}  // namespace
}  // namespace smla
