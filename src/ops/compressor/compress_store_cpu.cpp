#include "ops/compressor/implementations.h"
#include "ops/compressor/pool.h"
#include "ops/compressor/window.h"
#include "ops/norm_rope/kernel_table.h"
#include "ops/norm_rope/scalar.h"

namespace smla {

namespace {

void compress(PoolFunction pool, const NormRopeKernels& kernels, const CompressorCall& c, const RunContext& context) {
  if (c.saves()) save_state_cpu(c.save_problem(), c.save_args(), context);
  const std::int64_t tokens = c.own.state_slots.size(0);
  const int dim = c.shape.dim;
  const int rope_dim = c.problem.rope_dim;
  // One token in r closes a group: chunks of r tokens hold about one entry each.
#pragma omp parallel for num_threads(context.threads) if (tokens > 32) schedule(dynamic, c.problem.ratio)
  for (std::int64_t t = 0; t < tokens; ++t) {
    const Closing token = closing_token(c, t);
    if (!token.acts) continue;
    Window window;
    find_window(c, token, window);
    if (window.rows == 0) continue;
    float row[kMaxEntry];
    pool(window.values, window.logits, window.rows, dim, row);
    kernels.norm(row, DType::kF32, c.own.norm_weight.data, c.own.norm_weight.dtype, row, DType::kF32, dim,
                 c.problem.eps);
    const int pairs = rope_dim / 2;
    rotate_pairs(row + dim - rope_dim, pairs, token.cos_sin, token.cos_sin + pairs);
    store_entry(c, token.entry_slot, row);
  }
}

void run(PoolFunction pool, const NormRopeKernels& kernels, const CompressStore::Problem& problem,
         const CompressStore::Args& args, const RunContext& context) {
  for (int i = 0; i < problem.compressors; ++i) compress(pool, kernels, {problem, args, i}, context);
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
