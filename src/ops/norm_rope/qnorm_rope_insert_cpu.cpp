#include <cstring>

#include "cache/row_codec.h"
#include "ops/norm_rope/implementations.h"
#include "ops/norm_rope/kernel_table.h"
#include "ops/norm_rope/scalar.h"

namespace smla {

namespace {

void insert_row(const QNormRopeInsert::Problem& problem, const QNormRopeInsert::Args& args, std::int64_t token,
                std::int64_t slot, const float* cos_sin) {
  float row[kMaxRopeRow];
  const void* kv = row_of(args.kv, token);
  for (int i = 0; i < problem.dim; ++i) row[i] = load_element(problem.in, kv, i);
  const int pairs = problem.rope_dim / 2;
  rotate_pairs(row + problem.dim - problem.rope_dim, pairs, cos_sin, cos_sin + pairs);
  encode_row(args.cache, slot, row, problem.clamp);
}

void run(const NormRopeKernels& kernels, const QNormRopeInsert::Problem& problem, const QNormRopeInsert::Args& args,
         const RunContext& context) {
  const auto* positions = static_cast<const std::int64_t*>(args.positions.data);
  const auto* slots = static_cast<const std::int64_t*>(args.slot_mapping.data);
  const std::int64_t inserted = problem.format == nullptr ? 0 : args.slot_mapping.size(0);
  const std::int64_t heads = problem.heads == 0 ? 0 : problem.out_heads;
  const auto head_bytes = static_cast<std::size_t>(problem.dim * size_of(problem.q_out));
  const bool parallel =
      problem.tokens * (heads + 1) * problem.dim > 65536;  // below, waking threads costs more than it saves
#pragma omp parallel num_threads(context.threads) if (parallel)
  {
#pragma omp for schedule(static) nowait
    for (std::int64_t item = 0; item < problem.tokens * heads; ++item) {
      const std::int64_t t = item / heads;
      const std::int64_t h = item % heads;
      const float* cos_sin = rope_row(args.cos_sin, positions[t * args.positions.stride[0]]);
      if (cos_sin == nullptr) continue;
      if (h >= problem.heads) {
        std::memset(row_of(args.q_out, t, h), 0, head_bytes);
        continue;
      }
      kernels.norm_rope({.x = row_of(args.q, t, h),
                         .in = problem.in,
                         .y = row_of(args.q_out, t, h),
                         .out = problem.q_out,
                         .dim = problem.dim,
                         .rope_dim = problem.rope_dim,
                         .cos_sin = cos_sin,
                         .eps = problem.eps,
                         .factor = problem.q_scale_inv});
    }
#pragma omp for schedule(static)
    for (std::int64_t t = 0; t < inserted; ++t) {
      const std::int64_t slot = slots[t * args.slot_mapping.stride[0]];
      const float* cos_sin = rope_row(args.cos_sin, positions[t * args.positions.stride[0]]);
      if (slot >= 0 && slot < args.cache.num_slots() && cos_sin != nullptr) insert_row(problem, args, t, slot, cos_sin);
    }
  }
}

}  // namespace

void qnorm_rope_insert_cpu(const QNormRopeInsert::Problem& problem, const QNormRopeInsert::Args& args,
                           const RunContext& context) {
  run(norm_rope_kernels_generic(), problem, args, context);
}
void qnorm_rope_insert_avx2(const QNormRopeInsert::Problem& problem, const QNormRopeInsert::Args& args,
                            const RunContext& context) {
  run(norm_rope_kernels_avx2(), problem, args, context);
}
void qnorm_rope_insert_avx512(const QNormRopeInsert::Problem& problem, const QNormRopeInsert::Args& args,
                              const RunContext& context) {
  run(norm_rope_kernels_avx512(), problem, args, context);
}

}  // namespace smla
