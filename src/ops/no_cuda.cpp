// Every op's CUDA implementation where the build has no CUDA: it refuses every problem, so that it is never run.
#include "ops/attention/implementations.h"
#include "ops/cuda_op.h"
#include "ops/topk/implementations.h"
#include "sparsemla/ops/attention.h"
#include "sparsemla/ops/compressor.h"
#include "sparsemla/ops/index.h"
#include "sparsemla/ops/indexer.h"
#include "sparsemla/ops/norm_rope.h"
#include "sparsemla/ops/projection.h"
#include "sparsemla/ops/sequences.h"
#include "sparsemla/ops/topk.h"

namespace smla {

std::string attention_choice(const SparseAttention::Problem&, const PlanOptions&) { return {}; }
std::string topk_choice(const TopK::Problem&, const PlanOptions&) { return {}; }

template <class Op>
std::string CudaOp<Op>::refuse(const typename Op::Problem& /*problem*/, const PlanOptions& /*options*/) {
  return needs_gpu();
}

template <class Op>
std::size_t CudaOp<Op>::workspace_bytes(const typename Op::Problem& /*problem*/, int /*threads*/) {
  return 0;
}

template <class Op>
void CudaOp<Op>::run(const typename Op::Problem& /*problem*/, const typename Op::Args& /*args*/,
                     const RunContext& /*context*/) {
  throw Unsupported(std::string(Op::kName) + ": " + needs_gpu());
}

template struct CudaOp<TokenToReq>;
template struct CudaOp<SlotMapping>;
template struct CudaOp<CompressedSlotMapping>;
template struct CudaOp<WindowIndices>;
template struct CudaOp<DenseCompressedIndices>;
template struct CudaOp<GlobalTopk>;
template struct CudaOp<ShortContextTopk>;
template struct CudaOp<VisibleEntries>;
template struct CudaOp<PrefillLens>;
template struct CudaOp<DraftPositions>;
template struct CudaOp<CombineTopkWindow>;
template struct CudaOp<MixedSparseIndices>;
template struct CudaOp<SparseAttention>;
template struct CudaOp<SparseAttentionSimt>;
template struct CudaOp<Projection>;
template struct CudaOp<RmsNorm>;
template struct CudaOp<LatentNorms>;
template struct CudaOp<QNormRopeInsert>;
template struct CudaOp<InverseRope>;
template struct CudaOp<InverseRopeQuant>;
template struct CudaOp<QuantizeRows>;
template struct CudaOp<InsertRows>;
template struct CudaOp<AddRows>;
template struct CudaOp<MergePartials>;
template struct CudaOp<GatherRows>;
template struct CudaOp<SaveState>;
template struct CudaOp<CompressStore>;
template struct CudaOp<IndexerQ>;
template struct CudaOp<IndexerLogits>;
template struct CudaOp<GatherIndexRows>;
template struct CudaOp<RaggedIndexerLogits>;
template struct CudaOp<TopK>;
template struct CudaOp<PackSequences>;
template struct CudaOp<UnpackSequences>;

}  // namespace smla
