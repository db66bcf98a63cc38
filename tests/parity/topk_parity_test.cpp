#include <gtest/gtest.h>

#include <set>
#include <string>

#include "parity/topk_cases.h"
#include "sparsemla/ops/index.h"

namespace smla {
namespace {

constexpr std::int32_t kPoison = 0x5A5A'5A5A;
constexpr std::int64_t kOutPadding = 3;

std::vector<std::int32_t> run(const cases::TopkCase& c, const cases::TopkInputs& inputs,
                              const std::string& implementation, int threads) {
  std::vector<std::int32_t> out(static_cast<std::size_t>(c.rows * (c.k + kOutPadding)), kPoison);
  TensorView view(out.data(), DType::kI32, {c.rows, c.k});
  view.stride[0] = c.k + kOutPadding;
  Plan<TopK>(c.problem(), {.implementation = implementation, .threads = threads})
      .run({.logits = inputs.view(c), .lens = view_of(inputs.lens.data(), {c.rows}), .indices = view});
  return out;
}

TEST(TopkParity, EveryImplementationEqualsRef) {
  std::set<std::string> refused;
  for (const cases::TopkCase& c : cases::topk_cases()) {
    SCOPED_TRACE(testing::Message() << c);
    const cases::TopkInputs inputs(c);
    const std::vector<std::int32_t> expected = run(c, inputs, "ref", 1);
    for (std::int64_t row = 0; row < c.rows; ++row) {
      for (std::int64_t j = 0; j < c.k; ++j)
        ASSERT_NE(expected[row * (c.k + kOutPadding) + j], kPoison) << "row " << row << " column " << j;
      for (std::int64_t j = c.k; j < c.k + kOutPadding; ++j)
        ASSERT_EQ(expected[row * (c.k + kOutPadding) + j], kPoison) << "row " << row;
    }
    for (const Candidate& candidate : explain<TopK>(c.problem())) {
      if (!candidate.refusal.empty()) {
        refused.insert(candidate.name + ": " + candidate.refusal);
        continue;
      }
      for (const int threads : {1, 2})
        ASSERT_EQ(run(c, inputs, candidate.name, threads), expected) << candidate.name << ", threads " << threads;
    }
  }
  for (const std::string& text : refused) std::printf("[ refused  ] topk %s\n", text.c_str());
}

/// Slots are what GlobalTopk makes of the choice.
TEST(TopkParity, SlotsAreThoseOfGlobalTopk) {
  for (const cases::TopkCase& c : cases::slot_cases()) {
    SCOPED_TRACE(testing::Message() << c);
    const cases::TopkInputs inputs(c);
    const cases::SlotInputs table(c);
    TopK::Problem problem = c.problem();
    problem.slots = {.storage_block = cases::SlotInputs::kBlock};
    for (const Candidate& candidate : explain<TopK>(problem)) {
      if (!candidate.refusal.empty()) continue;
      std::vector<std::int32_t> chosen(static_cast<std::size_t>(c.rows * c.k));
      std::vector<std::int32_t> slots;
      std::vector<std::int32_t> lens;
      TopK::Args args{.logits = inputs.view(c),
                      .lens = view_of(inputs.lens.data(), {c.rows}),
                      .indices = view_of(chosen.data(), {c.rows, c.k})};
      table.add_to(args.slots, c, slots, lens);
      Plan<TopK>(problem, {.implementation = candidate.name}).run(args);
      std::vector<std::int32_t> want_slots(slots.size());
      std::vector<std::int32_t> want_lens(lens.size());
      Plan<GlobalTopk>({.requests = cases::SlotInputs::kRequests,
                        .tokens = c.rows,
                        .k = c.k,
                        .storage_block = problem.slots->storage_block,
                        .compact = true},
                       {.implementation = "ref"})
          .run({.topk = args.indices,
                .token_to_req = args.slots.token_to_req,
                .block_table = args.slots.block_table,
                .valid = args.slots.valid,
                .indices = view_of(want_slots.data(), {c.rows, c.k}),
                .lens = view_of(want_lens.data(), {c.rows})});
      ASSERT_EQ(want_slots, slots) << candidate.name;
      ASSERT_EQ(want_lens, lens) << candidate.name;
    }
  }
}

}  // namespace
}  // namespace smla
