#pragma once

#include <algorithm>
#include <cmath>

#include "core/codecs.h"

namespace smla {

/// InverseRopeQuant's rule for one group of `n` numbers x(i): a = max(max|x|, 1e-10), e = ceil(log2(a * (1/448))),
/// put(i, x(i) * 2^-e). Returns e.
int quantise_group(int n, auto&& x, auto&& put) {
  float amax = 1e-10F;
  for (int i = 0; i < n; ++i) amax = std::max(amax, std::fabs(x(i)));
  const int e = ceil_log2(amax * (1.0F / 448.0F));
  const float inverse = exp2_int(-e);
  for (int i = 0; i < n; ++i) put(i, x(i) * inverse);
  return e;
}

}  // namespace smla
