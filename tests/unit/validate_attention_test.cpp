// Validate of attention, gathers, index scores and top-k.
#include <cmath>

#include "sparsemla/ops/attention.h"
#include "sparsemla/ops/indexer.h"
#include "sparsemla/ops/topk.h"
#include "sparsemla/validate.h"
#include "unit/validate_calls.h"

namespace smla {
namespace {

using namespace testing_validate;
using testing::HasSubstr;

struct Attention {
  Ints indices{0, 5, -1, 99999, /**/ 7, 3, 99999, -7};  // past the lengths stands what nobody reads
  Ints lens{3, 2};
  std::vector<float> sink{0.0F, -INFINITY};
  std::string error() const {
    const SparseAttention::Problem problem{
        .tokens = 2, .heads = 2, .scope = {{{.format = &bf16_rows(), .block_size = 4, .width = 4}}}};
    SparseAttention::Args args{
        .q = blank(DType::kBF16, {2, 2, 512}), .sink = view(sink), .o = blank(DType::kBF16, {2, 2, 512})};
    args.scopes[0] = {.cache = cache_of(bf16_rows(), 2, 4), .indices = rows_of(indices, 2), .lens = view(lens)};
    return error_of([&] { validate(Plan<SparseAttention>(problem), args); });
  }
};

TEST(Validate, SparseAttention) {
  EXPECT_EQ(Attention{}.error(), "");
  EXPECT_EQ((Attention{.indices = {0, 5, 99999, 0, /**/ 7, 3, 0, 0}}.error()),
            "sparse_attention: scopes[0].indices row 0 column 2: got 99999, expected -1 or 0..7");
  EXPECT_THAT((Attention{.indices = {0, 5, 1, 0, /**/ 7, 8, 0, 0}}.error()),
              HasSubstr("scopes[0].indices row 1 column 1: got 8"));
  EXPECT_THAT((Attention{.indices = {0, 5, -2, 0, /**/ 7, 3, 0, 0}}.error()), HasSubstr("row 0 column 2: got -2"));
  EXPECT_EQ((Attention{.lens = {3, 5}}.error()), "sparse_attention: scopes[0].lens row 1: got 5, expected 0..4");
  EXPECT_THAT((Attention{.lens = {-1, 2}}.error()), HasSubstr("scopes[0].lens row 0: got -1"));
  EXPECT_THAT((Attention{.sink = {0.0F, NAN}}.error()), HasSubstr("sink row 1: got nan"));
  EXPECT_THAT((Attention{.lens = {3}}.error()), HasSubstr("lens: got [1]"));  // shapes as the op itself checks them
}

TEST(Validate, SecondScopeAndMergeAndTopk) {
  const Ints first{0};
  const Ints second{4};
  SparseAttention::Problem problem{.tokens = 1, .heads = 1, .scopes = 2};
  problem.scope[0] = problem.scope[1] = {.format = &bf16_rows(), .block_size = 2, .width = 1};
  SparseAttention::Args args{.q = blank(DType::kBF16, {1, 1, 512}), .o = blank(DType::kBF16, {1, 1, 512})};
  args.scopes[0] = {.cache = cache_of(bf16_rows(), 2, 2), .indices = rows_of(first, 1)};
  args.scopes[1] = {.cache = cache_of(bf16_rows(), 2, 2), .indices = rows_of(second, 1)};
  EXPECT_THAT(error_of([&] { validate<SparseAttention>(problem, args); }),
              HasSubstr("scopes[1].indices row 0 column 0: got 4, expected -1 or 0..3"));

  const std::vector<float> sink{NAN};
  EXPECT_THAT(error_of([&] {
                validate<MergePartials>({.slices = 1, .tokens = 1, .heads = 1, .dim = 8},
                                        {.partial_o = blank(DType::kF32, {1, 1, 1, 8}),
                                         .partial_lse = blank(DType::kF32, {1, 1, 1}),
                                         .sink = view(sink),
                                         .o = blank(DType::kBF16, {1, 1, 8})});
              }),
              HasSubstr("merge_partials: sink row 0: got nan"));
  for (const Ints& lens : {Ints{0, 9}, Ints{0, -1}}) {
    EXPECT_THAT(error_of([&] {
                  validate<TopK>({.rows = 2, .width = 8, .k = 2}, {.logits = blank(DType::kF32, {2, 8}),
                                                                   .lens = view(lens),
                                                                   .indices = blank(DType::kI32, {2, 2})});
                }),
                HasSubstr("topk: lens row 1: got " + std::to_string(lens[1]) + ", expected 0..8"));
  }
}

struct Gather {
  Ints seq{6, 3};
  Ints lens{2, 3};
  Ints table{-9, 4, /**/ 0, -9};  // only columns that are read count: rows 4..5 of the first, 0..2 of the second
  std::int64_t offset = 1;
  std::string error() const {
    return error_of([&] {
      validate<GatherRows>({.requests = 2, .rows = 4, .offset = offset, .format = &bf16_rows()},
                           {.cache = cache_of(bf16_rows(), 5, 4),
                            .seq_lens = view(seq),
                            .gather_lens = view(lens),
                            .block_table = rows_of(table, 2),
                            .out = blank(DType::kBF16, {2, 4, 512})});
    });
  }
};

TEST(Validate, GatherRows) {
  EXPECT_EQ(Gather{}.error(), "");
  EXPECT_EQ((Gather{.table = {0, 5, 0, 0}}.error()), "gather_rows: block_table row 0 column 1: got 5, expected 0..4");
  EXPECT_THAT((Gather{.table = {0, 1, -1, 0}}.error()), HasSubstr("block_table row 1 column 0: got -1"));
  EXPECT_THAT((Gather{.seq = {-1, 3}}.error()), HasSubstr("seq_lens row 0: got -1"));
  EXPECT_THAT((Gather{.lens = {2, 4}}.error()), HasSubstr("gather_lens row 1: got 4, expected 0..3"));
  EXPECT_THAT((Gather{.seq = {9, 3}}.error()),
              HasSubstr("block_table row 0 column 2: got a table of 2 columns, expected the block of rows 7..8"));
  EXPECT_THAT((Gather{.offset = 2}.error()), HasSubstr("gather_lens row 1: got 3, expected at most the 2 rows of out"));
}

struct Logits {
  Ints requests{1, 99};
  Ints lens{5, 0};  // a row without entries may belong to nobody
  Ints table{-1, -1, /**/ 2, 0};
  std::string error() const {
    return error_of([&] {
      validate<IndexerLogits>({.rows = 2, .heads = 2, .width = 8, .format = &index_fp8_rows()},
                              {.q = blank(DType::kE4M3, {2, 2, 128}),
                               .weights = blank(DType::kF32, {2, 2}),
                               .row_to_req = view(requests),
                               .lens = view(lens),
                               .block_table = rows_of(table, 2),
                               .cache = cache_of(index_fp8_rows(), 3, 4),
                               .logits = blank(DType::kF32, {2, 8})});
    });
  }
};

TEST(Validate, IndexerLogits) {
  EXPECT_EQ(Logits{}.error(), "");
  EXPECT_THAT((Logits{.requests = {2, 0}}.error()),
              HasSubstr("indexer_logits: row_to_req row 0: got 2, expected 0..1"));
  EXPECT_THAT((Logits{.lens = {9, 0}}.error()), HasSubstr("lens row 0: got 9, expected 0..8"));
  EXPECT_THAT((Logits{.lens = {5, -4}}.error()), HasSubstr("lens row 1: got -4"));
  EXPECT_THAT((Logits{.table = {0, 0, 2, 3}}.error()), HasSubstr("block_table row 1 column 1: got 3, expected 0..2"));
}

TEST(Validate, GatheredIndexRows) {
  const auto gather = [](const Ints& starts, const Ints& table) {
    return error_of([&] {
      validate<GatherIndexRows>({.requests = 2, .rows = 6, .format = &index_fp8_rows()},
                                {.cache = cache_of(index_fp8_rows(), 3, 4),
                                 .cu_seq_lens = view(starts),
                                 .block_table = rows_of(table, 2),
                                 .values = blank(DType::kU8, {6, index_fp8_rows().data_bytes}),
                                 .scales = blank(DType::kU8, {6, index_fp8_rows().scale_bytes})});
    });
  };
  EXPECT_EQ(gather({0, 5, 6}, {0, 1, 2, -1}), "");
  EXPECT_THAT(gather({0, 5, 4}, {0, 1, 2, -1}),
              HasSubstr("gather_index_rows: cu_seq_lens row 2: got 4, expected 5..6"));
  EXPECT_THAT(gather({0, 5, 7}, {0, 1, 2, -1}), HasSubstr("cu_seq_lens row 2: got 7"));
  EXPECT_THAT(gather({0, 5, 6}, {0, 3, 2, -1}), HasSubstr("block_table row 0 column 1: got 3"));
  const auto ragged = [](const Ints& starts, const Ints& ends) {
    return error_of([&] {
      validate<RaggedIndexerLogits>({.rows = 2, .keys = 5, .heads = 1, .format = &index_fp8_rows()},
                                    {.q = blank(DType::kE4M3, {2, 1, 128}),
                                     .weights = blank(DType::kF32, {2, 1}),
                                     .values = blank(DType::kU8, {5, index_fp8_rows().data_bytes}),
                                     .scales = blank(DType::kU8, {5, index_fp8_rows().scale_bytes}),
                                     .starts = view(starts),
                                     .ends = view(ends),
                                     .logits = blank(DType::kF32, {2, 5})});
    });
  };
  EXPECT_EQ(ragged({0, 2}, {5, 2}), "");
  EXPECT_THAT(ragged({0, 3}, {5, 2}), HasSubstr("ragged_indexer_logits: ends row 1: got 2, expected 3..5"));
  EXPECT_THAT(ragged({-1, 2}, {5, 2}), HasSubstr("starts row 0: got -1"));
}

}  // namespace
}  // namespace smla
