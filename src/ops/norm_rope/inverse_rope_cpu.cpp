#include <cstring>

#include "ops/norm_rope/implementations.h"
#include "ops/norm_rope/scalar.h"

namespace smla {

// The reference's arithmetic, heads split over threads; a head of one dtype copies its nope dims (or leaves them, in
// place).
void inverse_rope_cpu(const InverseRope::Problem& problem, const InverseRope::Args& args, const RunContext& context) {
  const auto* positions = static_cast<const std::int64_t*>(args.positions.data);
  const int nope = problem.dim - problem.rope_dim;
  const int pairs = problem.rope_dim / 2;
  const std::int64_t rows = problem.tokens * problem.heads;
#pragma omp parallel for num_threads(context.threads) if (rows * problem.dim > 65536) schedule(static)
  for (std::int64_t item = 0; item < rows; ++item) {
    const std::int64_t t = item / problem.heads;
    const std::int64_t h = item % problem.heads;
    const float* cosines = rope_row(args.cos_sin, positions[t * args.positions.stride[0]]);
    if (cosines == nullptr) continue;
    const void* x = row_of(args.x, t, h);
    void* y = row_of(args.y, t, h);
    if (problem.in != problem.out) {
      for (int i = 0; i < nope; ++i) store_element(problem.out, y, i, load_element(problem.in, x, i));
    } else if (x != y) {
      std::memcpy(y, x, static_cast<std::size_t>(nope * size_of(problem.in)));
    }
    float rope[kMaxRopeRow];
    float sines[kMaxRopeRow / 2];
    for (int i = 0; i < problem.rope_dim; ++i) rope[i] = load_element(problem.in, x, nope + i);
    for (int i = 0; i < pairs; ++i) sines[i] = -cosines[pairs + i];  // e*c - o*(-s) has the bits of e*c + o*s
    rotate_pairs(rope, pairs, cosines, sines);
    for (int i = 0; i < problem.rope_dim; ++i) store_element(problem.out, y, nope + i, rope[i]);
  }
}

}  // namespace smla
