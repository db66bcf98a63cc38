#include "ops/projection/implementations.h"

// Stands in for projection_onednn.cpp where the library was built without oneDNN.

namespace smla {

std::string projection_onednn_refuse(const ProjectionProblem&, const PlanOptions&) {
  return "this build has no oneDNN (Debian: libdnnl-dev)";
}

std::size_t projection_onednn_workspace(const ProjectionProblem&, int) { return 0; }

void projection_onednn(const ProjectionProblem&, const Projection::Args&, const RunContext&) {
  throw Unsupported("projection: this build has no oneDNN");
}

}  // namespace smla
