#include "ops/projection/implementations.h"

// Stands in for projection_onednn.cpp where the library was built without oneDNN.

namespace smla {

Decision projection_onednn_decide(const ProjectionProblem&, const PlanOptions&, const Machine&) {
  return refused("this build has no oneDNN (Debian: libdnnl-dev)");
}

void projection_onednn(const ProjectionProblem&, const Projection::Args&, const RunContext&) {
  throw Unsupported("projection: this build has no oneDNN");
}

}  // namespace smla
