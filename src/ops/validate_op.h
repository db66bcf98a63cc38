#pragma once

// What the validate functions of several families share; each stands in `<family>/validate_<family>.cpp`.

#include "ops/numbers.h"
#include "ops/registry.h"
#include "sparsemla/ops/validate.h"

namespace smla {

/// @throws InvalidArgument for an impossible problem and for tensors that do not fit it.
template <class Op>
void check_shapes(const typename Op::Problem& problem, const typename Op::Args& args) {
  OpTable<Op>::check_problem(problem);
  OpTable<Op>::check_args(problem, args);
}

/// Positions of rows that an op rotates.
inline void check_positions(std::string_view op, const ConstTensorView& positions, std::int64_t rows,
                            const ConstTensorView& cos_sin, std::string_view name = "positions") {
  const Numbers numbers(op, name, positions);
  for (std::int64_t t = 0; t < rows; ++t) numbers.in(0, cos_sin.size(0) - 1, t);
}

}  // namespace smla
