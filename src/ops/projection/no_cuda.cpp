#include "ops/projection/implementations.h"

// Stands in for projection_cublaslt_cuda.cu where the library was built without CUDA.

namespace smla {

std::string projection_cublaslt_refuse(const ProjectionProblem&, const PlanOptions&) { return needs_gpu(); }

std::size_t projection_cublaslt_workspace(const ProjectionProblem&, int) { return 0; }

void projection_cublaslt(const ProjectionProblem&, const Projection::Args&, const RunContext&) {
  throw Unsupported("projection: " + needs_gpu());
}

}  // namespace smla
