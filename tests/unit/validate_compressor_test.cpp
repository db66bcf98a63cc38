// Validate of compressors, inserts, rotations and sequences.
#include "sparsemla/ops/compressor.h"
#include "sparsemla/ops/indexer.h"
#include "sparsemla/ops/norm_rope.h"
#include "sparsemla/ops/sequences.h"
#include "sparsemla/validate.h"
#include "unit/validate_calls.h"

namespace smla {
namespace {

using namespace testing_validate;
using testing::HasSubstr;

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

}  // namespace
}  // namespace smla
