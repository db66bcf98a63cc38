#pragma once

#include "ops/registry.h"

namespace smla {

/// The portable CUDA implementation of an op. The members are defined in `<op>_cuda.cu`, and for every op at once in `no_cuda.cpp` where the build has
/// no CUDA.
template <class Op>
struct CudaOp {
  static std::string refuse(const typename Op::Problem& problem, const PlanOptions& options);
  static std::size_t workspace_bytes(const typename Op::Problem& problem, int threads);
  static void run(const typename Op::Problem& problem, const typename Op::Args& args, const RunContext& context);
};

/// Its line in the op's table.
template <class Op>
constexpr Implementation<Op> cuda_line() {
  return {.name = "cuda",
          .machine = "NVIDIA GPU, sm_80 and up",
          .device = DeviceKind::kCuda,
          .refuse = CudaOp<Op>::refuse,
          .workspace_bytes = CudaOp<Op>::workspace_bytes,
          .run = CudaOp<Op>::run};
}

/// Why no kernel can run here; empty where there is a GPU of sm_80 or later.
std::string needs_gpu();

}  // namespace smla
