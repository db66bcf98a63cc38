// Index scores and their top-k. Everywhere but in the kernel of one launch, the two ops run one after the other.
#include <algorithm>
#include <cstddef>
#include <vector>

#include "core/check.h"
#include "ops/define_op.h"
#include "ops/indexer/implementations.h"
#include "ops/topk/implementations.h"

namespace smla {

namespace {

using Problem = IndexerTopK::Problem;
using Args = IndexerTopK::Args;

/// The rows of a call that are scored before any of them is chosen from, and how.
struct Pieces {
  std::int64_t rows = 0;
  Planned<IndexerLogits> scores, last_scores;  ///< of so many rows, and of what is left over
  Planned<TopK> choice, last_choice;
};

constexpr std::size_t kAlign = 256;
constexpr std::int64_t kScoreBytes = std::int64_t{64} << 20;  ///< of the scores of a piece, unless a row has more

IndexerLogits::Problem scores_of(const Problem& p, std::int64_t rows) {
  return {.rows = rows, .heads = p.heads, .dim = p.dim, .width = p.width, .format = p.format};
}
TopK::Problem choice_of(const Problem& p, std::int64_t rows) {
  return {.rows = rows, .width = p.width, .k = p.k, .slots = p.slots};
}

std::int64_t rows_at_once(const Problem& p) {
  return std::clamp<std::int64_t>(kScoreBytes / std::max<std::int64_t>(4 * p.width, 1), 1,
                                  std::max<std::int64_t>(p.rows, 1));
}
/// Bytes of a piece's scores, or of those of any call with fewer rows or columns.
std::size_t score_bytes(const Problem& p) {
  const std::int64_t row = 4 * p.width;
  const std::int64_t bytes = std::min(std::max(kScoreBytes, row), row * std::max<std::int64_t>(p.rows, 1));
  return (static_cast<std::size_t>(bytes) + kAlign - 1) / kAlign * kAlign;
}

IndexerLogits::Args score_args(const Args& a, std::int64_t begin, std::int64_t end, const TensorView& scores) {
  return {.q = a.q.slice(0, begin, end),
          .q_scale = a.q_scale.absent() ? a.q_scale : a.q_scale.slice(0, begin, end),
          .weights = a.weights.slice(0, begin, end),
          .row_to_req = a.row_to_req.slice(0, begin, end),
          .lens = a.lens.slice(0, begin, end),
          .block_table = a.block_table,
          .cache = a.cache,
          .logits = scores,
          .rows_of_request = std::max<std::int64_t>(a.q.size(0) / std::max<std::int64_t>(a.block_table.size(0), 1), 1)};
}
TopK::Args choice_args(const Problem& p, const Args& a, std::int64_t begin, std::int64_t end,
                       const TensorView& scores) {
  TopK::Args out{.logits = scores, .lens = a.lens.slice(0, begin, end), .indices = a.indices.slice(0, begin, end)};
  if (p.slots) {
    out.slots = {.token_to_req = a.slots.token_to_req.slice(0, begin, end),
                 .block_table = a.slots.block_table,
                 .valid = a.slots.valid.slice(0, begin, end),
                 .slots = a.slots.slots.slice(0, begin, end),
                 .lens = a.slots.lens.slice(0, begin, end)};
  }
  return out;
}

template <Need kNeed>
Decision decide_pieces(const Problem& problem, const PlanOptions& options, const Machine& machine) {
  if (std::string missing = kNeed(machine); !missing.empty()) return refused(std::move(missing));
  return decide_indexer_topk_pieces(problem, options, machine);
}

/// The reference, a row at a time.
void run_ref(const Problem& p, const Args& a, const RunContext& context) {
  std::vector<float> row(static_cast<std::size_t>(p.width));
  const TensorView scores(row.data(), DType::kF32, {1, p.width});
  for (std::int64_t r = 0; r < p.rows; ++r) {
    indexer_logits_ref(scores_of(p, 1), score_args(a, r, r + 1, scores), context);
    topk_ref(choice_of(p, 1), choice_args(p, a, r, r + 1, scores), context);
  }
}

}  // namespace

Decision decide_indexer_topk_pieces(const Problem& problem, const PlanOptions& options, const Machine& machine) {
  PlanOptions of_op = options;
  of_op.implementation.clear();
  const std::int64_t rows = rows_at_once(problem);
  const std::int64_t rest = problem.rows % rows;
  Pieces pieces{.rows = rows,
                .scores = choose<IndexerLogits>(scores_of(problem, rows), of_op, machine),
                .last_scores = choose<IndexerLogits>(scores_of(problem, rest), of_op, machine),
                .choice = choose<TopK>(choice_of(problem, rows), of_op, machine),
                .last_choice = choose<TopK>(choice_of(problem, rest), of_op, machine)};
  Decision decision;
  decision.workspace_bytes =
      score_bytes(problem) +
      std::max({pieces.scores.decision.workspace_bytes, pieces.last_scores.decision.workspace_bytes,
                pieces.choice.decision.workspace_bytes, pieces.last_choice.decision.workspace_bytes});
  decision.words = "indexer_logits " + std::string(pieces.scores.implementation->name) + ", topk " +
                   std::string(pieces.choice.implementation->name);
  decision.choice = std::move(pieces);
  return decision;
}

void run_indexer_topk_pieces(const Problem& p, const Args& a, const RunContext& context) {
  const auto& pieces = context.choice<Pieces>();
  const std::size_t behind = score_bytes(p);
  for (std::int64_t begin = 0; begin < p.rows; begin += pieces.rows) {
    const std::int64_t end = std::min(begin + pieces.rows, p.rows);
    const bool whole = end - begin == pieces.rows;
    const TensorView scores(context.workspace.data, DType::kF32, {end - begin, p.width});
    run_planned(whole ? pieces.scores : pieces.last_scores, score_args(a, begin, end, scores), context, behind);
    run_planned(whole ? pieces.choice : pieces.last_choice, choice_args(p, a, begin, end, scores), context, behind);
  }
}

template <>
std::span<const Implementation<IndexerTopK>> OpTable<IndexerTopK>::implementations() {
  static const Implementation<IndexerTopK> kTable[] = {
      sm90_row<IndexerTopK>(),
      any_gpu_row<IndexerTopK>(run_indexer_topk_pieces, decide_pieces<needs_gpu>),
      {.name = "cpu", .machine = "any CPU", .decide = decide_pieces<needs_nothing>, .run = run_indexer_topk_pieces},
      {.name = "ref", .machine = "any CPU", .run = run_ref},
  };
  return kTable;
}

template <>
void OpTable<IndexerTopK>::check_problem(const Problem& problem) {
  check_index_scores(IndexerTopK::kName, scores_of(problem, problem.rows));
  check_choice(IndexerTopK::kName, choice_of(problem, problem.rows));
}

template <>
void OpTable<IndexerTopK>::check_args(const Problem& problem, const Args& args) {
  check_index_scores(IndexerTopK::kName, scores_of(problem, problem.rows),
                     {.q = args.q,
                      .q_scale = args.q_scale,
                      .weights = args.weights,
                      .row_to_req = args.row_to_req,
                      .lens = args.lens,
                      .block_table = args.block_table,
                      .cache = args.cache});
  check_choice(IndexerTopK::kName, choice_of(problem, problem.rows), args.indices, args.slots);
}

SMLA_DEFINE_OP(IndexerTopK);

}  // namespace smla
