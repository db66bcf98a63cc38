// The numbers inside tensors that validate reads, op by op.
#include "ops/validate_op.h"
#include "sparsemla/ops/projection.h"

namespace smla {

// Shapes alone.
template <>
void validate<Projection>(const Projection::Problem& problem, const Projection::Args& args) {
  check_shapes<Projection>(problem, args);
}

template <>
void validate<JointProjection>(const JointProjection::Problem& problem, const JointProjection::Args& args) {
  check_shapes<JointProjection>(problem, args);
}

template <>
void validate<OutputProjection>(const OutputProjection::Problem& problem, const OutputProjection::Args& args) {
  check_shapes<OutputProjection>(problem, args);
}

}  // namespace smla
