#pragma once

#include "ops/registry.h"
#include "sparsemla/ops/norm_rope.h"

namespace smla {

void rms_norm_ref(const RmsNorm::Problem& problem, const RmsNorm::Args& args, const RunContext& context);
void rms_norm_cpu(const RmsNorm::Problem& problem, const RmsNorm::Args& args, const RunContext& context);
void rms_norm_avx2(const RmsNorm::Problem& problem, const RmsNorm::Args& args, const RunContext& context);
void rms_norm_avx512(const RmsNorm::Problem& problem, const RmsNorm::Args& args, const RunContext& context);

/// On any GPU.
inline void rms_norm_on_gpu(const RmsNorm::Problem& problem, const RmsNorm::Args& args, const RunContext& context) {
  cuda_row<RmsNorm>().run(problem, args, context);
}

/// Bytes that hold the normed keys until they are inserted.
std::size_t normed_kv_bytes(const LatentNorms::Problem& problem, int threads);
void latent_norms_ref(const LatentNorms::Problem& problem, const LatentNorms::Args& args, const RunContext& context);
void latent_norms_cpu(const LatentNorms::Problem& problem, const LatentNorms::Args& args, const RunContext& context);
void latent_norms_avx2(const LatentNorms::Problem& problem, const LatentNorms::Args& args, const RunContext& context);
void latent_norms_avx512(const LatentNorms::Problem& problem, const LatentNorms::Args& args, const RunContext& context);

void quantize_rows_ref(const QuantizeRows::Problem& problem, const QuantizeRows::Args& args, const RunContext& context);
void quantize_rows_cpu(const QuantizeRows::Problem& problem, const QuantizeRows::Args& args, const RunContext& context);
/// On any GPU.
inline void quantize_rows_on_gpu(const QuantizeRows::Problem& problem, const QuantizeRows::Args& args,
                                 const RunContext& context) {
  cuda_row<QuantizeRows>().run(problem, args, context);
}

void qnorm_rope_insert_ref(const QNormRopeInsert::Problem& problem, const QNormRopeInsert::Args& args,
                           const RunContext& context);
void qnorm_rope_insert_cpu(const QNormRopeInsert::Problem& problem, const QNormRopeInsert::Args& args,
                           const RunContext& context);
void qnorm_rope_insert_avx2(const QNormRopeInsert::Problem& problem, const QNormRopeInsert::Args& args,
                            const RunContext& context);
void qnorm_rope_insert_avx512(const QNormRopeInsert::Problem& problem, const QNormRopeInsert::Args& args,
                              const RunContext& context);

void inverse_rope_ref(const InverseRope::Problem& problem, const InverseRope::Args& args, const RunContext& context);
void inverse_rope_cpu(const InverseRope::Problem& problem, const InverseRope::Args& args, const RunContext& context);

/// On a GPU (inverse_rope_cuda.cu).
void inverse_rope_cuda(const InverseRope::Problem& problem, const InverseRope::Args& args, const RunContext& context);

void inverse_rope_quant_ref(const InverseRopeQuant::Problem& problem, const InverseRopeQuant::Args& args,
                            const RunContext& context);
void inverse_rope_quant_cpu(const InverseRopeQuant::Problem& problem, const InverseRopeQuant::Args& args,
                            const RunContext& context);

void insert_rows_ref(const InsertRows::Problem& problem, const InsertRows::Args& args, const RunContext& context);

}  // namespace smla
