#pragma once

#include "ops/norm_rope/implementations.h"

namespace smla {

/// LatentNorms as its ops one after the other.
inline void run_latent_norms(const LatentNorms::Problem& p, const LatentNorms::Args& a, const RunContext& context,
                             decltype(rms_norm_ref)& norm, decltype(quantize_rows_ref)& quantize,
                             decltype(qnorm_rope_insert_ref)& insert) {
  const auto problem = [&](std::int64_t dim) {
    return RmsNorm::Problem{
        .rows = p.rows, .dim = dim, .in = p.in, .out = p.out, .has_weight = p.has_weight, .eps = p.eps};
  };
  norm(problem(p.qr_dim), {.x = a.qr, .weight = a.qr_weight, .y = a.qr_out}, context);
  if (p.quantises_qr)
    quantize({.rows = p.rows, .dim = p.qr_dim, .in = p.out},
             {.x = a.qr_out, .values = a.qr_values, .scales = a.qr_scales}, context);
  const TensorView kv_out = p.insert ? TensorView(context.workspace.data, p.out, {p.rows, p.kv_dim}) : a.kv_out;
  norm(problem(p.kv_dim), {.x = a.kv, .weight = a.kv_weight, .y = kv_out}, context);
  if (!p.insert) return;
  insert({.tokens = p.rows,
          .dim = static_cast<int>(p.kv_dim),
          .rope_dim = p.insert->rope_dim,
          .in = p.out,
          .format = p.insert->format,
          .clamp = p.insert->clamp},
         {.q = {},
          .kv = kv_out,
          .positions = a.insert.positions,
          .cos_sin = a.insert.cos_sin,
          .slot_mapping = a.insert.slot_mapping,
          .q_out = {},
          .cache = a.insert.cache},
         context);
}

}  // namespace smla
