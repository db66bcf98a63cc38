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

void gather_index_rows_ref(const GatherIndexRows::Problem& problem, const GatherIndexRows::Args& args,
                           const RunContext& context);

}  // namespace smla
