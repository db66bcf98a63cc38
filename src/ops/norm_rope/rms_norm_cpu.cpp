#include "ops/norm_rope/implementations.h"
#include "ops/norm_rope/kernel_table.h"
#include "ops/norm_rope/scalar.h"

namespace smla {

namespace {

void norm(const NormRopeKernels& kernels, const RmsNorm::Problem& problem, std::int64_t dim, const ConstTensorView& x,
          const ConstTensorView& weight, const TensorView& y, const RunContext& context) {
  const void* w = problem.has_weight ? weight.data : nullptr;
  // Waking threads costs more than norming a few thousand numbers.
  const bool parallel = problem.rows > 1 && problem.rows * dim > 65536;
#pragma omp parallel for num_threads(context.threads) if (parallel) schedule(static)
  for (std::int64_t r = 0; r < problem.rows; ++r) {
    kernels.norm(row_of(x, r), problem.in, w, weight.dtype, row_of(y, r), problem.out, dim, problem.eps);
  }
}

void run(const NormRopeKernels& kernels, const RmsNorm::Problem& problem, const RmsNorm::Args& args,
         const RunContext& context) {
  norm(kernels, problem, problem.dim, args.x, args.weight, args.y, context);
  if (problem.dim2 == 0) return;
  const bool inserts = problem.format != nullptr;
  const TensorView y2 =
      inserts ? TensorView(context.workspace.data, problem.out, {problem.rows, problem.dim2}) : args.y2;
  norm(kernels, problem, problem.dim2, args.x2, args.weight2, y2, context);
  if (inserts) qnorm_rope_insert_cpu(insert_problem(problem), insert_args(args, y2), context);
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
