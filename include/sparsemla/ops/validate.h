#pragma once

#include "sparsemla/export.h"
#include "sparsemla/op.h"

namespace SMLA_API smla {

/// Reads the numbers that an op would follow (indices, lengths, slots, block tables, request numbers, positions) and
/// names the first bad one:
///   "sparse_attention: scopes[1].indices row 17 column 3: got 99999, expected -1 or 0..4095"
///
/// No op needs it to be safe: each skips, clamps or masks what leads nowhere. But such a number is nearly always a
/// mistake of the caller, and its only other trace is a wrong answer. What an op does not read (columns past a length,
/// tables past a sequence, rows of padding tokens) is not looked at.
///
/// Bad are: a slot or index other than -1 outside its cache; a length outside [0, width]; a slot that two tokens of a
/// call would write; a block that is needed and lies outside the table or the cache; query_start_loc that does not
/// ascend within the tokens; a sequence shorter than its query; a request number outside the batch; a position that is
/// not a row of the rope table; a sink that is NaN.
/// @throws InvalidArgument for the first bad number, and for tensors that do not fit the problem.
template <class Op>
SMLA_API void validate(const typename Op::Problem& problem, const typename Op::Args& args);

/// The same for what a plan would run.
template <class Op>
void validate(const Plan<Op>& plan, const typename Op::Args& args) {
  validate<Op>(plan.problem(), args);
}

/// Validates every op that runs on the CPU from now on, before it runs; false stops. A process has one watcher of
/// calls: this ends record_calls, and record_calls ends this.
void validate_calls(bool on);

}  // namespace smla
