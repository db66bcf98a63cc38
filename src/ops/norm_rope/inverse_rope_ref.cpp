#include "ops/norm_rope/implementations.h"
#include "ops/norm_rope/scalar.h"

namespace smla {

// e' = e*c + o*s, o' = o*c - e*s on the last rope_dim dims; the others are copied (spec 2, step 7).
void inverse_rope_ref(const InverseRope::Problem& problem, const InverseRope::Args& args, const RunContext&) {
  const auto* positions = static_cast<const std::int64_t*>(args.positions.data);
  const int nope = problem.dim - problem.rope_dim;
  const int pairs = problem.rope_dim / 2;
  for (std::int64_t t = 0; t < problem.tokens; ++t) {
    const float* c = rope_row(args.cos_sin, positions[t * args.positions.stride[0]]);
    if (c == nullptr) continue;
    const float* s = c + pairs;
    for (std::int64_t h = 0; h < problem.heads; ++h) {
      const void* x = row_of(args.x, t, h);
      void* y = row_of(args.y, t, h);
      for (int i = 0; i < nope; ++i) store_element(problem.out, y, i, load_element(problem.in, x, i));
      for (int i = 0; i < pairs; ++i) {
        const float e = load_element(problem.in, x, nope + 2 * i);
        const float o = load_element(problem.in, x, nope + 2 * i + 1);
        store_element(problem.out, y, nope + 2 * i, e * c[i] + o * s[i]);
        store_element(problem.out, y, nope + 2 * i + 1, o * c[i] - e * s[i]);
      }
    }
  }
}

}  // namespace smla
