#include "sparsemla/context_parallel.h"

#include <algorithm>
#include <numeric>

#include "core/arena.h"
#include "core/check.h"
#include "device/memory.h"

namespace smla {

namespace {

constexpr std::string_view kWhat = "context parallel";

void check_ranks(const Communicator& ranks, const EntryShare& share) {
  check_that(ranks.ranks() == share.ranks && ranks.rank() == share.rank, kWhat, "communicator",
             words("rank ", ranks.rank(), " of ", ranks.ranks()), words("rank ", share.rank, " of ", share.ranks));
}

void check_workspace(Workspace workspace, std::size_t bytes) {
  check_that(workspace.bytes >= bytes, kWhat, "workspace", words(workspace.bytes, " bytes"), words("at least ", bytes));
}

/// The part of rank `r` of a gathered tensor whose first dimension are the ranks.
TensorView part(const TensorView& gathered, std::int64_t r) {
  TensorView view = gathered.slice(0, r, r + 1);
  --view.rank;
  for (int d = 0; d < view.rank; ++d) {
    const auto at = static_cast<std::size_t>(d);
    view.shape[at] = view.shape[at + 1];
    view.stride[at] = view.stride[at + 1];
  }
  return view;
}

/// Candidates of all ranks: one gather brings both.
struct Candidates {
  TensorView scores;   ///< [ranks, rows, k] F32
  TensorView indices;  ///< [ranks, rows, k] I32
  void* base = nullptr;
  std::size_t bytes_per_rank = 0;
  void* scratch = nullptr;
};

Candidates lay_out(const ContextTopK::Problem& p, Arena& arena, std::size_t scratch_bytes) {
  Candidates c;
  const std::int64_t n = p.rows * p.k;
  c.bytes_per_rank = static_cast<std::size_t>(2 * 4 * n);
  c.base = arena.raw(c.bytes_per_rank * static_cast<std::size_t>(p.share.ranks));
  const auto view = [&](DType dtype, std::int64_t offset) {
    TensorView v(c.base == nullptr ? nullptr : static_cast<std::byte*>(c.base) + offset, dtype,
                 {p.share.ranks, p.rows, p.k});
    v.stride[0] = 2 * n;
    return v;
  };
  c.scores = view(DType::kF32, 0);
  c.indices = view(DType::kI32, 4 * n);
  c.scratch = arena.raw(scratch_bytes);
  return c;
}

/// The same without the name of an implementation, which is meant for another op.
PlanOptions unnamed(PlanOptions options) {
  options.implementation.clear();
  return options;
}

std::size_t scratch_of(const auto& first, const auto& second) {
  return std::max(first.workspace_bytes(), second.workspace_bytes());
}

}  // namespace

ContextTopK::ContextTopK(const Problem& problem, const PlanOptions& options)
    : problem_(problem),
      local_({.rows = problem.rows, .width = problem.width, .k = problem.k}, options),
      merge_({.rows = problem.rows, .k = problem.k, .share = problem.share}, unnamed(options)) {}

std::size_t ContextTopK::workspace_bytes() const {
  Arena arena(nullptr);
  lay_out(problem_, arena, scratch_of(local_, merge_));
  return arena.used();
}

void ContextTopK::run(Communicator& ranks, const Args& args, Workspace workspace, Stream stream) const {
  check_ranks(ranks, problem_.share);
  check_workspace(workspace, workspace_bytes());
  Arena arena(workspace.data);
  const std::size_t bytes = scratch_of(local_, merge_);
  const Candidates c = lay_out(problem_, arena, bytes);
  const Workspace scratch{.data = c.scratch, .bytes = bytes};
  local_.run({.logits = args.logits,
              .lens = args.lens,
              .indices = part(c.indices, problem_.share.rank),
              .scores = part(c.scores, problem_.share.rank)},
             scratch, stream);
  ranks.gather(c.base, c.bytes_per_rank, stream);
  merge_.run({.scores = c.scores, .indices = c.indices, .chosen = args.chosen, .own = args.own}, scratch, stream);
}

namespace {

/// What one rank computes of the whole.
SparseAttention::Problem partial_problem(const SparseAttention::Problem& whole, const EntryShare& share) {
  check_entry_share(share);
  check_that(whole.scopes == 2, kWhat, "scopes", whole.scopes, "2: rows of every rank, and the rank's own");
  check_that(!whole.partial, kWhat, "partial", std::string("set"), "a whole problem");
  check_that(whole.padded_heads() == whole.heads, kWhat, "out_heads", whole.padded_heads(),
             words(whole.heads, ", the heads"));
  check_that(!whole.output_epilogue, kWhat, "output_epilogue", std::string("given"),
             "none: it needs the merged output");
  SparseAttention::Problem p = whole;
  p.partial = true;
  p.o = DType::kF32;
  if (share.counts_window()) return p;
  p.scopes = 1;
  p.scope[0] = whole.scope[1];
  p.scope[1] = {};
  return p;
}

/// Partial results of all ranks: one gather brings both.
struct Partials {
  TensorView o;    ///< [ranks, T, H, dim] F32
  TensorView lse;  ///< [ranks, T, H] F32
  void* base = nullptr;
  std::size_t bytes_per_rank = 0;
  void* scratch = nullptr;
};

Partials lay_out(const SparseAttention::Problem& p, std::int64_t ranks, Arena& arena, std::size_t scratch_bytes) {
  Partials out;
  const std::int64_t rows = p.tokens * p.heads;
  const std::int64_t dim = p.out_dim();
  // The lse behind the rows, which stay aligned for wide loads.
  const std::int64_t numbers = rows * dim + (rows + 15) / 16 * 16;
  out.bytes_per_rank = static_cast<std::size_t>(4 * numbers);
  out.base = arena.raw(out.bytes_per_rank * static_cast<std::size_t>(ranks));
  out.o = TensorView(out.base, DType::kF32, {ranks, p.tokens, p.heads, dim});
  out.o.stride[0] = numbers;
  out.lse = TensorView(out.base == nullptr ? nullptr : static_cast<std::byte*>(out.base) + 4 * rows * dim, DType::kF32,
                       {ranks, p.tokens, p.heads});
  out.lse.stride[0] = numbers;
  out.scratch = arena.raw(scratch_bytes);
  return out;
}

}  // namespace

ContextAttention::ContextAttention(const SparseAttention::Problem& problem, const EntryShare& share,
                                   const PlanOptions& options)
    : problem_(problem),
      share_(share),
      partial_(partial_problem(problem, share), options),
      merge_({.slices = share.ranks,
              .tokens = problem.tokens,
              .heads = problem.heads,
              .dim = problem.out_dim(),
              .o = problem.o},
             unnamed(options)) {}

std::size_t ContextAttention::workspace_bytes() const {
  Arena arena(nullptr);
  lay_out(problem_, share_.ranks, arena, scratch_of(partial_, merge_));
  return arena.used();
}

void ContextAttention::run(Communicator& ranks, const SparseAttention::Args& args, Workspace workspace,
                           Stream stream) const {
  check_ranks(ranks, share_);
  check_workspace(workspace, workspace_bytes());
  Arena arena(workspace.data);
  const std::size_t bytes = scratch_of(partial_, merge_);
  const Partials p = lay_out(problem_, share_.ranks, arena, bytes);
  const Workspace scratch{.data = p.scratch, .bytes = bytes};
  SparseAttention::Args own = args;
  own.sink = {};
  own.o = part(p.o, share_.rank);
  own.lse = part(p.lse, share_.rank);
  if (!share_.counts_window()) {
    own.scopes[0] = args.scopes[1];
    own.scopes[1] = {};
  }
  partial_.run(own, scratch, stream);
  ranks.gather(p.base, p.bytes_per_rank, stream);
  merge_.run({.partial_o = p.o, .partial_lse = p.lse, .sink = args.sink, .o = args.o, .lse = args.lse}, scratch,
             stream);
}

std::vector<RowPiece> balanced_pieces(std::span<const std::int64_t> entries, int ranks) {
  check_that(ranks >= 1, kWhat, "ranks", ranks, "1 or more");
  double all = 0;
  for (const std::int64_t n : entries) {
    check_that(n >= 0, kWhat, "entries of a row", n, "0 or more");
    all += static_cast<double>(n) + 1;
  }
  // Piece r ends where the work so far is nearest to its share of all, so that no piece is off by more than a row.
  std::vector<RowPiece> pieces;
  const auto rows = static_cast<std::int64_t>(entries.size());
  std::int64_t begin = 0;
  double done = 0;
  for (int r = 0; r < ranks; ++r) {
    const double goal = all * (r + 1) / ranks;
    std::int64_t end = begin;
    while (end < rows) {
      const double work = static_cast<double>(entries[static_cast<std::size_t>(end)]) + 1;
      if (r + 1 < ranks && done + work / 2 > goal) break;
      done += work;
      ++end;
    }
    pieces.push_back({.begin = begin, .end = end});
    begin = end;
  }
  return pieces;
}

std::vector<RowPiece> balanced_pieces(std::span<const std::int32_t> seq_lens, std::span<const std::int32_t> query_lens,
                                      std::int64_t ratio, int ranks) {
  check_that(seq_lens.size() == query_lens.size(), kWhat, "query_lens", static_cast<std::int64_t>(query_lens.size()),
             words(static_cast<std::int64_t>(seq_lens.size()), " as in seq_lens"));
  check_that(ratio >= 1, kWhat, "ratio", ratio, "1 or more");
  std::vector<std::int64_t> entries;
  for (std::size_t r = 0; r < seq_lens.size(); ++r) {
    check_that(query_lens[r] >= 0 && seq_lens[r] >= query_lens[r], kWhat, "query_lens row " + std::to_string(r),
               query_lens[r], words("0 to ", seq_lens[r], ", the sequence"));
    for (std::int64_t i = 0; i < query_lens[r]; ++i) entries.push_back((seq_lens[r] - query_lens[r] + i + 1) / ratio);
  }
  return balanced_pieces(entries, ranks);
}

RowGather::RowGather(std::vector<RowPiece> pieces, std::size_t row_bytes)
    : pieces_(std::move(pieces)), row_bytes_(row_bytes) {
  for (const RowPiece& piece : pieces_) most_ = std::max(most_, piece.rows());
}

std::size_t RowGather::workspace_bytes() const { return pieces_.size() * static_cast<std::size_t>(most_) * row_bytes_; }

void RowGather::run(Communicator& ranks, void* rows, Workspace workspace, Stream stream) const {
  check_that(ranks.ranks() == static_cast<int>(pieces_.size()), kWhat, "ranks", ranks.ranks(),
             words(static_cast<std::int64_t>(pieces_.size()), ", the pieces"));
  check_workspace(workspace, workspace_bytes());
  const std::size_t place = static_cast<std::size_t>(most_) * row_bytes_;
  const auto at = [&](const RowPiece& piece) {
    return static_cast<std::byte*>(rows) + static_cast<std::size_t>(piece.begin) * row_bytes_;
  };
  const auto bytes = [&](const RowPiece& piece) { return static_cast<std::size_t>(piece.rows()) * row_bytes_; };
  auto* gathered = static_cast<std::byte*>(workspace.data);
  const auto own = static_cast<std::size_t>(ranks.rank());
  copy_bytes(ranks.device(), gathered + own * place, at(pieces_[own]), bytes(pieces_[own]), stream);
  ranks.gather(gathered, place, stream);
  for (std::size_t r = 0; r < pieces_.size(); ++r) {
    if (r != own) copy_bytes(ranks.device(), at(pieces_[r]), gathered + r * place, bytes(pieces_[r]), stream);
  }
}

}  // namespace smla
