// RMSNorm on the device: a warp for a short row, eight for a long one; what a thread holds of it stays in registers between the two passes.
#include <algorithm>

#include "device/row_views.cuh"
#include "ops/cuda_op.h"
#include "sparsemla/ops/norm_rope.h"

namespace smla {

namespace {

using namespace device;

constexpr int kWarps = HeadGrid::kWarps;

constexpr std::int64_t kShort = 1024;         ///< the longest row of one warp
constexpr std::int64_t kMaxDim = 1LL << 30U;  ///< elements of a row are counted in int

/// A matrix to norm.
template <class In, class Out>
struct Matrix {
  Rows<const In> x;
  Rows<Out> y;
  const void* weight = nullptr;
  bool weight_f32 = false;
  int dim = 0;

  bool short_rows() const { return dim <= kShort; }
};

/// One or two matrices of as many rows; the second one's blocks follow the first one's.
template <class In, class Out>
struct Call {
  Matrix<In, Out> matrix[2];
  std::int64_t rows = 0;
  unsigned blocks = 0;  ///< of the first matrix
  float eps = 0;
};

template <int kRowWarps>
__device__ float sum_of_row(float v) {
  v = sum_of_warp(v);
  if constexpr (kRowWarps > 1) {
    __shared__ float parts[kRowWarps];
    if (threadIdx.x == 0) parts[threadIdx.y] = v;
    __syncthreads();
    v = 0;
#pragma unroll
    for (int w = 0; w < kRowWarps; ++w) v += parts[w];
  }
  return v;
}

/// A block's rows: kWarps short ones or a long one.
template <int kRowWarps, bool kByFours, class In, class Out>
__device__ void norm_block(const Matrix<In, Out>& m, std::int64_t rows, float eps, unsigned block) {
  const std::int64_t row = kRowWarps == 1 ? static_cast<std::int64_t>(block) * kWarps + threadIdx.y : block;
  if (row >= rows) return;
  const int thread = static_cast<int>(threadIdx.x) + (kRowWarps == 1 ? 0 : 32 * static_cast<int>(threadIdx.y));
  const HeldRow<32 * kRowWarps, kByFours, In> x(m.x.row(row), m.dim, 0, thread);
  const float sum = sum_of_row<kRowWarps>(x.squares());
  const float inverse = __frsqrt_rn(__fdiv_rn(sum, static_cast<float>(m.dim)) + eps);
  Out* y = m.y.row(row);
  x.each([&](int i, Raw<In> raw) {
    float4 v = scaled(widened(raw), inverse);
    if (m.weight != nullptr) {
      v = product(v, m.weight_f32 ? widened(load_quad<kByFours>(static_cast<const float*>(m.weight), i, m.dim))
                                  : widened(load_quad<kByFours>(static_cast<const BF16*>(m.weight), i, m.dim)));
    }
    store_quad<kByFours>(y, i, m.dim, computed<Out>(v));
  });
}

/// kShortRows: of each matrix.
template <bool kShortRows, bool kShortRows2, bool kByFours, class In, class Out>
__global__ void __launch_bounds__(32 * kWarps, sizeof(In) == 4 ? 3 : 4) norm_rows(const __grid_constant__ Call<In, Out> c) {
  if (blockIdx.x < c.blocks) {
    norm_block<kShortRows ? 1 : kWarps, kByFours>(c.matrix[0], c.rows, c.eps, blockIdx.x);
  } else {
    norm_block<kShortRows2 ? 1 : kWarps, kByFours>(c.matrix[1], c.rows, c.eps, blockIdx.x - c.blocks);
  }
}

template <bool kByFours, class In, class Out>
void launch(Call<In, Out> c, cudaStream_t stream) {
  const auto blocks = [&](const Matrix<In, Out>& m) { return m.dim == 0 ? 0U : blocks_for(c.rows, m.short_rows() ? kWarps : 1); };
  c.blocks = blocks(c.matrix[0]);
  const unsigned all = blocks_for(static_cast<std::int64_t>(c.blocks) + blocks(c.matrix[1]), 1);
  with_bool(c.matrix[0].short_rows(), [&]<bool kFirst>(std::bool_constant<kFirst>) {
    with_bool(c.matrix[1].short_rows(),
              [&]<bool kSecond>(std::bool_constant<kSecond>) { norm_rows<kFirst, kSecond, kByFours><<<all, dim3(32, kWarps), 0, stream>>>(c); });
  });
  check_launch("norm_rows");
}

}  // namespace

template <>
std::string CudaOp<RmsNorm>::refuse(const RmsNorm::Problem& problem, const PlanOptions&) {
  const std::string reason = needs_gpu();
  if (reason.empty() && std::max(problem.dim, problem.dim2) > kMaxDim) return "dim above 2^30";
  return reason;
}

template <>
std::size_t CudaOp<RmsNorm>::workspace_bytes(const RmsNorm::Problem&, int) {
  return 0;
}

template <>
void CudaOp<RmsNorm>::run(const RmsNorm::Problem& p, const RmsNorm::Args& a, const RunContext& context) {
  if (p.rows == 0 || (p.dim == 0 && p.dim2 == 0)) return;
  const auto aligned = [&](const ConstTensorView& x, const ConstTensorView& weight, const TensorView& y) {
    return by_fours(x) && by_fours(y) && (!p.has_weight || by_fours(weight));
  };
  const bool fours = (p.dim == 0 || aligned(a.x, a.weight, a.y)) && (p.dim2 == 0 || aligned(a.x2, a.weight2, a.y2));
  with_float(p.in, [&]<class In>(In) {
    with_float(p.out, [&]<class Out>(Out) {
      with_bool(fours, [&]<bool kByFours>(std::bool_constant<kByFours>) {
        const auto matrix = [&](const ConstTensorView& x, const ConstTensorView& weight, const TensorView& y, std::int64_t dim) {
          return Matrix<In, Out>{.x = rows_of<const In>(x),
                                 .y = rows_of<Out>(y),
                                 .weight = p.has_weight ? weight.data : nullptr,
                                 .weight_f32 = p.has_weight && weight.dtype == DType::kF32,
                                 .dim = static_cast<int>(dim)};
        };
        Call<In, Out> c{.rows = p.rows, .eps = p.eps};
        int count = 0;
        if (p.dim > 0) c.matrix[count++] = matrix(a.x, a.weight, a.y, p.dim);
        if (p.dim2 > 0) c.matrix[count++] = matrix(a.x2, a.weight2, a.y2, p.dim2);
        launch<kByFours>(c, stream_of(context.stream));
      });
    });
  });
}

}  // namespace smla
