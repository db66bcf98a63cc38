// The numbers inside tensors that validate reads, op by op.
#include "ops/validate_op.h"
#include "sparsemla/ops/sequences.h"

namespace smla {

namespace {

/// Requests of a rectangle of max_len rows each.
void check_packed(std::string_view op, const PackSequences::Problem& problem, const ConstTensorView& query_start_loc) {
  const Numbers start(op, "query_start_loc", query_start_loc);
  check_starts(op, start, problem.requests, problem.tokens);
  for (std::int64_t r = 0; r < problem.requests; ++r) {
    if (start(r + 1) - start(r) > problem.max_len)
      start.bad(r + 1, kNoColumn,
                "at most max_len " + std::to_string(problem.max_len) + " past row " + std::to_string(r));
  }
}

}  // namespace

// Starts, and that every request fits.
template <>
void validate<PackSequences>(const PackSequences::Problem& problem, const PackSequences::Args& args) {
  check_shapes<PackSequences>(problem, args);
  check_packed(PackSequences::kName, problem, args.query_start_loc);
}

// Starts, and that every request fits.
template <>
void validate<UnpackSequences>(const UnpackSequences::Problem& problem, const UnpackSequences::Args& args) {
  check_shapes<UnpackSequences>(problem, args);
  check_packed(UnpackSequences::kName, problem, args.query_start_loc);
}

}  // namespace smla
