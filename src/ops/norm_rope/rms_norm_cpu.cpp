#include "ops/norm_rope/implementations.h"
#include "ops/norm_rope/kernel_table.h"
#include "ops/norm_rope/scalar.h"

namespace smla {

namespace {

void run(const NormRopeKernels& kernels, const RmsNorm::Problem& problem, const RmsNorm::Args& args,
         const RunContext& context) {
  const void* w = problem.has_weight ? args.weight.data : nullptr;
  // Waking threads costs more than norming a few thousand numbers.
  const bool parallel = problem.rows > 1 && problem.rows * problem.dim > 65536;
#pragma omp parallel for num_threads(context.threads) if (parallel) schedule(static)
  for (std::int64_t r = 0; r < problem.rows; ++r) {
    kernels.norm(row_of(args.x, r), problem.in, w, args.weight.dtype, row_of(args.y, r), problem.out, problem.dim,
                 problem.eps);
  }
}

}  // namespace

void rms_norm_cpu(const RmsNorm::Problem& problem, const RmsNorm::Args& args, const RunContext& context) {
  run(norm_rope_kernels_generic(), problem, args, context);
}
void rms_norm_avx2(const RmsNorm::Problem& problem, const RmsNorm::Args& args, const RunContext& context) {
  run(norm_rope_kernels_avx2(), problem, args, context);
}
void rms_norm_avx512(const RmsNorm::Problem& problem, const RmsNorm::Args& args, const RunContext& context) {
  run(norm_rope_kernels_avx512(), problem, args, context);
}

}  // namespace smla
