// E4M3 output of attention by implementations whose kernels do not write it.
#include <algorithm>
#include <cstddef>

#include "ops/attention/attention_split.h"
#include "ops/attention/implementations.h"

namespace smla {

namespace {

using Problem = SparseAttention::Problem;
using Args = SparseAttention::Args;

/// Tokens at a time: their BF16 outputs are 8 MiB with 128 heads.
constexpr std::int64_t kTokens = 64;
constexpr std::size_t kAlign = 256;
static_assert(AttentionSplit::kScratchBytes + kTokens * 128 * AttentionTile::kDim * 2 <= AttentionSplit::kMostBytes);

/// How tokens of a piece are computed.
struct Piece {
  Planned<SparseAttention> attention;
  Planned<InverseRopeQuant> quantise;
};
struct Pieces {
  Piece whole, last;
  std::int64_t last_tokens = 0;
};

Problem in_bf16(const Problem& p, std::int64_t tokens) {
  Problem piece = p;
  piece.tokens = tokens;
  piece.o = DType::kBF16;
  piece.output_epilogue.reset();
  return piece;
}

InverseRopeQuant::Problem quantise_problem(const Problem& p, std::int64_t tokens) {
  return {.tokens = tokens,
          .heads = p.heads,
          .groups = p.output_epilogue->groups,
          .dim = p.out_dim(),
          .rope_dim = p.output_epilogue->rope_dim,
          .in = DType::kBF16,
          .scale = p.output_epilogue->scale};
}

std::size_t output_bytes(const Problem& p) {
  const auto bytes = static_cast<std::size_t>(std::min(p.tokens, kTokens) * p.heads * p.out_dim() * 2);
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

Args args_of(const Problem& p, const Args& a, std::int64_t begin, std::int64_t end, const TensorView& o) {
  const auto rows = [&](const auto& v) { return v.absent() ? v : v.slice(0, begin, end); };
  Args piece = a;
  piece.q = rows(a.q);
  piece.o = o;
  piece.lse = rows(a.lse);
  piece.query_prologue.positions = rows(a.query_prologue.positions);
  piece.output_epilogue = {};
  for (int s = 0; s < p.scopes; ++s) {
    SparseAttention::Scope& scope = piece.scopes[static_cast<std::size_t>(s)];
    scope.indices = rows(scope.indices);
    scope.lens = rows(scope.lens);
  }
  return piece;
}

}  // namespace

Decision decide_quantised_pieces(const Implementation<SparseAttention>& inner, const Problem& p,
                                 const PlanOptions& options, const Machine& machine) {
  Pieces pieces{.last_tokens = p.tokens % kTokens};
  PlanOptions of_quantise = options;
  of_quantise.implementation.clear();
  std::size_t most = 0;
  const auto plan = [&](std::int64_t tokens, Piece* piece) {
    piece->attention.problem = in_bf16(p, tokens);
    piece->attention.implementation = &inner;
    piece->attention.decision = inner.decide(piece->attention.problem, options, machine);
    piece->quantise = choose<InverseRopeQuant>(quantise_problem(p, tokens), of_quantise, machine);
    most = std::max({most, piece->attention.decision.workspace_bytes, piece->quantise.decision.workspace_bytes});
    return piece->attention.decision.refusal;
  };
  if (std::string reason = plan(std::min(p.tokens, kTokens), &pieces.whole); !reason.empty())
    return refused(std::move(reason));
  if (std::string reason = plan(pieces.last_tokens, &pieces.last); !reason.empty()) return refused(std::move(reason));
  Decision decision;
  decision.workspace_bytes = output_bytes(p) + most;
  decision.words = "o in BF16, " + std::to_string(kTokens) + " tokens at a time, then inverse_rope_quant " +
                   std::string(pieces.whole.quantise.implementation->name);
  decision.choice = std::move(pieces);
  return decision;
}

void run_quantised_pieces(const Problem& p, const Args& a, const RunContext& context) {
  const auto& pieces = context.choice<Pieces>();
  const std::size_t behind = output_bytes(p);
  for (std::int64_t begin = 0; begin < p.tokens; begin += kTokens) {
    const std::int64_t end = std::min(begin + kTokens, p.tokens);
    const Piece& piece = end - begin == std::min(p.tokens, kTokens) ? pieces.whole : pieces.last;
    const TensorView o(context.workspace.data, DType::kBF16, {end - begin, p.heads, p.out_dim()});
    run_planned(piece.attention, args_of(p, a, begin, end, o), context, behind);
    const TensorView& scales = a.output_epilogue.scales;
    run_planned(piece.quantise,
                {.x = o,
                 .positions = a.output_epilogue.positions.slice(0, begin, end),
                 .cos_sin = a.output_epilogue.cos_sin,
                 .values = a.o.slice(1, begin, end),
                 .scales = scales.slice(2, begin, end == p.tokens ? scales.size(2) : end)},
                context, behind);
  }
}

}  // namespace smla
