// The numbers inside tensors that validate reads, op by op.
#include <cmath>

#include "ops/validate_op.h"
#include "sparsemla/ops/attention.h"

namespace smla {

namespace {

void check_sink(std::string_view op, const ConstTensorView& sink, std::int64_t heads) {
  for (std::int64_t h = 0; !sink.absent() && h < heads; ++h) {
    if (std::isnan(sink.as<float>()[h * sink.stride[0]]))
      bad_number(op, "sink", h, kNoColumn, "nan", "a number or an infinity");
  }
}

}  // namespace

// Lengths and the blocks of the rows that are gathered.
template <>
void validate<GatherRows>(const GatherRows::Problem& problem, const GatherRows::Args& args) {
  constexpr std::string_view op = GatherRows::kName;
  check_shapes<GatherRows>(problem, args);
  const Numbers seq_lens(op, "seq_lens", args.seq_lens);
  const Numbers gather_lens(op, "gather_lens", args.gather_lens);
  const TableNumbers table(op, "block_table", args.block_table, args.cache.block_size, args.cache.num_blocks);
  for (std::int64_t b = 0; b < problem.requests; ++b) {
    const std::int64_t seq = seq_lens.in(0, INT32_MAX, b);
    const std::int64_t n = gather_lens.absent() ? seq : gather_lens.in(0, seq, b);
    if (n > problem.rows - problem.offset) {
      (gather_lens.absent() ? seq_lens : gather_lens)
          .bad(b, kNoColumn, "at most the " + std::to_string(problem.rows - problem.offset) + " rows of out");
    }
    table.check(b, seq - n, seq, "rows " + range_of(seq - n, seq - 1));
  }
}

// Lengths and slots of every scope, sinks, and positions where something is rotated.
template <>
void validate<SparseAttention>(const SparseAttention::Problem& problem, const SparseAttention::Args& args) {
  constexpr std::string_view op = SparseAttention::kName;
  check_shapes<SparseAttention>(problem, args);
  for (int i = 0; i < problem.scopes; ++i) {
    const SparseAttention::Scope& scope = args.scopes.at(static_cast<std::size_t>(i));
    const std::int64_t width = problem.scope.at(static_cast<std::size_t>(i)).width;
    if (width == 0) continue;
    const std::string prefix = "scopes[" + std::to_string(i) + "].";
    const std::string lens_name = prefix + "lens";
    const std::string starts_name = prefix + "starts";
    const std::string indices_name = prefix + "indices";
    const Numbers lens(op, lens_name, scope.lens);
    const Numbers starts(op, starts_name, scope.starts);
    const Numbers indices(op, indices_name, scope.indices);
    for (std::int64_t t = 0; t < problem.tokens; ++t) {
      const std::int64_t start = starts.absent() ? 0 : starts.in(0, width, t);
      const std::int64_t end = lens.absent() ? width : start + lens.in(0, width - start, t);
      for (std::int64_t c = start; c < end; ++c) indices.index(scope.cache.num_slots(), t / problem.tokens_per_list, c);
    }
  }
  check_sink(op, args.sink, problem.heads);
  if (problem.query_prologue) {
    check_positions(op, args.query_prologue.positions, problem.tokens, args.query_prologue.cos_sin,
                    "query_prologue.positions");
  }
  if (problem.output_epilogue) {
    check_positions(op, args.output_epilogue.positions, problem.tokens, args.output_epilogue.cos_sin,
                    "output_epilogue.positions");
  }
}

// Sinks.
template <>
void validate<MergePartials>(const MergePartials::Problem& problem, const MergePartials::Args& args) {
  check_shapes<MergePartials>(problem, args);
  check_sink(MergePartials::kName, args.sink, problem.heads);
}

}  // namespace smla
