#pragma once

// The one list of the library's ops. Catalogue, case files, recording, validation, the C interface's calls by name and
// what stands in where CUDA is missing are loops over it.

#include "sparsemla/ops/attention.h"
#include "sparsemla/ops/compressor.h"
#include "sparsemla/ops/index.h"
#include "sparsemla/ops/indexer.h"
#include "sparsemla/ops/norm_rope.h"
#include "sparsemla/ops/projection.h"
#include "sparsemla/ops/sequences.h"
#include "sparsemla/ops/topk.h"

namespace smla {

/// Types, as a value that can be handed to a function.
template <class... Types>
struct TypeList {
  static constexpr int kSize = sizeof...(Types);  ///< how many
};

/// Every op, in the order of a layer. An op that is not here has no entry in the catalogue, no cases and no call by
/// name.
using AllOps = TypeList<Projection, JointProjection, OutputProjection, RmsNorm, LatentNorms, AddRows, QuantizeRows,
                        QNormRopeInsert, InsertRows, SaveState, CompressStore, IndexerQ, IndexerLogits, IndexerTopK,
                        GatherIndexRows, RaggedIndexerLogits, TopK, MergeTopK, TokenToReq, SlotMapping,
                        CompressedSlotMapping, WindowIndices, DenseCompressedIndices, GlobalTopk, ShortContextTopk,
                        VisibleEntries, PrefillLens, DraftPositions, CombineTopkWindow, MixedSparseIndices, GatherRows,
                        SparseAttention, MergePartials, InverseRope, InverseRopeQuant, PackSequences, UnpackSequences>;

/// Calls `f.template operator()<Type>()` for each type of a list, in its order: for_each_type(list, []<class T>() {}).
template <class... Types>
constexpr void for_each_type(TypeList<Types...> /*list*/, auto&& f) {
  (f.template operator()<Types>(), ...);
}

/// The same for every op: for_each_op([]<class Op>() { ... }).
constexpr void for_each_op(auto&& f) { for_each_type(AllOps{}, f); }

}  // namespace smla
