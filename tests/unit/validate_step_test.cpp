// Validate of a whole step, and of a run.
#include "property/small_model.h"
#include "sparsemla/engine.h"
#include "sparsemla/validate.h"
#include "unit/validate_calls.h"

namespace smla {
namespace {

using namespace testing_validate;
using testing::HasSubstr;

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
