#pragma once

// Products by cuBLASLt: what is common to all, and the two kinds that need more than a call of it.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <string>

#include "ops/projection/cublaslt.cuh"
#include "ops/projection/implementations.h"

namespace smla::projection::lt {

constexpr std::size_t kWorkspace = std::size_t{32} << 20;  ///< what its kernels for Hopper want
constexpr std::size_t kWorkspaceAlignment = 256;
constexpr bool kHasBlockScales = CUBLAS_VERSION >= 120900;  ///< of FP8 products

/// Strides in elements, alignments in bytes.
struct Shape {
  std::int64_t m = 0, n = 0, k = 0, groups = 1;
  std::int64_t x_row = 0, x_group = 0, y_row = 0, y_group = 0;
  cudaDataType in = CUDA_R_16BF;
  cudaDataType out = CUDA_R_16BF;
  std::uint32_t x_align = 256, w_align = 256, y_align = 256;
  bool factor_on_device = false;  ///< what sums are multiplied by lies in device memory
  auto operator<=>(const Shape&) const = default;
};

/// Of an address, or of several `step` bytes apart.
inline std::uint32_t alignment_of(const void* p, std::int64_t step = 0) {
  const auto address = reinterpret_cast<std::uintptr_t>(p) | static_cast<std::uintptr_t>(step);
  return address == 0 ? 256U : static_cast<std::uint32_t>(std::min<std::uintptr_t>(address & (~address + 1), 256));
}

/// Of dense operands; alignments are the best.
inline Shape shape_of(const ProjectionProblem& p) {
  const auto type = [](DType d) {
    return d == DType::kBF16 ? CUDA_R_16BF : d == DType::kE4M3 ? CUDA_R_8F_E4M3 : CUDA_R_32F;
  };
  return {.m = p.m,
          .n = p.n,
          .k = p.k,
          .groups = p.groups,
          .x_row = p.groups * p.k,
          .x_group = p.k,
          .y_row = p.groups * p.n,
          .y_group = p.n,
          .in = type(p.x),
          .out = type(p.y)};
}

struct FreeLayout {
  void operator()(cublasLtMatrixLayout_t l) const { (void)cublaslt().free_layout(l); }
};
struct FreePreference {
  void operator()(cublasLtMatmulPreference_t p) const { (void)cublaslt().free_preference(p); }
};
using Desc = cublasLtMatmulDescOpaque_t;  // on the stack, or in a Product: making one allocates nothing
using Layout = std::unique_ptr<std::remove_pointer_t<cublasLtMatrixLayout_t>, FreeLayout>;
using Preference = std::unique_ptr<std::remove_pointer_t<cublasLtMatmulPreference_t>, FreePreference>;

/// A product as cuBLASLt sees it, by columns: y^T [n, m] = w^T (transposed [k, n]) x^T [k, m].
struct Product {
  Desc desc;
  Layout w, x, y;
  cublasLtMatmulAlgo_t algo{};
  bool found = false;
};

/// The product of a shape on the current device, made once; `found` says whether cuBLASLt has a kernel for it.
/// @throws CudaError when a call of cuBLASLt fails.
std::shared_ptr<const Product> product_of(const Shape& shape);

/// Where the scales of an FP8 product lie, as cuBLASLt wants them (its manual, "128-element 1D and 128x128 2D block
/// scaling"): 16-byte aligned; of w one for each 128 x 128, those of a block of outputs consecutive and padded to a
/// multiple of four; of x one for each 128 inputs of a row, those of all rows consecutive.
struct Scales {
  const float* w = nullptr;
  const float* x = nullptr;
};

/// What describes a product with these scales.
Desc make_desc(const Scales& scales, bool factor_on_device = false);

/// cuBLASLt's own workspace in that of a run, and what lies behind it.
struct Memory {
  void* own = nullptr;
  std::uint8_t* behind = nullptr;

  explicit Memory(const Workspace& workspace) {
    const auto begin = reinterpret_cast<std::uintptr_t>(workspace.data);
    own = reinterpret_cast<void*>((begin + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment);
    behind = static_cast<std::uint8_t*>(own) + kWorkspace;
  }
};

/// The operands of a product. What sums and old y are multiplied by lies where `desc` says.
struct Tensors {
  const void* w = nullptr;
  const void* x = nullptr;
  void* y = nullptr;
  const float* of_sums = nullptr;
  const float* of_y = nullptr;
};
/// @throws CudaError when the call fails.
void multiply(const Product& product, Desc desc, const Tensors& tensors, const Memory& memory, cudaStream_t stream);

// FP8 x FP8 with block scales (cublaslt_scaled_cuda.cu).

/// Why it does not take an FP8 product; empty where it may.
std::string refuse_scaled(const ProjectionProblem& problem, const device::Gpu& gpu);
/// A shape of one group of an FP8 product, without the rows that are too many for a multiple of four.
Shape scaled_shape_of(const ProjectionProblem& problem);
/// Bytes behind cuBLASLt's own workspace for scales that are not where it wants them.
std::size_t scaled_bytes(const ProjectionProblem& problem);
/// Adds to a decision who computes the rows beyond a multiple of four.
void decide_rest(const ProjectionProblem& problem, const PlanOptions& options, const Machine& machine,
                 Decision* decision);
void run_scaled(const ProjectionProblem& problem, const Projection::Args& args, const RunContext& context);

// bf16 x NVFP4 weights that are widened to bf16 before (cublaslt_widened_cuda.cu).

/// Why NVFP4 weights are not widened for it; empty where they may be.
std::string refuse_widened(const ProjectionProblem& problem);
/// A shape of the weights that are widened at a time.
Shape widened_shape_of(const ProjectionProblem& problem);
/// Bytes behind cuBLASLt's own workspace for them.
std::size_t widened_bytes(const ProjectionProblem& problem);
void run_widened(const ProjectionProblem& problem, const Projection::Args& args, const RunContext& context);

}  // namespace smla::projection::lt
