#include <cmath>

#include "cache/row_codec.h"
#include "ops/norm_rope/implementations.h"
#include "ops/norm_rope/scalar.h"

namespace smla {

namespace {

// One head: x * rsqrt(sum(x^2)/n + eps), the last rope_dim dims rotated, one rounding (spec 2, step 4).
void norm_rope_head(const QNormRopeInsert::Problem& problem, const void* q, void* out, const float* cos_sin) {
  float y[kMaxRopeRow];
  double sum = 0.0;
  for (int i = 0; i < problem.dim; ++i) {
    y[i] = load_element(problem.in, q, i);
    sum += static_cast<double>(y[i]) * y[i];
  }
  const auto inverse = static_cast<float>(1.0 / std::sqrt(sum / problem.dim + static_cast<double>(problem.eps)));
  for (int i = 0; i < problem.dim; ++i) y[i] *= inverse;
  const int pairs = problem.rope_dim / 2;
  rotate_pairs(y + problem.dim - problem.rope_dim, pairs, cos_sin, cos_sin + pairs);
  const float factor = problem.q_out == DType::kE4M3 ? problem.q_scale_inv : 1.0F;
  for (int i = 0; i < problem.dim; ++i) store_element(problem.q_out, out, i, y[i] * factor);
}

}  // namespace

// Every q row; the first M rows of kv where slot >= 0 (spec 5.3). kv is rotated and encoded, not normed: that was done
// before.
void qnorm_rope_insert_ref(const QNormRopeInsert::Problem& problem, const QNormRopeInsert::Args& args,
                           const RunContext&) {
  const auto* positions = static_cast<const std::int64_t*>(args.positions.data);
  const auto* slots = static_cast<const std::int64_t*>(args.slot_mapping.data);
  const std::int64_t inserted = problem.format == nullptr ? 0 : args.slot_mapping.size(0);
  for (std::int64_t t = 0; t < problem.tokens; ++t) {
    const float* cos_sin = rope_row(args.cos_sin, positions[t * args.positions.stride[0]]);
    if (cos_sin == nullptr) continue;
    for (std::int64_t h = 0; h < problem.heads; ++h)
      norm_rope_head(problem, row_of(args.q, t, h), row_of(args.q_out, t, h), cos_sin);
    for (std::int64_t h = problem.heads; h < problem.out_heads; ++h) {
      for (int i = 0; i < problem.dim; ++i) store_element(problem.q_out, row_of(args.q_out, t, h), i, 0.0F);
    }
    if (t >= inserted) continue;
    const std::int64_t slot = slots[t * args.slot_mapping.stride[0]];
    if (slot < 0 || slot >= args.cache.num_slots()) continue;
    float row[kMaxRopeRow];
    for (int i = 0; i < problem.dim; ++i) row[i] = load_element(problem.in, row_of(args.kv, t), i);
    const int pairs = problem.rope_dim / 2;
    rotate_pairs(row + problem.dim - problem.rope_dim, pairs, cos_sin, cos_sin + pairs);
    encode_row(args.cache, slot, row, problem.clamp);
  }
}

}  // namespace smla
