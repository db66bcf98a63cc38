#pragma once

#include "ops/registry.h"
#include "sparsemla/ops/attention.h"
#include "sparsemla/ops/norm_rope.h"

namespace smla {

/// The entries [begin, end) of its row of indices that count for a token (see SparseAttention), within the row; of an
/// empty range begin = end.
struct EntryRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
EntryRange entries_of(const SparseAttention::Scope& scope, std::int64_t width, std::int64_t token);

/// The row of the fp32 CUDA kernel, "cuda_simt" (sparse_attention_simt_cuda.cu): dtypes, formats and rows that the
/// tensor-core kernel leaves.
Implementation<SparseAttention> sparse_attention_simt_row();

/// The row of the Hopper kernel over rows that are widened first, "sm90_widened" (sparse_attention_sm90.cu).
Implementation<SparseAttention> sparse_attention_widened_row();

/// The row of the Hopper kernel for few queries, "sm90_small" (sparse_attention_small_sm90.cu).
Implementation<SparseAttention> sparse_attention_small_row();

/// Whether o is E4M3, group after group, with scales.
bool is_quantised(const SparseAttention::Problem& problem);

/// E4M3 o by an implementation that does not write it (quantised_output.cpp): attention in BF16, some tokens at a time,
/// then InverseRopeQuant. Its decision, and the run by such a decision.
Decision decide_quantised_pieces(const Implementation<SparseAttention>& inner, const SparseAttention::Problem& problem,
                                 const PlanOptions& options, const Machine& machine);
void run_quantised_pieces(const SparseAttention::Problem& problem, const SparseAttention::Args& args,
                          const RunContext& context);

/// The output epilogue of a call as an op of its own: InverseRope in place.
InverseRope::Problem rope_problem(const SparseAttention::Problem& problem);
InverseRope::Args rope_args(const SparseAttention::Problem& problem, const SparseAttention::Args& args);

/// The query prologue of a call as an op of its own: QNormRopeInsert of a copy of q, which takes
/// query_bytes(). For implementations on the host.
using QueryMaker = void (*)(const QNormRopeInsert::Problem&, const QNormRopeInsert::Args&, const RunContext&);
std::size_t query_bytes(const SparseAttention::Problem& problem);
SparseAttention::Args with_ready_queries(const SparseAttention::Problem& problem, const SparseAttention::Args& args,
                                         void* place, QueryMaker make, const RunContext& context);

void sparse_attention_ref(const SparseAttention::Problem& problem, const SparseAttention::Args& args,
                          const RunContext& context);

std::size_t sparse_attention_workspace(const SparseAttention::Problem& problem, int threads);
void sparse_attention_cpu(const SparseAttention::Problem& problem, const SparseAttention::Args& args,
                          const RunContext& context);
void sparse_attention_avx2(const SparseAttention::Problem& problem, const SparseAttention::Args& args,
                           const RunContext& context);
void sparse_attention_avx512(const SparseAttention::Problem& problem, const SparseAttention::Args& args,
                             const RunContext& context);

void merge_partials_ref(const MergePartials::Problem& problem, const MergePartials::Args& args,
                        const RunContext& context);
void merge_partials_cpu(const MergePartials::Problem& problem, const MergePartials::Args& args,
                        const RunContext& context);

Decision gather_rows_decide(const GatherRows::Problem& problem, const PlanOptions& options, const Machine& machine);
void gather_rows_ref(const GatherRows::Problem& problem, const GatherRows::Args& args, const RunContext& context);
void gather_rows_cpu(const GatherRows::Problem& problem, const GatherRows::Args& args, const RunContext& context);

}  // namespace smla
