#pragma once

#include <string_view>

#include "ops/registry.h"
#include "sparsemla/ops/topk.h"

namespace smla {

/// Checks of a selection's problem, and of what it writes, for `op`.
void check_choice(std::string_view op, const TopK::Problem& problem);
void check_choice(std::string_view op, const TopK::Problem& problem, const TensorView& indices,
                  const TopK::Slots::Args& slots);
/// What `op`'s tensors say of the slots of rows with these lengths: each valid row's request and the blocks of its
/// entries.
void check_slot_rows(std::string_view op, std::int64_t rows, std::int64_t width, const TopK::Slots& slots,
                     const TopK::Slots::Args& args, const ConstTensorView& row_lens);
/// Slots of the chosen columns where the problem wants them.
void topk_slots(const TopK::Problem& problem, const TopK::Args& args, const RunContext& context);
void topk_ref(const TopK::Problem& problem, const TopK::Args& args, const RunContext& context);
/// Scores of the chosen columns where they are wanted.
void topk_scores(const TopK::Problem& problem, const TopK::Args& args);
/// The same on a GPU, behind the kernel that chose.
void topk_chosen_scores_cuda(const TopK::Problem& problem, const TopK::Args& args, const RunContext& context);
void topk_cpu(const TopK::Problem& problem, const TopK::Args& args, const RunContext& context);
void merge_topk_ref(const MergeTopK::Problem& problem, const MergeTopK::Args& args, const RunContext& context);

}  // namespace smla
