#include "ops/norm_rope/latent_norms.h"

namespace smla {

void latent_norms_cpu(const LatentNorms::Problem& problem, const LatentNorms::Args& args, const RunContext& context) {
  run_latent_norms(problem, args, context, rms_norm_cpu, quantize_rows_cpu, qnorm_rope_insert_cpu);
}
void latent_norms_avx2(const LatentNorms::Problem& problem, const LatentNorms::Args& args, const RunContext& context) {
  run_latent_norms(problem, args, context, rms_norm_avx2, quantize_rows_cpu, qnorm_rope_insert_cpu);
}
void latent_norms_avx512(const LatentNorms::Problem& problem, const LatentNorms::Args& args,
                         const RunContext& context) {
  run_latent_norms(problem, args, context, rms_norm_avx512, quantize_rows_cpu, qnorm_rope_insert_cpu);
}

}  // namespace smla
