#pragma once

#include "ops/registry.h"
#include "sparsemla/ops/topk.h"

namespace smla {

/// Slots of the chosen columns where the problem wants them.
void topk_slots(const TopK::Problem& problem, const TopK::Args& args, const RunContext& context);
void topk_ref(const TopK::Problem& problem, const TopK::Args& args, const RunContext& context);
/// Scores of the chosen columns where they are wanted.
void topk_scores(const TopK::Problem& problem, const TopK::Args& args);
void topk_cpu(const TopK::Problem& problem, const TopK::Args& args, const RunContext& context);
void merge_topk_ref(const MergeTopK::Problem& problem, const MergeTopK::Args& args, const RunContext& context);

}  // namespace smla
