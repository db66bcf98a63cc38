#pragma once

#include "sparsemla/export.h"
#include "sparsemla/ops/attention.h"
#include "sparsemla/ops/compressor.h"
#include "sparsemla/ops/index.h"
#include "sparsemla/ops/indexer.h"
#include "sparsemla/ops/norm_rope.h"
#include "sparsemla/ops/projection.h"
#include "sparsemla/ops/sequences.h"
#include "sparsemla/ops/topk.h"

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
/// not a row of the rope table; a sink that is NaN. This overload reads lengths and slots of every scope, and sinks.
/// @throws InvalidArgument for the first bad number, and for tensors that do not fit the problem.
void validate(const SparseAttention::Problem& problem, const SparseAttention::Args& args);
/// Sinks.
void validate(const MergePartials::Problem& problem, const MergePartials::Args& args);
/// Lengths and the blocks of the rows that are gathered.
void validate(const GatherRows::Problem& problem, const GatherRows::Args& args);
/// Positions.
void validate(const IndexerQ::Problem& problem, const IndexerQ::Args& args);
/// Lengths, and for rows with entries their request and its blocks.
void validate(const IndexerLogits::Problem& problem, const IndexerLogits::Args& args);
/// Starts and the blocks of every row.
void validate(const GatherIndexRows::Problem& problem, const GatherIndexRows::Args& args);
/// Bounds of every row.
void validate(const RaggedIndexerLogits::Problem& problem, const RaggedIndexerLogits::Args& args);
/// Lengths.
void validate(const TopK::Problem& problem, const TopK::Args& args);
/// Starts.
void validate(const TokenToReq::Problem& problem, const TokenToReq::Args& args);
/// Starts, and for tokens that are no padding their request, position and block.
void validate(const SlotMapping::Problem& problem, const SlotMapping::Args& args);
/// Starts, sequences and the blocks of the entries that are closed.
void validate(const CompressedSlotMapping::Problem& problem, const CompressedSlotMapping::Args& args);
/// Starts, sequences, and for valid tokens their request and the blocks of the window.
void validate(const WindowIndices::Problem& problem, const WindowIndices::Args& args);
/// For valid tokens position, request and the blocks of the entries.
void validate(const DenseCompressedIndices::Problem& problem, const DenseCompressedIndices::Args& args);
/// For valid tokens request, entries and their blocks.
void validate(const GlobalTopk::Problem& problem, const GlobalTopk::Args& args);
/// Shapes alone: any position has its row.
void validate(const ShortContextTopk::Problem& problem, const ShortContextTopk::Args& args);
/// Shapes alone: every number has a meaning.
void validate(const VisibleEntries::Problem& problem, const VisibleEntries::Args& args);
/// Starts, and sequences of at least their tokens.
void validate(const PrefillLens::Problem& problem, const PrefillLens::Args& args);
/// Shapes alone.
void validate(const DraftPositions::Problem& problem, const DraftPositions::Args& args);
/// Shapes alone.
void validate(const AddRows::Problem& problem, const AddRows::Args& args);
/// Shapes alone.
void validate(const QuantizeRows::Problem& problem, const QuantizeRows::Args& args);
/// Starts, sequences, entries, and that the window was gathered and has room.
void validate(const CombineTopkWindow::Problem& problem, const CombineTopkWindow::Args& args);
/// Starts, sequences, lists, requests and blocks.
void validate(const MixedSparseIndices::Problem& problem, const MixedSparseIndices::Args& args);
/// Slots, each once, and positions.
void validate(const SaveState::Problem& problem, const SaveState::Args& args);
/// Slots, each once; for tokens that close a group position, request and the blocks of its states.
void validate(const CompressStore::Problem& problem, const CompressStore::Args& args);
/// Positions and slots, each once.
void validate(const QNormRopeInsert::Problem& problem, const QNormRopeInsert::Args& args);
/// Slots, each once.
void validate(const InsertRows::Problem& problem, const InsertRows::Args& args);
/// Positions.
void validate(const InverseRope::Problem& problem, const InverseRope::Args& args);
/// Positions.
void validate(const InverseRopeQuant::Problem& problem, const InverseRopeQuant::Args& args);
/// Shapes alone.
void validate(const RmsNorm::Problem& problem, const RmsNorm::Args& args);
/// Shapes alone.
void validate(const Projection::Problem& problem, const Projection::Args& args);
/// Starts, and that every request fits.
void validate(const PackSequences::Problem& problem, const PackSequences::Args& args);
/// Starts, and that every request fits.
void validate(const UnpackSequences::Problem& problem, const UnpackSequences::Args& args);

/// The same for what a plan would run.
template <class Op>
void validate(const Plan<Op>& plan, const typename Op::Args& args) {
  validate(plan.problem(), args);
}

/// Validates every op that runs on the CPU from now on, before it runs; false stops. A process has one watcher of
/// calls: this ends record_calls, and record_calls ends this.
void validate_calls(bool on);

}  // namespace smla
