// Each rule of validate: a call that keeps it passes, one number changed is named with its tensor, row and column.
#include "sparsemla/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>

#include "property/small_model.h"
#include "sparsemla/engine.h"
#include "sparsemla/ops/attention.h"
#include "sparsemla/ops/compressor.h"
#include "sparsemla/ops/index.h"
#include "sparsemla/ops/indexer.h"
#include "sparsemla/ops/norm_rope.h"
#include "sparsemla/ops/projection.h"
#include "sparsemla/ops/sequences.h"
#include "sparsemla/ops/topk.h"

namespace smla {
namespace {

using testing::HasSubstr;

using Ints = std::vector<std::int32_t>;
using Longs = std::vector<std::int64_t>;

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& e) {
    return e.what();
  }
  return "";
}

std::int64_t count(const auto& v) { return static_cast<std::int64_t>(v.size()); }
auto view(const auto& v) { return view_of(v.data(), {count(v)}); }
auto rows_of(const auto& v, std::int64_t rows) { return view_of(v.data(), {rows, count(v) / rows}); }

/// Memory of any shape whose numbers do not matter.
TensorView blank(DType dtype, std::initializer_list<std::int64_t> shape) {
  static std::vector<std::uint8_t> memory(1 << 20);
  return {memory.data(), dtype, shape};
}

PagedCache cache_of(const RowFormat& format, std::int64_t blocks, std::int64_t block_size) {
  return {.format = &format,
          .base = static_cast<std::uint8_t*>(blank(DType::kU8, {1}).data),
          .num_blocks = blocks,
          .block_size = block_size,
          .block_stride_bytes = block_bytes(format, block_size)};
}

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

/// Two requests: 3 new tokens up to sequence length 9, 2 up to 2; one token of padding. Blocks of 4 rows, entries of 4
/// tokens.
struct Step {
  Ints start{0, 3, 5};
  Ints seq{9, 2};
  Ints requests{0, 0, 0, 1, 1, 0};
  Longs positions{6, 7, 8, 0, 1, 77};
  Longs slots{6, 7, 8, 12, 13, -1};
  Ints table{0, 1, 2, /**/ 3, -1, -1};
  Ints entries{0, 1, 2, /**/ 3, -1, -1};  ///< one entry a block
  Ints topk{0, 1, -1, 0, 1, -1, 0, 1, -1, -1, -1, -1, -1, -1, -1, 99, 99, 99};
  std::vector<std::uint8_t> valid{1, 1, 1, 1, 1, 0};

  std::string token_to_req() const {
    return error_of([&] {
      validate<TokenToReq>({.requests = 2, .tokens = 6},
                           {.query_start_loc = view(start), .token_to_req = blank(DType::kI32, {6})});
    });
  }
  std::string slot_mapping() const {
    return error_of([&] {
      validate<SlotMapping>({.requests = 2, .tokens = 6, .block_size = 4}, {.query_start_loc = view(start),
                                                                            .positions = view(positions),
                                                                            .token_to_req = view(requests),
                                                                            .block_table = rows_of(table, 2),
                                                                            .slots = blank(DType::kI64, {6})});
    });
  }
  std::string entry_slots() const {
    return error_of([&] {
      validate<CompressedSlotMapping>({.requests = 2, .tokens = 6, .ratio = 4, .storage_block = 1},
                                      {.query_start_loc = view(start),
                                       .seq_lens = view(seq),
                                       .block_table = rows_of(entries, 2),
                                       .slots = blank(DType::kI64, {6})});
    });
  }
  std::string windows() const {
    return error_of([&] {
      validate<WindowIndices>({.requests = 2, .tokens = 6, .window = 5, .block_size = 4},
                              {.query_start_loc = view(start),
                               .seq_lens = view(seq),
                               .token_to_req = view(requests),
                               .slot_mapping = view(slots),
                               .block_table = rows_of(table, 2),
                               .indices = blank(DType::kI32, {6, 5}),
                               .lens = blank(DType::kI32, {6})});
    });
  }
  std::string dense() const {
    return error_of([&] {
      validate<DenseCompressedIndices>({.requests = 2, .tokens = 6, .ratio = 4, .storage_block = 1, .width = 3},
                                       {.positions = view(positions),
                                        .token_to_req = view(requests),
                                        .slot_mapping = view(slots),
                                        .block_table = rows_of(entries, 2),
                                        .indices = blank(DType::kI32, {6, 3}),
                                        .lens = blank(DType::kI32, {6})});
    });
  }
  std::string global() const {
    return error_of([&] {
      validate<GlobalTopk>({.requests = 2, .tokens = 6, .k = 3, .storage_block = 1},
                           {.topk = rows_of(topk, 6),
                            .token_to_req = view(requests),
                            .block_table = rows_of(entries, 2),
                            .valid = ConstTensorView(valid.data(), DType::kBool, {6}),
                            .indices = blank(DType::kI32, {6, 3}),
                            .lens = blank(DType::kI32, {6})});
    });
  }
  std::string combined(const Ints& gather, std::int64_t m = 10) const {
    return error_of([&] {
      validate<CombineTopkWindow>({.requests = 2, .tokens = 6, .window = 5, .ratio = 4, .top_k = 3, .m = m, .n = 2},
                                  {.topk = rows_of(topk, 6),
                                   .query_start_loc = view(start),
                                   .seq_lens = view(seq),
                                   .gather_lens = view(gather),
                                   .indices = blank(DType::kI32, {6, 8}),
                                   .lens = blank(DType::kI32, {6})});
    });
  }
  std::string mixed(std::int64_t decodes = 0) const {
    return error_of([&] {
      validate<MixedSparseIndices>(
          {.requests = 2,
           .tokens = 6,
           .decode_tokens = decodes,
           .window = 5,
           .window_width = 5,
           .ratio = 4,
           .top_k = decodes == 0 ? 3 : 0,
           .compressed_width = 3,
           .window_block = 4,
           .compressed_block = 1},
          {.decode_window = decodes == 0 ? ConstTensorView{} : view_of(topk.data(), {decodes, 5}),
           .prefill_topk = rows_of(topk, 6),
           .query_start_loc = view(start),
           .seq_lens = view(seq),
           .token_to_req = view(requests),
           .window_table = rows_of(table, 2),
           .compressed_table = rows_of(entries, 2),
           .indices = blank(DType::kI32, {6, 8}),
           .lens = blank(DType::kI32, {6})});
    });
  }
};

TEST(Validate, AGoodStepPassesEveryIndexOp) {
  const Step s;
  EXPECT_EQ(s.token_to_req(), "");
  EXPECT_EQ(s.slot_mapping(), "");
  EXPECT_EQ(s.entry_slots(), "");
  EXPECT_EQ(s.windows(), "");
  EXPECT_EQ(s.dense(), "");
  EXPECT_EQ(s.global(), "");
  EXPECT_EQ(s.combined({7, 2}), "");
  EXPECT_EQ(s.mixed(), "");
}

TEST(Validate, StartsAndSequences) {
  EXPECT_EQ((Step{.start = {0, 3, 2}}.token_to_req()), "token_to_req: query_start_loc row 2: got 2, expected 3..6");
  EXPECT_THAT((Step{.start = {0, 3, 7}}.token_to_req()), HasSubstr("query_start_loc row 2: got 7"));
  EXPECT_THAT((Step{.start = {1, 3, 5}}.token_to_req()), HasSubstr("query_start_loc row 0: got 1, expected 0"));
  EXPECT_THAT((Step{.start = {-1, 3, 5}}.slot_mapping()), HasSubstr("query_start_loc row 0: got -1"));
  EXPECT_EQ((Step{.seq = {9, 1}}.windows()), "window_indices: seq_lens row 1: got 1, expected at least its query of 2");
  EXPECT_THAT((Step{.seq = {2, 2}}.entry_slots()), HasSubstr("compressed_slot_mapping: seq_lens row 0: got 2"));
}

TEST(Validate, RequestsAndPositions) {
  EXPECT_EQ((Step{.requests = {0, 0, 0, 2, 1, 0}}.slot_mapping()),
            "slot_mapping: token_to_req row 3: got 2, expected 0..1");
  EXPECT_THAT((Step{.requests = {0, 0, 0, 0, 1, 0}}.windows()),
              HasSubstr("token_to_req row 3: got 0, expected the request that query_start_loc gives"));
  EXPECT_THAT((Step{.requests = {0, -1, 0, 1, 1, 0}}.dense()),
              HasSubstr("dense_compressed_indices: token_to_req row 1: got -1"));
  EXPECT_THAT((Step{.positions = {6, -7, 8, 0, 1, 77}}.slot_mapping()), HasSubstr("positions row 1: got -7"));
  EXPECT_THAT((Step{.positions = {6, 7, 8, 0, -1, 77}}.dense()), HasSubstr("positions row 4: got -1"));
  EXPECT_THAT((Step{.slots = {6, 7, 8, -2, 13, -1}}.windows()), HasSubstr("slot_mapping row 3: got -2"));
}

TEST(Validate, TablesOfTheIndexOps) {
  EXPECT_EQ((Step{.positions = {6, 7, 12, 0, 1, 77}}.slot_mapping()),
            "slot_mapping: block_table row 0 column 3: got a table of 3 columns, expected the block of position 12 of "
            "token 2");
  EXPECT_THAT((Step{.table = {0, -1, 2, 3, -1, -1}}.slot_mapping()), HasSubstr("block_table row 0 column 1: got -1"));
  EXPECT_THAT((Step{.table = {-1, 1, 2, 3, -1, -1}}.windows()),
              HasSubstr("window_indices: block_table row 0 column 0: got -1"));
  EXPECT_THAT((Step{.entries = {0, -1, 2, 3, -1, -1}}.entry_slots()), HasSubstr("block_table row 0 column 1: got -1"));
  EXPECT_THAT((Step{.entries = {-5, 1, 2, 3, -1, -1}}.dense()), HasSubstr("block_table row 0 column 0: got -5"));
  EXPECT_THAT((Step{.entries = {0, -5, 2, 3, -1, -1}}.global()),
              HasSubstr("global_topk: block_table row 0 column 1: got -5"));
  Step s;
  s.topk[4] = 3;
  EXPECT_THAT(
      s.global(),
      HasSubstr("block_table row 0 column 3: got a table of 3 columns, expected the block of entry 3 of row 1"));
  s.topk[4] = -2;
  EXPECT_THAT(s.global(), HasSubstr("topk row 1 column 1: got -2"));
}

TEST(Validate, CombinedMatrices) {
  const Step s;
  EXPECT_THAT(
      s.combined({6, 2}),
      HasSubstr("combine_topk_window: gather_lens row 0: got 6, expected 7..8"));  // its window begins at position 2
  EXPECT_THAT(s.combined({9, 2}), HasSubstr("gather_lens row 0: got 9"));          // and must fit m - n
  Step far = s;
  far.topk[3] = 2;  // there are two entries in the workspace
  EXPECT_THAT(far.combined({7, 2}), HasSubstr("topk row 1 column 0: got 2, expected -1 or 0..1"));
  far.topk[3] = 3;
  EXPECT_THAT(far.mixed(), HasSubstr("mixed_sparse_indices: compressed_table row 0 column 3"));
  EXPECT_THAT((Step{.table = {-1, 1, 2, 3, -1, -1}}.mixed()), HasSubstr("window_table row 0 column 0: got -1"));
  Step decode = s;
  decode.topk[1] = -9;
  EXPECT_THAT(decode.mixed(3), HasSubstr("decode_window row 0 column 1: got -9"));
}

struct Compressor {
  Longs positions{3, 7, 4};
  Ints requests{0, 1, 0};
  Longs states{0, 5, -1};
  Longs entries{0, 1, -1};
  Ints table{0, 1, /**/ 1, 2};
  std::string save() const {
    return error_of([&] {
      validate<SaveState>({.tokens = 3, .ratio = 4, .dim = 128}, {.kv_score = blank(DType::kF32, {3, 512}),
                                                                  .ape = blank(DType::kF32, {4, 256}),
                                                                  .positions = view(positions),
                                                                  .state_slots = view(states),
                                                                  .state = cache_of(state_rows(128, 2), 3, 4)});
    });
  }
  /// `saving`: the states are saved in the same call.
  std::string store(bool saving = false) const {
    return error_of([&] {
      validate<CompressStore>({.tokens = 3, .ratio = 4, .compressor = {{{.dim = 128, .format = &index_fp8_rows()}}}},
                              {.positions = view(positions),
                               .token_to_req = view(requests),
                               .entry_slots = view(entries),
                               .cos_sin = blank(DType::kF32, {8, 64}),
                               .compressors = {{{.state_slots = view(states),
                                                 .block_table = rows_of(table, 2),
                                                 .norm_weight = blank(DType::kBF16, {128}),
                                                 .kv_score = saving ? blank(DType::kF32, {3, 512}) : ConstTensorView(),
                                                 .ape = saving ? blank(DType::kF32, {4, 256}) : ConstTensorView(),
                                                 .state = cache_of(state_rows(128, 2), 3, 4),
                                                 .entries = cache_of(index_fp8_rows(), 1, 2)}}}});
    });
  }
  /// As the second of two, beside one whose numbers are right.
  std::string second() const {
    const Compressor right;
    return error_of([&] {
      validate<CompressStore>({.tokens = 3,
                               .ratio = 4,
                               .compressors = 2,
                               .compressor = {{{.format = &bf16_rows()}, {.dim = 128, .format = &index_fp8_rows()}}}},
                              {.positions = view(positions),
                               .token_to_req = view(requests),
                               .entry_slots = view(entries),
                               .cos_sin = blank(DType::kF32, {8, 64}),
                               .compressors = {{{.state_slots = view(right.states),
                                                 .block_table = rows_of(right.table, 2),
                                                 .norm_weight = blank(DType::kBF16, {512}),
                                                 .state = cache_of(state_rows(512, 2), 3, 4),
                                                 .entries = cache_of(bf16_rows(), 1, 2)},
                                                {.state_slots = view(states),
                                                 .block_table = rows_of(table, 2),
                                                 .norm_weight = blank(DType::kBF16, {128}),
                                                 .state = cache_of(state_rows(128, 2), 3, 4),
                                                 .entries = cache_of(index_fp8_rows(), 1, 2)}}}});
    });
  }
};

TEST(Validate, Compressor) {
  EXPECT_EQ(Compressor{}.save(), "");
  EXPECT_EQ(Compressor{}.store(), "");
  EXPECT_EQ((Compressor{.states = {0, 12, -1}}.save()), "save_state: state_slots row 1: got 12, expected -1 or 0..11");
  EXPECT_EQ((Compressor{.states = {5, 5, -1}}.save()),
            "save_state: state_slots row 1: got 5, expected a slot of its own (row 0 writes it too)");
  EXPECT_THAT((Compressor{.positions = {-3, 7, 4}}.save()), HasSubstr("positions row 0: got -3"));
  EXPECT_THAT((Compressor{.entries = {0, 2, -1}}.store()),
              HasSubstr("compress_store: entry_slots row 1: got 2, expected -1 or 0..1"));
  EXPECT_THAT((Compressor{.entries = {1, 1, -1}}.store()),
              HasSubstr("entry_slots row 1: got 1, expected a slot of its own"));
  EXPECT_THAT((Compressor{.requests = {0, 2, 0}}.store()), HasSubstr("token_to_req row 1: got 2"));
  EXPECT_THAT((Compressor{.table = {0, 1, 3, 2}}.store()),
              HasSubstr("compressors[0].block_table row 1 column 0: got 3, expected 0..2"));
  EXPECT_EQ(Compressor{}.second(), "");
  EXPECT_THAT((Compressor{.table = {0, 1, 3, 2}}.second()),
              HasSubstr("compressors[1].block_table row 1 column 0: got 3, expected 0..2"));
  // A token that closes no group still picks a row of ape by its position.
  EXPECT_EQ((Compressor{.positions = {3, 7, -5}, .states = {0, 5, 6}}.store()), "");
  EXPECT_EQ(Compressor{}.store(true), "");
  EXPECT_THAT((Compressor{.positions = {3, 7, -5}, .states = {0, 5, 6}}.store(true)),
              HasSubstr("compress_store: positions row 2: got -5"));
  EXPECT_THAT((Compressor{.positions = {3, 11, 4}}.store()),
              HasSubstr("positions row 1: got 11, expected a group that begins within the 8 rows"));
}

TEST(Validate, InsertsAndRotations) {
  const auto insert = [](const Longs& positions, const Longs& slots) {
    return error_of([&] {
      validate<QNormRopeInsert>({.tokens = 3, .heads = 1, .out_heads = 1, .format = &bf16_rows()},
                                {.q = blank(DType::kBF16, {3, 1, 512}),
                                 .kv = blank(DType::kBF16, {3, 512}),
                                 .positions = view(positions),
                                 .cos_sin = blank(DType::kF32, {8, 64}),
                                 .slot_mapping = view(slots),
                                 .q_out = blank(DType::kBF16, {3, 1, 512}),
                                 .cache = cache_of(bf16_rows(), 2, 4)});
    });
  };
  EXPECT_EQ(insert({0, 7, 3}, {-1, 7}), "");
  EXPECT_EQ(insert({0, 8, 3}, {-1, 7}), "qnorm_rope_insert: positions row 1: got 8, expected 0..7");
  EXPECT_THAT(insert({0, 7, 3}, {-1, 8}), HasSubstr("slot_mapping row 1: got 8"));
  EXPECT_THAT(insert({0, 7, 3}, {2, 2}),
              HasSubstr("slot_mapping row 1: got 2, expected a slot of its own (row 0 writes it too)"));
  const Longs twice{3, -1, 3};
  EXPECT_THAT(error_of([&] {
                validate<InsertRows>({.tokens = 3, .format = &bf16_rows()}, {.rows = blank(DType::kBF16, {3, 512}),
                                                                             .slot_mapping = view(twice),
                                                                             .cache = cache_of(bf16_rows(), 2, 4)});
              }),
              HasSubstr("insert_rows: slot_mapping row 2: got 3"));
  const Longs far{0, 8};
  const auto cos_sin = blank(DType::kF32, {8, 64});
  const auto x = blank(DType::kBF16, {2, 1, 512});
  EXPECT_THAT(error_of([&] {
                validate<InverseRope>({.tokens = 2, .heads = 1},
                                      {.x = x, .positions = view(far), .cos_sin = cos_sin, .y = x});
              }),
              HasSubstr("inverse_rope: positions row 1: got 8"));
  EXPECT_THAT(error_of([&] {
                validate<InverseRopeQuant>({.tokens = 2, .heads = 1}, {.x = x,
                                                                       .positions = view(far),
                                                                       .cos_sin = cos_sin,
                                                                       .values = blank(DType::kE4M3, {1, 2, 512}),
                                                                       .scales = blank(DType::kF32, {1, 4, 4})});
              }),
              HasSubstr("inverse_rope_quant: positions row 1: got 8"));
  EXPECT_THAT(error_of([&] {
                validate<IndexerQ>({.tokens = 2, .heads = 1, .format = &index_f32_rows()},
                                   {.q = blank(DType::kBF16, {2, 1, 128}),
                                    .weights = blank(DType::kBF16, {2, 1}),
                                    .positions = view(far),
                                    .cos_sin = cos_sin,
                                    .q_out = blank(DType::kF32, {2, 1, 128}),
                                    .weights_out = blank(DType::kF32, {2, 1})});
              }),
              HasSubstr("indexer_q: positions row 1: got 8"));
}

TEST(Validate, Sequences) {
  const auto pack = [](const Ints& start) {
    const PackSequences::Problem problem{.requests = 2, .tokens = 6, .max_len = 3, .row = 8, .dtype = DType::kU8};
    const ConstTensorView rows = blank(DType::kU8, {6, 8});
    const ConstTensorView packed = blank(DType::kU8, {2, 3, 8});
    std::string there = error_of([&] {
      validate<PackSequences>(
          problem,
          PackSequences::Args{.rows = rows, .query_start_loc = view(start), .packed = blank(DType::kU8, {2, 3, 8})});
    });
    const std::string back = error_of([&] {
      validate<UnpackSequences>(
          problem,
          UnpackSequences::Args{.packed = packed, .query_start_loc = view(start), .rows = blank(DType::kU8, {6, 8})});
    });
    EXPECT_EQ(there.empty(), back.empty());
    return there;
  };
  EXPECT_EQ(pack({0, 3, 5}), "");
  EXPECT_EQ(pack({0, 3, 2}), "pack_sequences: query_start_loc row 2: got 2, expected 3..6");
  EXPECT_THAT(pack({0, 1, 5}), HasSubstr("query_start_loc row 2: got 5, expected at most max_len 3 past row 1"));
}

/// A step over the caches of a window-only layer: one group of blocks of 64 tokens.
struct Batch {
  Ints start{0, 2, 3};
  Ints seq{130, 70};
  Longs positions{128, 129, 69, 5};
  Ints table{9, 1, 2, /**/ 3, 4, -1};
  std::int64_t max_seq_len = 130;
  std::int64_t rope = 130;
  std::string error() const {
    const LayerConfig config = model_preset("tiny").layer(0);
    const KvLayout layout = make_kv_layout({&config, 1}, {});
    return error_of([&] {
      validate(StepBatch{.query_start_loc = view(start),
                         .seq_lens = view(seq),
                         .positions = view(positions),
                         .block_tables = {rows_of(table, 2)},
                         .max_seq_len = max_seq_len},
               layout, 10, rope);
    });
  }
};

TEST(Validate, Step) {
  ASSERT_EQ(model_preset("tiny").layer(0).compress_ratio, 1);
  EXPECT_EQ(Batch{}.error(), "");
  EXPECT_EQ((Batch{.table = {9, 1, 10, 3, 4, -1}}.error()),
            "step: block_tables[window] row 0 column 2: got 10, expected 0..9");
  EXPECT_THAT((Batch{.table = {9, 1, 2, 3, -1, -1}}.error()), HasSubstr("block_tables[window] row 1 column 1: got -1"));
  EXPECT_THAT((Batch{.table = {9, 1, 4, 3, 4, -1}}.error()),
              HasSubstr("row 1 column 1: got 4, expected a block of its own (request 0 writes it in group window)"));
  EXPECT_THAT((Batch{.start = {0, 2, 5}}.error()), HasSubstr("query_start_loc row 2: got 5, expected 2..4"));
  EXPECT_THAT((Batch{.seq = {1, 70}}.error()), HasSubstr("seq_lens row 0: got 1, expected at least its query of 2"));
  EXPECT_THAT((Batch{.max_seq_len = 129}.error()),
              HasSubstr("seq_lens row 0: got 130, expected at most max_seq_len 129"));
  EXPECT_THAT((Batch{.positions = {128, 128, 69, 5}}.error()),
              HasSubstr("positions row 1: got 128, expected 129, seq_len - query_len + offset"));
  EXPECT_THAT((Batch{.rope = 129}.error()), HasSubstr("positions row 1: got 129, expected 0..128"));
}

// Chunks, drafts that are thrown away, preemption: what the engine gives its ops has no bad number.
TEST(Validate, ALiveRunPasses) {
  for (const FrontEnd front_end : {FrontEnd::kFlashMla, FrontEnd::kFlashInfer, FrontEnd::kSm120}) {
    EngineOptions o;
    o.model = test::small_model();
    o.layers = {0, 1, 2};
    o.layer.front_end = front_end;
    o.max_batched_tokens = 40;
    o.max_seqs = 3;
    o.num_blocks = 70;
    o.max_model_len = 200;
    o.speculative = 2;
    Engine engine(o);
    for (std::int64_t id = 0; id < 4; ++id) {
      engine.submit({.id = id, .arrival_seconds = 0, .prompt_tokens = 3 + 43 * id, .output_tokens = 7});
    }
    validate_calls(true);
    const std::string error = error_of([&] {
      for (int i = 0; i < 1000 && engine.step([] { return 0.0; }); ++i) {
      }
    });
    validate_calls(false);
    EXPECT_EQ(error, "") << name_of(front_end);
    for (const RequestResult& r : engine.results()) EXPECT_EQ(r.state, RequestResult::State::kFinished) << r.refusal;
  }
}

TEST(Validate, EveryCallOfTheProcessWhenAsked) {
  const Longs positions{8};
  const auto run = [&] {
    Plan<InverseRope>({.tokens = 1, .heads = 1})
        .run({.x = blank(DType::kBF16, {1, 1, 512}),
              .positions = view(positions),
              .cos_sin = blank(DType::kF32, {8, 64}),
              .y = blank(DType::kBF16, {1, 1, 512})});
  };
  EXPECT_NO_THROW(run());  // the op itself skips the token
  validate_calls(true);
  const std::string error = error_of(run);
  validate_calls(false);
  EXPECT_THAT(error, HasSubstr("inverse_rope: positions row 0: got 8"));
  EXPECT_NO_THROW(run());
}

}  // namespace
}  // namespace smla
