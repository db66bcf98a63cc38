#pragma once

#include <cstdint>

#include "sparsemla/dtype.h"

namespace smla {

/// One head to norm and rotate. Plain pointers only: kernels are compiled for several instruction sets.
struct NormRopeRow {
  const void* x = nullptr;  ///< [dim] F32 or BF16
  DType in = DType::kBF16;
  void* y = nullptr;  ///< [dim] F32, BF16 or E4M3; may be x
  DType out = DType::kBF16;
  int dim = 0;
  int rope_dim = 0;
  const float* cos_sin = nullptr;  ///< [rope_dim] cos || sin
  float eps = 0.0F;
  float factor = 1.0F;  ///< multiplies the result before an E4M3 rounding
};

/// The row kernels of the family for one instruction set.
struct NormRopeKernels {
  /// y_i = x_i * rsqrt(sum(x^2)/n + eps) * w_i; `weight` null: none. y may be x.
  void (*norm)(const void* x, DType in, const void* weight, DType weight_type, void* y, DType out, std::int64_t n,
               float eps);
  void (*norm_rope)(const NormRopeRow& row);
};

const NormRopeKernels& norm_rope_kernels_generic();
const NormRopeKernels& norm_rope_kernels_avx2();
const NormRopeKernels& norm_rope_kernels_avx512();

}  // namespace smla
