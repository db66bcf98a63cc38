#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "sparsemla/export.h"
#include "sparsemla/op.h"
#include "sparsemla/ops/norm_rope.h"
#include "sparsemla/tensor_view.h"

namespace SMLA_API smla {

/// Linear layers, one or G side by side (spec 2):  y[m, g, n] = sum_k x[m, g, k] * w[g, n, k], fp32 accumulation, one
/// rounding.
///
/// groups = 1 is a plain projection; groups = o_groups is the grouped output projection wo_a (einsum bhr,hdr->bhd).
/// x may be E4M3 with one scale for each 128 inputs of a row, as InverseRopeQuant writes them (its `values` [G, T, D]
/// seen as [T, G, D]): then y[m, g, n] = sum_k (x[m, g, k] * scale[g, k / 128, m]) * w[g, n, k]. Each x * scale must be
/// a float32 number. w may be E4M3 with one scale for each block of 128 outputs x 128 inputs, as FP8 checkpoints have
/// them: w[g, n, k] above is then w[g, n, k] * w_scale[g, n / 128, k / 128], which must be a float32 number too. x may
/// be of any dtype then; E4M3 is what tensor cores multiply. Implementations differ in summation order; one that
/// accepts `deterministic` gives a row the same bits whatever the other rows are. `cuda_stream` and `sm90_stream` read
/// w while earlier work of the stream may still run: it must have been written before the call is queued. With
/// `quantises_y` the call also writes what QuantizeRows makes of y, all groups of a row side by side: the input of FP8
/// weights. `sm90_stream` does so in the launch that multiplies, others in one more.
struct Projection {
  static constexpr std::string_view kName = "projection";
  struct Problem {
    std::int64_t m = 0;                       ///< rows of x and y
    std::int64_t n = 0;                       ///< outputs of a group
    std::int64_t k = 0;                       ///< inputs of a group
    std::int64_t groups = 1;                  ///< G
    DType x = DType::kBF16;                   ///< BF16, F32 or E4M3
    DType w = DType::kBF16;                   ///< BF16, F32, E4M3 or kNvfp4
    DType y = DType::kBF16;                   ///< BF16 or F32
    OutputScale x_scale = OutputScale::kF32;  ///< how the scales of E4M3 x are stored
    bool quantises_y = false;                 ///< also y_values and y_scales; kScaleGroup divides n
  };
  static constexpr std::int64_t kScaleGroup = InverseRopeQuant::kGroup;  ///< inputs of a scale of E4M3 x; divides k
  static constexpr std::int64_t kWeightBlock =
      128;  ///< outputs and inputs of a scale of E4M3 w; the last blocks may be smaller
  static constexpr DType kNvfp4 = DType::kU8;      ///< w in NVFP4: bytes of two e2m1 codes
  static constexpr std::int64_t kNvfp4Group = 16;  ///< inputs of a scale of NVFP4 w; divides k
  struct Args {
    ConstTensorView x;  ///< [m, groups, k]; the first two strides are free, the last is 1
    ConstTensorView w;  ///< [groups, n, k] contiguous; NVFP4: [groups, n, k/2] U8
    TensorView y;  ///< [m, groups, n]; the first two strides are free, with quantises_y the second is n; the last is 1
    /// With E4M3 x only. kF32: [groups, k/128, >= m] F32; kUe8m0x4: [groups, cdiv(k/128, 4), >= m] I32. The first two
    /// strides are free, the last is 1.
    ConstTensorView x_scale{};
    /// With E4M3 w: [groups, cdiv(n, 128), cdiv(k, 128)] F32. The first two strides are free, the last is 1. With NVFP4
    /// w: [groups, n, k/16] E4M3 contiguous. With others none.
    ConstTensorView w_scale{};
    ConstTensorView w_global_scale{};  ///< with NVFP4 w only: [1] F32
    TensorView y_values{};             ///< [m, groups * n] E4M3; rows may be strided. Absent without quantises_y
    TensorView y_scales{};             ///< [1, groups * n/128, m rounded up to 4] F32. Absent without quantises_y
  };
};

/// Linear layers of one input (spec 2): for each of several weights what Projection computes of it, with the same
/// meaning of x, w, y, their scales and groups. What a weight gives does not depend on the others. With `norms_x` it is
/// computed of what RmsNorm makes of x, rounded to x's dtype.
///
/// `cuda_stream` and `sm90_stream` compute all of them in one launch (`sm90_stream` splits more than 16 rows of x
/// beside E4M3 weights in a launch before), and read weights early as in a Projection. With `norms_x` `sm90_stream`
/// takes E4M3 weights alone and up to 16 rows, which each block norms by itself in that launch; it runs there where it
/// is named. Others norm x in a launch before.
struct JointProjection {
  static constexpr std::string_view kName = "joint_projection";
  static constexpr std::string_view kOneLaunch = "cuda_stream";          ///< an implementation of one launch for all
  static constexpr std::string_view kOneLaunchOnHopper = "sm90_stream";  ///< the same for more rows
  static constexpr int kMaxParts = 8;
  /// The shape of one weight.
  struct Part {
    std::int64_t n = 0;      ///< outputs of a group
    DType w = DType::kBF16;  ///< BF16, F32, E4M3 or Projection::kNvfp4
    DType y = DType::kBF16;  ///< BF16 or F32
  };
  struct Problem {
    std::int64_t m = 0;                  ///< rows of x and of each y
    std::int64_t k = 0;                  ///< inputs of a group
    std::int64_t groups = 1;             ///< G
    DType x = DType::kBF16;              ///< BF16 or F32
    int parts = 1;                       ///< weights, 1 to 8
    std::array<Part, kMaxParts> part{};  ///< shape of each weight
    bool norms_x = false;                ///< each row of x is normed first; of one group
    float eps = 1e-6F;                   ///< RMSNorm's epsilon, with norms_x
    /// Other work runs beside the call: `sm90_stream` has one block a multiprocessor where two would find room, and
    /// one stage of weights on its way. Results are the same.
    bool leaves_room = false;
  };
  /// The tensors of one weight.
  struct PartArgs {
    ConstTensorView w;                 ///< [groups, n, k] contiguous; NVFP4: [groups, n, k/2] U8
    TensorView y;                      ///< [m, groups, n]; the first two strides are free, the last is 1
    ConstTensorView w_scale{};         ///< with E4M3 and NVFP4 w only, as Projection takes it
    ConstTensorView w_global_scale{};  ///< with NVFP4 w only: [1] F32
  };
  struct Args {
    ConstTensorView x;                        ///< [m, groups, k]; the first two strides are free, the last is 1
    std::array<PartArgs, kMaxParts> parts{};  ///< as many as the problem says; no two outputs overlap
    ConstTensorView x_weight{};               ///< [k] BF16 or F32, the norm's. Absent without norms_x
  };
};

/// A layer's output projection (spec 2): two products one behind the other. z is what Projection makes of x and wo_a,
/// in G groups side by side; y what it makes of z, all groups of a row as one input, and wo_b. z is an output, too.
///
/// `sm90_stream` computes both in one launch; it reads both weights early, as in a Projection. Blocks wait for what
/// others make. Those that run compute, too, what has no room to start beside other work of the GPU.
struct OutputProjection {
  static constexpr std::string_view kName = "output_projection";
  static constexpr std::string_view kOneLaunch = "sm90_stream";  ///< an implementation of one launch for both
  struct Problem {
    std::int64_t m = 0;         ///< rows of x, z and y
    std::int64_t k = 0;         ///< inputs of a group
    std::int64_t groups = 1;    ///< G
    std::int64_t rank = 0;      ///< outputs of a group of wo_a
    std::int64_t n = 0;         ///< outputs of wo_b
    DType x = DType::kBF16;     ///< BF16 or F32; of z, too
    DType wo_a = DType::kBF16;  ///< BF16, F32, E4M3 or Projection::kNvfp4
    DType wo_b = DType::kBF16;  ///< BF16, F32, E4M3 or Projection::kNvfp4
    DType y = DType::kBF16;     ///< BF16 or F32
  };
  struct Args {
    ConstTensorView x;             ///< [m, groups, k]; the first two strides are free, the last is 1
    ConstTensorView wo_a;          ///< [groups, rank, k] contiguous; NVFP4: [groups, rank, k/2] U8
    TensorView z;                  ///< [m, groups, rank]; rows may be strided, the groups of a row lie side by side
    ConstTensorView wo_b;          ///< [1, n, groups * rank] contiguous; NVFP4: [1, n, groups * rank/2] U8
    TensorView y;                  ///< [m, 1, n]; rows may be strided
    ConstTensorView wo_a_scale{};  ///< with E4M3 and NVFP4 wo_a only, as Projection takes it
    ConstTensorView wo_a_global_scale{};  ///< with NVFP4 wo_a only: [1] F32
    ConstTensorView wo_b_scale{};         ///< with E4M3 and NVFP4 wo_b only, as Projection takes it
    ConstTensorView wo_b_global_scale{};  ///< with NVFP4 wo_b only: [1] F32
  };
};

}  // namespace smla
