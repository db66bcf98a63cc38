// The merge of ranks' candidates, and the index ops of a rank's share, on the GPU.
#include "gpu/gpu_run.h"
#include "parity/merge_topk_cases.h"
#include "sparsemla/ops/index.h"

namespace smla {
namespace {

class MergeTopkGpu : public test::GpuTest {};

TEST_F(MergeTopkGpu, ChoosesWhatTopkChoosesOfTheWhole) {
  for (const cases::MergeCase& c : cases::merge_cases()) {
    SCOPED_TRACE(testing::Message() << c);
    const cases::MergeInputs inputs(c);
    std::vector<std::int32_t> chosen(inputs.chosen.size(), 0x5A5A), own(inputs.own.size(), 0x5A5A);
    test::run_on_gpu<MergeTopK>(c.problem(), {.scores = view_of(inputs.scores.data(), {c.share.ranks, c.rows, c.k}),
                                              .indices = view_of(inputs.indices.data(), {c.share.ranks, c.rows, c.k}),
                                              .chosen = view_of(chosen.data(), {c.rows, c.k}),
                                              .own = view_of(own.data(), {c.rows, c.k})});
    ASSERT_EQ(chosen, inputs.chosen);
    ASSERT_EQ(own, inputs.own);
  }
}

TEST_F(MergeTopkGpu, ScoresOfTheChosenAreRef) {
  for (const cases::TopkCase& c : cases::slot_cases()) {
    SCOPED_TRACE(testing::Message() << c);
    const cases::TopkInputs inputs(c);
    std::vector<std::int32_t> indices(static_cast<std::size_t>(c.rows * c.k));
    std::vector<float> scores[2];
    for (const int gpu : {0, 1}) {
      scores[gpu].assign(indices.size(), 5);
      const TopK::Args args{.logits = inputs.view(c),
                            .lens = view_of(inputs.lens.data(), {c.rows}),
                            .indices = view_of(indices.data(), {c.rows, c.k}),
                            .scores = view_of(scores[gpu].data(), {c.rows, c.k})};
      if (gpu == 1) {
        test::run_on_gpu<TopK>(c.problem(), args, "cuda", true);
      } else {
        Plan<TopK>(c.problem(), {.implementation = "ref"}).run(args);
      }
    }
    ASSERT_EQ(scores[0], scores[1]);
  }
}

TEST_F(MergeTopkGpu, IndexOpsOfAShareAreRef) {
  const std::vector<std::int32_t> start{0, 1, 6, 6, 40}, seq{1, 700, 90, 300};
  const std::int64_t requests = 4, tokens = 43, columns = 30;
  std::vector<std::int64_t> positions, window_slots;
  std::vector<std::int32_t> request;
  for (std::int64_t t = 0; t < tokens; ++t) {
    std::int64_t r = 0;
    while (r + 1 < requests && t >= start[static_cast<std::size_t>(r + 1)]) ++r;
    request.push_back(static_cast<std::int32_t>(r));
    positions.push_back(seq[static_cast<std::size_t>(r)] - start[static_cast<std::size_t>(r + 1)] + t);
    window_slots.push_back(t < start.back() ? t : -1);
  }
  std::vector<std::int32_t> table;
  for (std::int64_t i = 0; i < requests * columns; ++i)
    table.push_back(i % 11 == 3 ? -1 : static_cast<std::int32_t>(i));
  for (const std::int64_t ranks : {1, 2, 5}) {
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const EntryShare share{.rank = rank, .ranks = ranks, .interleave = 2};
      std::vector<std::int64_t> slots[2];
      std::vector<std::int32_t> lens[2], topk_lens[2], dense[2], dense_lens[2];
      const auto run = [&]<class Op>(const typename Op::Problem& problem, const typename Op::Args& args, int gpu) {
        if (gpu == 1) {
          test::run_on_gpu<Op>(problem, args);
        } else {
          Plan<Op>(problem, {.implementation = "ref"}).run(args);
        }
      };
      for (const int gpu : {0, 1}) {
        slots[gpu].assign(tokens, 77), lens[gpu].assign(tokens, 77), topk_lens[gpu].assign(tokens, 77);
        dense[gpu].assign(tokens * 60, 77), dense_lens[gpu].assign(tokens, 77);
        run.template operator()<CompressedSlotMapping>(
            {.requests = requests, .tokens = tokens, .ratio = 4, .storage_block = 8, .share = share},
            {.query_start_loc = view_of(start.data(), {requests + 1}),
             .seq_lens = view_of(seq.data(), {requests}),
             .block_table = view_of(table.data(), {requests, columns}),
             .slots = view_of(slots[gpu].data(), {tokens})},
            gpu);
        run.template operator()<VisibleEntries>({.tokens = tokens, .ratio = 4, .top_k = 9, .share = share},
                                                {.positions = view_of(positions.data(), {tokens}),
                                                 .slot_mapping = view_of(window_slots.data(), {tokens}),
                                                 .valid = {},
                                                 .lens = view_of(lens[gpu].data(), {tokens}),
                                                 .topk_lens = view_of(topk_lens[gpu].data(), {tokens})},
                                                gpu);
        run.template operator()<DenseCompressedIndices>(
            {.requests = requests, .tokens = tokens, .ratio = 4, .storage_block = 8, .width = 60, .share = share},
            {.positions = view_of(positions.data(), {tokens}),
             .token_to_req = view_of(request.data(), {tokens}),
             .slot_mapping = view_of(window_slots.data(), {tokens}),
             .block_table = view_of(table.data(), {requests, columns}),
             .indices = view_of(dense[gpu].data(), {tokens, 60}),
             .lens = view_of(dense_lens[gpu].data(), {tokens})},
            gpu);
      }
      ASSERT_EQ(slots[0], slots[1]) << "rank " << rank << " of " << ranks;
      ASSERT_EQ(lens[0], lens[1]) << "rank " << rank << " of " << ranks;
      ASSERT_EQ(topk_lens[0], topk_lens[1]) << "rank " << rank << " of " << ranks;
      ASSERT_EQ(dense[0], dense[1]) << "rank " << rank << " of " << ranks;
      ASSERT_EQ(dense_lens[0], dense_lens[1]) << "rank " << rank << " of " << ranks;
    }
  }
}

}  // namespace
}  // namespace smla
