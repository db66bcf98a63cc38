#pragma once

#include "ops/registry.h"

namespace smla {

/// The portable CUDA implementation of an op. The members are defined in `<op>_cuda.cu`, and for every op at once in
/// `no_cuda.cpp` where the build has no CUDA.
template <class Op>
struct CudaOp {
  static std::string refuse(const typename Op::Problem& problem, const PlanOptions& options);
  static std::size_t workspace_bytes(const typename Op::Problem& problem, int threads);
  static void run(const typename Op::Problem& problem, const typename Op::Args& args, const RunContext& context);
};

/// Its line in the op's table.
template <class Op>
constexpr Implementation<Op> cuda_line(std::string (*choice)(const typename Op::Problem&,
                                                             const PlanOptions&) = nullptr) {
  return {.name = "cuda",
          .machine = "NVIDIA GPU, sm_80 and up",
          .device = DeviceKind::kCuda,
          .refuse = CudaOp<Op>::refuse,
          .workspace_bytes = CudaOp<Op>::workspace_bytes,
          .run = CudaOp<Op>::run,
          .choice = choice};
}

/// Why no kernel can run here; empty where there is a GPU of sm_80 or later.
std::string needs_gpu();

/// What an op that any GPU takes defines: refusal, workspace, and the head of its run, whose body follows.
#define SMLA_CUDA_OP(Op, bytes)                                                         \
  template <>                                                                           \
  std::string CudaOp<Op>::refuse(const Op::Problem&, const PlanOptions&) {              \
    return needs_gpu();                                                                 \
  }                                                                                     \
  template <>                                                                           \
  std::size_t CudaOp<Op>::workspace_bytes([[maybe_unused]] const Op::Problem& p, int) { \
    return bytes;                                                                       \
  }                                                                                     \
  template <>                                                                           \
  void CudaOp<Op>::run([[maybe_unused]] const Op::Problem& p, const Op::Args& a, const RunContext& context)

}  // namespace smla
