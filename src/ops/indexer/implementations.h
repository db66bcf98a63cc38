#pragma once

#include "ops/registry.h"
#include "sparsemla/ops/indexer.h"

namespace smla {

void indexer_q_ref(const IndexerQ::Problem& problem, const IndexerQ::Args& args, const RunContext& context);
void indexer_q_cpu(const IndexerQ::Problem& problem, const IndexerQ::Args& args, const RunContext& context);

void indexer_logits_ref(const IndexerLogits::Problem& problem, const IndexerLogits::Args& args,
                        const RunContext& context);
void indexer_logits_cpu(const IndexerLogits::Problem& problem, const IndexerLogits::Args& args,
                        const RunContext& context);
void indexer_logits_avx2(const IndexerLogits::Problem& problem, const IndexerLogits::Args& args,
                         const RunContext& context);
void indexer_logits_avx512(const IndexerLogits::Problem& problem, const IndexerLogits::Args& args,
                           const RunContext& context);
/// The CUDA kernels for any GPU (indexer_logits_cuda.cu), also for tensors that the Hopper kernel cannot read. The
/// decision's choice is the GPU.
void indexer_logits_cuda(const IndexerLogits::Problem& problem, const IndexerLogits::Args& args,
                         const RunContext& context);
void ragged_indexer_logits_cuda(const RaggedIndexerLogits::Problem& problem, const RaggedIndexerLogits::Args& args,
                                const RunContext& context);
std::size_t indexer_logits_workspace(const IndexerLogits::Problem& problem, int threads);

void ragged_indexer_logits_ref(const RaggedIndexerLogits::Problem& problem, const RaggedIndexerLogits::Args& args,
                               const RunContext& context);
void ragged_indexer_logits_cpu(const RaggedIndexerLogits::Problem& problem, const RaggedIndexerLogits::Args& args,
                               const RunContext& context);
void ragged_indexer_logits_avx2(const RaggedIndexerLogits::Problem& problem, const RaggedIndexerLogits::Args& args,
                                const RunContext& context);
void ragged_indexer_logits_avx512(const RaggedIndexerLogits::Problem& problem, const RaggedIndexerLogits::Args& args,
                                  const RunContext& context);
std::size_t ragged_indexer_logits_workspace(const RaggedIndexerLogits::Problem& problem, int threads);

/// Checks of `op`'s problem, and of its tensors but for what it writes.
void check_index_scores(std::string_view op, const IndexerLogits::Problem& problem);
void check_index_scores(std::string_view op, const IndexerLogits::Problem& problem, const IndexerLogits::Args& args);

/// IndexerTopK as the two ops, some rows at a time (indexer_topk.cpp): the decision of any machine, which holds their
/// decisions, and the run by such a decision. The workspace grows with the problem.
Decision decide_indexer_topk_pieces(const IndexerTopK::Problem& problem, const PlanOptions& options,
                                    const Machine& machine);
void run_indexer_topk_pieces(const IndexerTopK::Problem& problem, const IndexerTopK::Args& args,
                             const RunContext& context);

void gather_index_rows_ref(const GatherIndexRows::Problem& problem, const GatherIndexRows::Args& args,
                           const RunContext& context);

}  // namespace smla
