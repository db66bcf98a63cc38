#pragma once

#include "ops/decision.h"
#include "sparsemla/ops/projection.h"

namespace smla {

/// The part of a projection with quantises_y behind its product: `quantize` is a QuantizeRows implementation's run.
inline void quantise_outputs(const Projection::Problem& p, const Projection::Args& a, const RunContext& context,
                             decltype(Implementation<QuantizeRows>::run) quantize) {
  if (!p.quantises_y || p.m == 0 || p.n == 0) return;
  ConstTensorView rows(a.y.data, p.y, {p.m, p.groups * p.n});
  rows.stride[0] = a.y.stride[0];
  quantize({.rows = p.m, .dim = p.groups * p.n, .in = p.y}, {.x = rows, .values = a.y_values, .scales = a.y_scales},
           context);
}

}  // namespace smla
