#pragma once

#include "sparsemla/export.h"
#include "sparsemla/ops/attention.h"
#include "sparsemla/ops/compressor.h"
#include "sparsemla/ops/index.h"
#include "sparsemla/ops/indexer.h"
#include "sparsemla/ops/norm_rope.h"
#include "sparsemla/ops/projection.h"
#include "sparsemla/ops/topk.h"

namespace SMLA_API smla {

/// Reads the numbers that an op would follow (indices, lengths, slots, block tables, request numbers, positions) and names the first bad one:
///   "sparse_attention: scopes[1].indices row 17 column 3: got 99999, expected -1 or 0..4095"
///
/// No op needs it to be safe: each skips, clamps or masks what leads nowhere. But such a number is nearly always a mistake of the caller, and its only
/// other trace is a wrong answer. What an op does not read (columns past a length, tables past a sequence, rows of padding tokens) is not looked at.
///
/// Bad are: a slot or index other than -1 outside its cache; a length outside [0, width]; a slot that two tokens of a call would write; a block that is
/// needed and lies outside the table or the cache; query_start_loc that does not ascend within the tokens; a sequence shorter than its query; a request
/// number outside the batch; a position that is not a row of the rope table; a sink that is NaN.
/// @throws InvalidArgument for the first bad number, and for tensors that do not fit the problem.
void validate(const SparseAttention::Problem& problem, const SparseAttention::Args& args);
void validate(const MergePartials::Problem& problem, const MergePartials::Args& args);
void validate(const GatherRows::Problem& problem, const GatherRows::Args& args);
void validate(const IndexerQ::Problem& problem, const IndexerQ::Args& args);
void validate(const IndexerLogits::Problem& problem, const IndexerLogits::Args& args);
void validate(const GatherIndexRows::Problem& problem, const GatherIndexRows::Args& args);
void validate(const RaggedIndexerLogits::Problem& problem, const RaggedIndexerLogits::Args& args);
void validate(const TopK::Problem& problem, const TopK::Args& args);
void validate(const TokenToReq::Problem& problem, const TokenToReq::Args& args);
void validate(const SlotMapping::Problem& problem, const SlotMapping::Args& args);
void validate(const CompressedSlotMapping::Problem& problem, const CompressedSlotMapping::Args& args);
void validate(const WindowIndices::Problem& problem, const WindowIndices::Args& args);
void validate(const DenseCompressedIndices::Problem& problem, const DenseCompressedIndices::Args& args);
void validate(const GlobalTopk::Problem& problem, const GlobalTopk::Args& args);
void validate(const ShortContextTopk::Problem& problem, const ShortContextTopk::Args& args);
void validate(const CombineTopkWindow::Problem& problem, const CombineTopkWindow::Args& args);
void validate(const MixedSparseIndices::Problem& problem, const MixedSparseIndices::Args& args);
void validate(const SaveState::Problem& problem, const SaveState::Args& args);
void validate(const CompressStore::Problem& problem, const CompressStore::Args& args);
void validate(const QNormRopeInsert::Problem& problem, const QNormRopeInsert::Args& args);
void validate(const InsertRows::Problem& problem, const InsertRows::Args& args);
void validate(const InverseRope::Problem& problem, const InverseRope::Args& args);
void validate(const InverseRopeQuant::Problem& problem, const InverseRopeQuant::Args& args);
void validate(const RmsNorm::Problem& problem, const RmsNorm::Args& args);
void validate(const Projection::Problem& problem, const Projection::Args& args);

/// The same for what a plan would run.
template <class Op>
void validate(const Plan<Op>& plan, const typename Op::Args& args) {
  validate(plan.problem(), args);
}

/// Validates every op that runs on the CPU from now on, before it runs; false stops. A process has one watcher of calls: this ends record_calls, and
/// record_calls ends this.
void validate_calls(bool on);

}  // namespace smla
