// Validate of the ops that build indices.
#include "sparsemla/ops/index.h"
#include "sparsemla/ops/sequences.h"
#include "sparsemla/validate.h"
#include "unit/validate_calls.h"

namespace smla {
namespace {

using namespace testing_validate;
using testing::HasSubstr;

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

}  // namespace
}  // namespace smla
