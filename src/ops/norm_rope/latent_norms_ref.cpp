#include "ops/norm_rope/latent_norms.h"

namespace smla {

// qr_out = RMSNorm(qr), kv_out = RMSNorm(kv) (spec 2); with quantises_qr qr_out becomes E4M3 too, with insert kv_out is
// rotated and encoded (spec 5.3).
void latent_norms_ref(const LatentNorms::Problem& problem, const LatentNorms::Args& args, const RunContext& context) {
  run_latent_norms(problem, args, context, rms_norm_ref, quantize_rows_ref, qnorm_rope_insert_ref);
}

}  // namespace smla
