#pragma once

#include <cstdint>
#include <string_view>

#include "ops/registry.h"
#include "sparsemla/ops/projection.h"

namespace smla {

using ProjectionProblem = Projection::Problem;

void projection_ref(const ProjectionProblem& problem, const Projection::Args& args, const RunContext& context);

/// The library's own kernels: of one text (projection_kernel.h), three words.
void projection_cpu(const ProjectionProblem& problem, const Projection::Args& args, const RunContext& context);
void projection_avx2(const ProjectionProblem& problem, const Projection::Args& args, const RunContext& context);
void projection_avx512(const ProjectionProblem& problem, const Projection::Args& args, const RunContext& context);
/// Few rows of bf16 x by dot products of bf16 pairs (projection_bf16_avx512.cpp).
void projection_bf16_avx512(const ProjectionProblem& problem, const Projection::Args& args, const RunContext& context);
std::size_t projection_cpu_workspace(const ProjectionProblem& problem, int threads);

/// The scale of E4M3 x: of row `row`, group `group`, inputs [chunk * kScaleGroup, (chunk + 1) * kScaleGroup).
float x_scale_of(const ProjectionProblem& problem, const ConstTensorView& scales, std::int64_t row, std::int64_t group,
                 std::int64_t chunk);

/// The scale of E4M3 w: of output `n` and input `k` of group `group`.
inline float w_scale_of(const ConstTensorView& scales, std::int64_t group, std::int64_t n, std::int64_t k) {
  constexpr std::int64_t kBlock = Projection::kWeightBlock;
  return static_cast<const float*>(scales.data)[group * scales.stride[0] + n / kBlock * scales.stride[1] + k / kBlock];
}

/// Bytes of `rows` rows of w.
inline std::int64_t weight_bytes(const ProjectionProblem& problem, std::int64_t rows) {
  return problem.w == Projection::kNvfp4 ? rows * problem.k / 2 : rows * problem.k * size_of(problem.w);
}

/// What the codes of NVFP4 w mean beside a scale, exactly: the 16 numbers of scale s from nvfp4_tables() + 16 * s.bits.
const BF16* nvfp4_tables();

/// Rows [begin, begin + rows) of E4M3 x times their scales, as floats [rows, groups, k].
void decode_x(const ProjectionProblem& problem, const Projection::Args& args, std::int64_t begin, std::int64_t rows,
              float* out, int threads);

/// oneDNN, or its stand-in, which always refuses (no_onednn.cpp).
Decision projection_onednn_decide(const ProjectionProblem& problem, const PlanOptions& options, const Machine& machine);
void projection_onednn(const ProjectionProblem& problem, const Projection::Args& args, const RunContext& context);

/// The row of cuBLASLt, which is opened when it is first asked for (projection_cublaslt_cuda.cu).
Implementation<Projection> projection_cublaslt_row();

/// The library's own GPU kernels (projection_cuda.cu).
void projection_cuda(const ProjectionProblem& problem, const Projection::Args& args, const RunContext& context);

/// The rows of the kernel that streams weights (projection_stream_cuda.cu), which runs where it is named.
inline constexpr std::string_view kStreamName = JointProjection::kOneLaunch;
Implementation<Projection> projection_stream_row();
Implementation<JointProjection> joint_projection_stream_row();

/// The same for more rows on Hopper (projection_stream_sm90.cu, no_sm90.cpp).
inline constexpr std::string_view kStreamSm90Name = JointProjection::kOneLaunchOnHopper;
Implementation<Projection> projection_stream_sm90_row();
Implementation<JointProjection> joint_projection_stream_sm90_row();

Implementation<OutputProjection> output_projection_stream_sm90_row();

/// The two products of an output projection.
ProjectionProblem first_problem(const OutputProjection::Problem& problem);
ProjectionProblem second_problem(const OutputProjection::Problem& problem);
Projection::Args first_args(const OutputProjection::Args& args);
Projection::Args second_args(const OutputProjection::Problem& problem, const OutputProjection::Args& args);

/// A joint call's weight `i` as a call of its own.
ProjectionProblem part_problem(const JointProjection::Problem& problem, int i);
Projection::Args part_args(const JointProjection::Problem& problem, const JointProjection::Args& args, int i);

/// The norm of a joint call's x, a tensor like it at `to`; that tensor, and its bytes: none without norms_x.
RmsNorm::Problem x_norm_problem(const JointProjection::Problem& problem);
RmsNorm::Args x_norm_args(const JointProjection::Problem& problem, const JointProjection::Args& args, void* to);
ConstTensorView normed_x(const JointProjection::Problem& problem, const void* at);
std::size_t normed_x_bytes(const JointProjection::Problem& problem);

/// Shape of the work of one call of a tile function. The inputs are summed in blocks of kProjectionKBlock, whatever the
/// rest of the shape is: a result's order of additions depends on k alone. All other numbers only cut the work.
inline constexpr std::int64_t kProjectionKBlock =
    1024;  ///< 4 KiB of a float row: six rows of x stay in the first-level cache
inline constexpr std::int64_t kProjectionPanel =
    64;  ///< weight rows of a tile: as floats 256 KiB, the second-level cache
inline constexpr std::int64_t kProjectionTileRows = 192;    ///< x rows that share one conversion of the panel
inline constexpr std::int64_t kProjectionMaxBlockRows = 6;  ///< x rows of the widest register block
inline constexpr std::int64_t kProjectionRegister = 64;     ///< most inputs of a register of weights
/// Of few rows, whose weights are read as one stream: x rows at most, weight rows and bytes of a tile.
inline constexpr std::int64_t kProjectionMaxFewRows = 24;
inline constexpr std::int64_t kProjectionFewPanel = 512;
inline constexpr std::int64_t kProjectionFewBytes = std::int64_t{1024} << 10;
static_assert(kProjectionMaxFewRows * kProjectionFewPanel <= kProjectionTileRows * kProjectionPanel);

/// y[i, j] = sum_k x[i, k] * w[j, k] for i < m <= kProjectionTileRows, j < n <= kProjectionPanel (kProjectionFewPanel
/// where m is few): one group's piece.
struct ProjectionTile {
  const void* x = nullptr;
  const void* w = nullptr;              ///< dense rows
  const float* w_scale = nullptr;       ///< E4M3 weights: of the whole group's blocks
  std::int64_t w_scale_stride = 0;      ///< from a block of outputs to the next
  const E4M3* nvfp4_scale = nullptr;    ///< NVFP4 weights: k / 16 for each of the tile's rows
  const float* global_scale = nullptr;  ///< NVFP4 weights: what the sums are multiplied by
  std::int64_t w_row = 0;               ///< the tile's first output, a multiple of 4
  void* y = nullptr;
  std::int64_t x_stride = 0;  ///< elements from row to row
  std::int64_t y_stride = 0;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  bool x_bf16 = false;
  DType w_dtype = DType::kBF16;
  bool y_bf16 = false;
  bool few = false;          ///< whether the weights go once from memory to all x rows
  float* scratch = nullptr;  ///< projection_scratch_floats() of them
};

/// One word's tile function, and up to how many x rows it takes for few.
struct ProjectionTiles {
  void (*run)(const ProjectionTile& tile) = nullptr;
  std::int64_t few_rows = 0;
  std::int64_t few_rows_e4m3 = 0;
};

/// Codes times a scale, n of them, rounded to bf16. Only with AVX-512.
void projection_widen_avx512(const E4M3* codes, float scale, std::int64_t n, BF16* out);
/// n NVFP4 weights but for the scale of all, n a multiple of 16, as bf16, exactly. Only with AVX-512.
void projection_widen_nvfp4_avx512(const std::uint8_t* codes, const E4M3* scales, std::int64_t n, BF16* out);

ProjectionTiles projection_tiles_cpu();
ProjectionTiles projection_tiles_avx2();
ProjectionTiles projection_tiles_avx512();
ProjectionTiles projection_tiles_bf16_avx512();

}  // namespace smla
