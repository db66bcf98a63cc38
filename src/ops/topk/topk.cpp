#include <limits>

#include "core/check.h"
#include "ops/define_op.h"
#include "ops/index/implementations.h"
#include "ops/topk/implementations.h"

namespace smla {

template <>
std::span<const Implementation<TopK>> OpTable<TopK>::implementations() {
  static const Implementation<TopK> kTable[] = {
      sm90_row<TopK>(),
      cuda_row<TopK>(),
      {.name = "cpu", .machine = "any CPU", .run = topk_cpu},
      {.name = "ref", .machine = "any CPU", .run = topk_ref},
  };
  return kTable;
}

void check_choice(std::string_view op, const TopK::Problem& problem) {
  check_that(problem.rows >= 0, op, "problem.rows", problem.rows, "0 or more");
  check_that(problem.width >= 0 && problem.width <= INT32_MAX, op, "problem.width", problem.width, "0 to 2^31-1");
  check_that(problem.k >= 0 && problem.k <= INT32_MAX, op, "problem.k", problem.k, "0 to 2^31-1");
  if (!problem.slots) return;
  check_that(problem.slots->storage_block >= 1 && problem.slots->storage_block <= INT32_MAX, op,
             "problem.slots.storage_block", problem.slots->storage_block, "1 to 2^31-1");
}

void check_choice(std::string_view op, const TopK::Problem& problem, const TensorView& indices,
                  const TopK::Slots::Args& slots) {
  check_tensor(op, "indices", indices, {problem.rows, problem.k}, {DType::kI32});
  if (!problem.slots) return;
  check_tensor(op, "slots.token_to_req", slots.token_to_req, {problem.rows}, {DType::kI32});
  check_tensor(op, "slots.block_table", slots.block_table, {kAny, kAny}, {DType::kI32});
  check_tensor(op, "slots.valid", slots.valid, {problem.rows}, {DType::kBool});
  check_tensor(op, "slots.slots", slots.slots, {problem.rows, problem.k}, {DType::kI32});
  check_tensor(op, "slots.lens", slots.lens, {problem.rows}, {DType::kI32});
}

template <>
void OpTable<TopK>::check_problem(const TopK::Problem& problem) {
  check_choice(TopK::kName, problem);
}

template <>
void OpTable<TopK>::check_args(const TopK::Problem& problem, const TopK::Args& args) {
  check_tensor(TopK::kName, "logits", args.logits, {problem.rows, problem.width}, {DType::kF32});
  check_tensor(TopK::kName, "lens", args.lens, {problem.rows}, {DType::kI32});
  if (!args.scores.absent()) check_tensor(TopK::kName, "scores", args.scores, {problem.rows, problem.k}, {DType::kF32});
  check_choice(TopK::kName, problem, args.indices, args.slots);
}

void topk_slots(const TopK::Problem& problem, const TopK::Args& args, const RunContext& context) {
  if (!problem.slots) return;
  const TopK::Slots::Args& s = args.slots;
  global_topk_ref({.requests = s.block_table.size(0),
                   .tokens = problem.rows,
                   .k = problem.k,
                   .storage_block = problem.slots->storage_block,
                   .compact = true},
                  {.topk = args.indices,
                   .token_to_req = s.token_to_req,
                   .block_table = s.block_table,
                   .valid = s.valid,
                   .indices = s.slots,
                   .lens = s.lens},
                  context);
}

void topk_scores(const TopK::Problem& problem, const TopK::Args& args) {
  if (args.scores.absent()) return;
  for (std::int64_t row = 0; row < problem.rows; ++row) {
    const float* logits = args.logits.as<float>() + row * args.logits.stride[0];
    const std::int32_t* chosen = args.indices.as<std::int32_t>() + row * args.indices.stride[0];
    float* out = args.scores.as<float>() + row * args.scores.stride[0];
    for (std::int64_t j = 0; j < problem.k; ++j)
      out[j] = chosen[j] < 0 ? -std::numeric_limits<float>::infinity() : logits[chosen[j]];
  }
}

SMLA_DEFINE_OP(TopK);

template <>
std::span<const Implementation<MergeTopK>> OpTable<MergeTopK>::implementations() {
  static const Implementation<MergeTopK> kTable[] = {cuda_row<MergeTopK>(),
                                                     {.name = "ref", .machine = "any CPU", .run = merge_topk_ref}};
  return kTable;
}

template <>
void OpTable<MergeTopK>::check_problem(const MergeTopK::Problem& problem) {
  check_that(problem.rows >= 0, MergeTopK::kName, "problem.rows", problem.rows, "0 or more");
  check_that(problem.k >= 0 && problem.k <= INT32_MAX, MergeTopK::kName, "problem.k", problem.k, "0 to 2^31-1");
  check_entry_share(problem.share);
}

template <>
void OpTable<MergeTopK>::check_args(const MergeTopK::Problem& problem, const MergeTopK::Args& args) {
  constexpr std::string_view op = MergeTopK::kName;
  check_tensor(op, "scores", args.scores, {problem.share.ranks, problem.rows, problem.k}, {DType::kF32});
  check_tensor(op, "indices", args.indices, {problem.share.ranks, problem.rows, problem.k}, {DType::kI32});
  if (!args.chosen.absent()) check_tensor(op, "chosen", args.chosen, {problem.rows, problem.k}, {DType::kI32});
  check_tensor(op, "own", args.own, {problem.rows, problem.k}, {DType::kI32});
}

SMLA_DEFINE_OP(MergeTopK);

}  // namespace smla
