#include "ops/compressor/implementations.h"
#include "ops/compressor/pool.h"
#include "ops/compressor/window.h"
#include "ops/norm_rope/kernel_table.h"
#include "ops/norm_rope/scalar.h"

namespace smla {

namespace {

void run(PoolFunction pool, const NormRopeKernels& kernels, const CompressStore::Problem& problem,
         const CompressStore::Args& args, const RunContext& context) {
  if (!args.kv_score.absent()) save_state_cpu(save_problem(problem), save_args(args), context);
  const std::int64_t tokens = args.state_slots.size(0);
  // One token in r closes a group: chunks of r tokens hold about one entry each.
#pragma omp parallel for num_threads(context.threads) if (tokens > 32) schedule(dynamic, problem.ratio)
  for (std::int64_t t = 0; t < tokens; ++t) {
    const Closing token = closing_token(problem, args, t);
    if (!token.acts) continue;
    Window window;
    find_window(problem, args, token, window);
    if (window.rows == 0) continue;
    float row[kMaxEntry];
    pool(window.values, window.logits, window.rows, problem.dim, row);
    kernels.norm(row, DType::kF32, args.norm_weight.data, args.norm_weight.dtype, row, DType::kF32, problem.dim,
                 problem.eps);
    const int pairs = problem.rope_dim / 2;
    rotate_pairs(row + problem.dim - problem.rope_dim, pairs, token.cos_sin, token.cos_sin + pairs);
    store_entry(problem, args.entries, token.entry_slot, row);
  }
  if (problem.dim2 > 0) run(pool, kernels, second_problem(problem), second_args(args), context);
}

}  // namespace

void compress_store_cpu(const CompressStore::Problem& problem, const CompressStore::Args& args,
                        const RunContext& context) {
  run(pool_generic, norm_rope_kernels_generic(), problem, args, context);
}
void compress_store_avx2(const CompressStore::Problem& problem, const CompressStore::Args& args,
                         const RunContext& context) {
  run(pool_avx2, norm_rope_kernels_avx2(), problem, args, context);
}
void compress_store_avx512(const CompressStore::Problem& problem, const CompressStore::Args& args,
                           const RunContext& context) {
  run(pool_avx512, norm_rope_kernels_avx512(), problem, args, context);
}

}  // namespace smla
