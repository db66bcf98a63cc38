#pragma once

#include "core/codecs.h"
#include "device/numbers.cuh"
#include "ops/projection/widen_codes.cuh"
#include "sparsemla/ops/projection.h"

namespace smla::projection {

constexpr int kChunk = 128;  ///< inputs that share a scale of x; a step of a warp

/// The arguments of a Projection kernel.
struct Operands {
  const void* x = nullptr;
  const void* w = nullptr;
  void* y = nullptr;
  const void* x_scale = nullptr;
  const float* w_scale = nullptr;             ///< of E4M3 w
  const std::uint8_t* group_scale = nullptr;  ///< of NVFP4 w
  const float* global_scale = nullptr;        ///< of NVFP4 w
  std::int64_t x_row = 0, x_group = 0;        ///< strides in elements
  std::int64_t y_row = 0, y_group = 0;
  std::int64_t scale_group = 0, scale_chunk = 0;
  std::int64_t w_scale_group = 0, w_scale_row = 0;
  std::int64_t m = 0, n = 0, k = 0;
  DType x_dtype = DType::kBF16, w_dtype = DType::kBF16, y_dtype = DType::kBF16;
  bool packed_scales = false;

  __device__ float scale(std::int64_t row, std::int64_t group, std::int64_t chunk) const {
    const std::int64_t at = group * scale_group + row;
    if (!packed_scales) return static_cast<const float*>(x_scale)[at + chunk * scale_chunk];
    const auto word =
        static_cast<std::uint32_t>(static_cast<const std::int32_t*>(x_scale)[at + chunk / 4 * scale_chunk]);
    return from_ue8m0(static_cast<std::uint8_t>(word >> (8 * (chunk % 4))));
  }
  /// The scale of E4M3 w for output `column` and inputs [kWeightBlock * block, ...).
  __device__ float weight_scale(std::int64_t group, std::int64_t column, std::int64_t block) const {
    return w_scale[group * w_scale_group + column / Projection::kWeightBlock * w_scale_row + block];
  }
  /// What a sum of products is multiplied by; `unit`: what NVFP4 weights were multiplied as.
  __device__ float of_sum(float sum, float unit) const {
    return global_scale == nullptr ? sum : sum * unit * *global_scale;
  }
  __device__ void store(std::int64_t row, std::int64_t group, std::int64_t column, float v) const {
    const std::int64_t at = row * y_row + group * y_group + column;
    if (y_dtype == DType::kBF16) {
      static_cast<BF16*>(y)[at] = to_bf16(v);
    } else {
      static_cast<float*>(y)[at] = v;
    }
  }
};

}  // namespace smla::projection
