#pragma once

#include "ops/registry.h"
#include "sparsemla/ops/index.h"

namespace smla {

// Plain integer loops: the reference is what runs, so there are no fast twins.
void token_to_req_ref(const TokenToReq::Problem& problem, const TokenToReq::Args& args, const RunContext& context);
void slot_mapping_ref(const SlotMapping::Problem& problem, const SlotMapping::Args& args, const RunContext& context);
void compressed_slot_mapping_ref(const CompressedSlotMapping::Problem& problem, const CompressedSlotMapping::Args& args,
                                 const RunContext& context);
void window_indices_ref(const WindowIndices::Problem& problem, const WindowIndices::Args& args,
                        const RunContext& context);
void dense_compressed_indices_ref(const DenseCompressedIndices::Problem& problem,
                                  const DenseCompressedIndices::Args& args, const RunContext& context);
void global_topk_ref(const GlobalTopk::Problem& problem, const GlobalTopk::Args& args, const RunContext& context);
void short_context_topk_ref(const ShortContextTopk::Problem& problem, const ShortContextTopk::Args& args,
                            const RunContext& context);
void visible_entries_ref(const VisibleEntries::Problem& problem, const VisibleEntries::Args& args,
                         const RunContext& context);
void prefill_lens_ref(const PrefillLens::Problem& problem, const PrefillLens::Args& args, const RunContext& context);
void draft_positions_ref(const DraftPositions::Problem& problem, const DraftPositions::Args& args,
                         const RunContext& context);
void combine_topk_window_ref(const CombineTopkWindow::Problem& problem, const CombineTopkWindow::Args& args,
                             const RunContext& context);
void mixed_sparse_indices_ref(const MixedSparseIndices::Problem& problem, const MixedSparseIndices::Args& args,
                              const RunContext& context);

}  // namespace smla
